/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bundle is in use while a sandbox's snapshot or a VM names it, and the host's own always is. All of that is in the broker's
 * tables, so nothing has to be counted on disk: a snapshot that is being made has the engine of its VM, a copy that of its source.
 * A template's snapshot holds none: its key names the engine, so with another one nobody asks for it any more, and it goes with
 * its engine.
 */
#include "broker/engine_ops.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/snapshot.h"
#include "broker/store_ops.h"
#include <dirent.h>
#include <fcntl.h>
#include <string.h>

#define REMOVE_TIMEOUT_MS 60000
#define LIST_MAX 200 /* ≤ 200 bytes each */

void engine_ops_discover(struct broker *b) {
    const uid_t uid = (uid_t)b->settings.uid_base + SETTINGS_UID_NODE;
    struct sp_error *err = &b->engine_missing;

    if (engine_source(&b->engine, b->settings.qemu, b->layout.preload, uid, err) < 0)
        log_error(LOG_L_ERROR, "no_engine", err, "qemu", b->settings.qemu, NULL);
    else
        log_event(LOG_L_INFO, "engine", "engine", b->engine.digest, "qemu", b->settings.qemu, NULL);
}

void engine_ops_free(struct broker *b) {
    engine_done(&b->engine);
    while (b->engines_checked) {
        struct engine_entry *next = b->engines_checked->next;
        free(b->engines_checked);
        b->engines_checked = next;
    }
}

/* --- which one ----------------------------------------------------------------------------------------------------- */

bool engine_ops_is_current(const struct broker *b, const char *digest) {
    return b->engine.digest[0] && strcmp(b->engine.digest, digest) == 0;
}

int engine_ops_choose(struct broker *b, const struct snapshot_entry *snapshot, struct vm_record *record,
                      struct sp_error *err) {
    bool is_named = snapshot && snapshot->engine[0];

    if (!is_named && !b->engine.digest[0]) {
        *err = b->engine_missing;
        return -(int)err->code;
    }
    memcpy(record->engine, is_named ? snapshot->engine : b->engine.digest, sizeof(record->engine));
    (void)text_copy(record->qemu_version, sizeof(record->qemu_version), is_named ? snapshot->qemu_version : "");
    return 0;
}

int engine_ops_fits(const struct vm_record *blank, const struct snapshot_entry *snapshot, struct sp_error *err) {
    if (!snapshot->engine[0] || strcmp(snapshot->engine, blank->engine) == 0)
        return 0;
    return sp_error_field(err, SP_E_CONFLICT, "engine", "snapshot %s was taken with another engine than %s runs on",
                          snapshot->key, blank->id);
}

const struct engine_entry *engine_ops_known(const struct broker *b, const char *digest) {
    const struct engine_entry *e = b->engines_checked;
    while (e && strcmp(e->digest, digest) != 0)
        e = e->next;
    return e;
}

void engine_ops_checked(struct broker *b, const struct vm_record *record, const char *qemu) {
    struct engine_entry *e;

    if (engine_ops_known(b, record->engine))
        return;
    e = calloc(1, sizeof(*e));
    if (!e)
        abort();
    (void)text_copy(e->digest, sizeof(e->digest), record->engine);
    (void)text_copy(e->version, sizeof(e->version), record->qemu_version);
    (void)text_copy(e->qemu, sizeof(e->qemu), qemu);
    e->next = b->engines_checked;
    b->engines_checked = e;
}

static void forget_checked(struct broker *b, const char *digest) {
    for (struct engine_entry **at = &b->engines_checked; *at; at = &(*at)->next)
        if (strcmp((*at)->digest, digest) == 0) {
            struct engine_entry *e = *at;
            *at = e->next;
            free(e);
            return;
        }
}

/* --- use ----------------------------------------------------------------------------------------------------------- */

static unsigned count_snapshots(const struct broker *b, const char *digest) {
    unsigned n = 0;
    for (const struct snapshot_entry *e = b->snapshots; e; e = e->next)
        n += strcmp(e->engine, digest) == 0 && request_key_is_sandboxes(e->key);
    return n;
}

static unsigned count_vms(const struct broker *b, const char *digest) {
    unsigned n = 0;
    for (const struct vm *vm = b->vms.first; vm; vm = vm->next)
        n += strcmp(vm->record.engine, digest) == 0;
    return n;
}

static int check_unused(const struct broker *b, const char *digest, struct sp_error *err) {
    if (engine_ops_is_current(b, digest))
        return sp_error_set(err, SP_E_CONFLICT, "engine %s is the host's own", digest);
    if (count_snapshots(b, digest) || count_vms(b, digest))
        return sp_error_set(err, SP_E_CONFLICT, "engine %s is in use", digest);
    if (b->removing_engine[0])
        return sp_error_set(err, SP_E_CONFLICT, "engine %s is being removed", b->removing_engine);
    for (const struct snapshot_entry *e = b->snapshots; e; e = e->next)
        if (e->engine_unknown)
            return sp_error_set(err, SP_E_CONFLICT, "the engine of snapshot %s is not known", e->key);
        else if (strcmp(e->engine, digest) == 0 && store_ops_is_copied(b, e->key))
            return sp_error_set(err, SP_E_CONFLICT, "snapshot %s is being copied", e->key);
    return 0;
}

/* --- requests ------------------------------------------------------------------------------------------------------ */

static json_t *describe(const struct broker *b, const char *digest) {
    _cleanup_engine_ struct engine e = {0};
    _cleanup_close_ int dir = -1;
    struct sp_error err = {0};
    uint64_t bytes = 0;

    if (engine_open(&b->layout, digest, "", &e, &dir, &err) < 0 && err.code == SP_E_NOT_FOUND)
        return NULL;
    for (size_t i = 0; i < e.n; i++)
        bytes += e.files[i].size;
    return json_pack("{s:s, s:s, s:I, s:i, s:i, s:b}", "engine", digest, "qemu_version", e.version, "bytes",
                     (json_int_t)bytes, "snapshots", (int)count_snapshots(b, digest), "vms", (int)count_vms(b, digest),
                     "current", (int)engine_ops_is_current(b, digest));
}

/* There are as many as upgrades that something is left of: few. */
void engine_ops_list(struct broker *b, const struct reply_to *to) {
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    json_t *list = json_array();
    int fd = openat(b->layout.engines, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        (void)close_fd(fd);
    while (dir && (entry = readdir(dir)) && json_array_size(list) < LIST_MAX) {
        json_t *row = engine_digest_is_valid(entry->d_name) ? describe(b, entry->d_name) : NULL;
        if (row)
            (void)json_array_append_new(list, row);
    }
    server_reply(b->server, to, json_pack("{s:o}", "engines", list));
}

struct removal {
    struct broker *broker;
    struct reply_to to;
};

static int remove_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct removal *rm = arg;
    const struct broker *b = rm->broker;
    int r = 0;

    (void)ret_result;
    for (const struct snapshot_entry *e = b->snapshots; e && r == 0; e = e->next)
        if (strcmp(e->engine, b->removing_engine) == 0)
            r = snapshot_remove(&b->layout, e->key, err);
    return r < 0 ? r : engine_remove(&b->layout, b->removing_engine, err);
}

static void forget_snapshots(struct broker *b) {
    struct snapshot_entry *next;
    for (struct snapshot_entry *e = b->snapshots; e; e = next) {
        next = e->next;
        if (strcmp(e->engine, b->removing_engine) != 0)
            continue;
        e->trust = TRUST_UNCHECKED;
        (void)store_ops_snapshot(b, e->key); /* forgets it when it is gone */
    }
}

static void remove_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct removal *rm = arg;
    struct broker *b = rm->broker;

    (void)result;
    if (error) {
        server_fail(b->server, &rm->to, error);
    } else {
        log_event(LOG_L_INFO, "engine_removed", "engine", b->removing_engine, NULL);
        server_reply(b->server, &rm->to, NULL);
    }
    forget_checked(b, b->removing_engine);
    forget_snapshots(b);
    b->removing_engine[0] = '\0';
    free(rm);
}

void engine_ops_remove(struct broker *b, const char *digest, const struct reply_to *to) {
    struct job_spec spec = {.name = "engine_remove",
                            .timeout_ms = REMOVE_TIMEOUT_MS,
                            .work = remove_work,
                            .done = remove_done};
    struct sp_error err = {0};
    struct removal *rm;

    if (check_unused(b, digest, &err) < 0) {
        server_fail(b->server, to, &err);
        return;
    }
    (void)text_copy(b->removing_engine, sizeof(b->removing_engine), digest);
    for (struct snapshot_entry *e = b->snapshots; e; e = e->next)
        if (strcmp(e->engine, digest) == 0)
            e->trust = TRUST_REMOVING;
    rm = calloc(1, sizeof(*rm));
    if (!rm)
        abort();
    *rm = (struct removal){.broker = b, .to = *to};
    spec.arg = rm;
    if (jobs_add(b->jobs, &spec, &err) < 0)
        remove_done(rm, NULL, &err);
}
