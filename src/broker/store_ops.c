/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which snapshots may be loaded, and the removal of snapshots and templates. A snapshot is hashed whole once in a
 * broker's life, in the background after the start and before its first use at the latest; one that this broker sealed
 * was hashed then.
 */
#include "broker/store_ops.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/snapshot.h"
#include "broker/vm_ops.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#define CHECK_TIMEOUT_MS 600000
#define BACKGROUND_NICE 10
#define REMOVE_TIMEOUT_MS 120000
#define LIST_MAX 200 /* of each kind in one reply */

/* What a job of this file works on; freed when it is done. */
struct store_job {
    struct broker *broker;
    char key[BROKER_KEY_SIZE];
    char digest[SHA256_HEX_SIZE];
    bool in_background; /* nobody waits for it */
    struct reply_to to;
};

static struct store_job *store_job_new(struct broker *b, const char *key, const char *digest,
                                       const struct reply_to *to) {
    struct store_job *job = calloc(1, sizeof(*job));
    if (!job)
        abort();
    job->broker = b;
    (void)text_copy(job->key, sizeof(job->key), key);
    (void)text_copy(job->digest, sizeof(job->digest), digest);
    if (to)
        job->to = *to;
    return job;
}

static struct snapshot_entry *find_entry(const struct broker *b, const char *key) {
    for (struct snapshot_entry *e = b->snapshots; e; e = e->next)
        if (strcmp(e->key, key) == 0)
            return e;
    return NULL;
}

static struct snapshot_entry *add_entry(struct broker *b, const char *key) {
    struct snapshot_entry *e = calloc(1, sizeof(*e));
    struct sp_error err = {0};
    if (!e)
        abort();
    (void)text_copy(e->key, sizeof(e->key), key);
    if (snapshot_engine(&b->layout, key, e->engine, e->qemu_version, &err) < 0) {
        e->engine_unknown = err.code != SP_E_NOT_FOUND;
        log_error(LOG_L_WARN, "snapshot_engine_unknown", &err, "snapshot", key, NULL);
    }
    e->next = b->snapshots;
    b->snapshots = e;
    return e;
}

static void forget_entry(struct broker *b, const char *key) {
    for (struct snapshot_entry **at = &b->snapshots; *at; at = &(*at)->next)
        if (strcmp((*at)->key, key) == 0) {
            struct snapshot_entry *e = *at;
            *at = e->next;
            free(e);
            return;
        }
}

void store_ops_free(struct broker *b) {
    while (b->snapshots)
        forget_entry(b, b->snapshots->key);
}

struct snapshot_entry *store_ops_snapshot(struct broker *b, const char *key) {
    struct snapshot_entry *e = find_entry(b, key);
    if (e && e->trust == TRUST_REMOVING)
        return e;
    if (!snapshot_exists(&b->layout, key)) {
        forget_entry(b, key);
        return NULL;
    }
    return e ? e : add_entry(b, key);
}

/* --- checking ------------------------------------------------------------------------------------------------------ */

static int check_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct store_job *job = arg;
    (void)ret_result;
    if (job->in_background)
        (void)setpriority(PRIO_PROCESS, 0, BACKGROUND_NICE);
    return snapshot_check(&job->broker->layout, job->key, SNAPSHOT_FULL, err);
}

static void check_done(void *arg, const json_t *result, const struct sp_error *error);

static void check(struct broker *b, struct snapshot_entry *e, bool in_background) {
    struct store_job *job;
    struct job_spec spec = {.name = "snapshot_check",
                            .timeout_ms = CHECK_TIMEOUT_MS,
                            .work = check_work,
                            .done = check_done};
    struct sp_error err = {0};

    if (e->trust != TRUST_UNCHECKED)
        return;
    e->trust = TRUST_CHECKING;
    e->tried = true;
    spec.arg = job = store_job_new(b, e->key, "", NULL);
    job->in_background = in_background;
    if (jobs_add(b->jobs, &spec, &err) < 0) {
        free(job);
        e->trust = TRUST_UNCHECKED;
        e->why = err;
        vm_ops_snapshot_checked(b, e);
    }
}

void store_ops_check(struct broker *b, struct snapshot_entry *e) {
    check(b, e, false);
}

/* One after the other: a check ends by starting the next. */
static void check_next(struct broker *b) {
    for (struct snapshot_entry *e = b->snapshots; e; e = e->next)
        if (e->trust == TRUST_UNCHECKED && !e->tried) {
            check(b, e, true);
            return;
        }
}

static void check_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct store_job *job = arg;
    struct broker *b = job->broker;
    struct snapshot_entry *e = find_entry(b, job->key);

    (void)result;
    free(job);
    if (e && e->trust == TRUST_CHECKING) {
        e->trust = !error ? TRUST_GOOD : error->code == SP_E_CORRUPT ? TRUST_BROKEN : TRUST_UNCHECKED;
        e->why = error ? *error : (struct sp_error){0};
        if (error)
            log_error(LOG_L_ERROR, "snapshot_not_trusted", error, "snapshot", e->key, NULL);
        vm_ops_snapshot_checked(b, e);
    }
    check_next(b);
}

static int for_each_name(int parent, void (*fn)(void *ctx, const char *name), void *ctx, struct sp_error *err) {
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)close_fd(fd);
        return sp_error_errno(err, errno, "opendir", "store");
    }
    while ((entry = readdir(dir)))
        fn(ctx, entry->d_name);
    return 0;
}

static void note_snapshot(void *ctx, const char *name) {
    if (request_key_is_valid(name))
        (void)store_ops_snapshot(ctx, name);
}

void store_ops_check_all(struct broker *b) {
    (void)for_each_name(b->layout.snapshots, note_snapshot, b, NULL);
    check_next(b);
}

void store_ops_sealed(struct broker *b, const char *key) {
    struct snapshot_entry *e = store_ops_snapshot(b, key);
    if (e && e->trust == TRUST_UNCHECKED)
        e->trust = TRUST_GOOD;
}

/* --- removal ------------------------------------------------------------------------------------------------------- */

static int remove_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct store_job *job = arg;
    (void)ret_result;
    return snapshot_remove(&job->broker->layout, job->key, err);
}

static void remove_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct store_job *job = arg;
    struct broker *b = job->broker;
    struct snapshot_entry *e = find_entry(b, job->key);

    (void)result;
    if (error) {
        if (e)
            e->trust = TRUST_UNCHECKED;
        server_fail(b->server, &job->to, error);
    } else {
        forget_entry(b, job->key);
        log_event(LOG_L_INFO, "snapshot_removed", "snapshot", job->key, NULL);
        server_reply(b->server, &job->to, NULL);
    }
    free(job);
}

void store_ops_remove_snapshot(struct broker *b, const char *key, const struct reply_to *to) {
    struct job_spec spec = {.name = "snapshot_remove",
                            .timeout_ms = REMOVE_TIMEOUT_MS,
                            .work = remove_work,
                            .done = remove_done};
    struct snapshot_entry *e = store_ops_snapshot(b, key);
    struct sp_error err = {0};

    if (vm_table_uses_snapshot(&b->vms, key) || store_ops_is_copied(b, key) || store_ops_is_made(b, key))
        (void)sp_error_set(&err, SP_E_CONFLICT, "snapshot %s is in use", key);
    else if (e && e->trust == TRUST_REMOVING)
        (void)sp_error_set(&err, SP_E_CONFLICT, "snapshot %s is being removed", key);
    if (err.code != SP_OK) {
        server_fail(b->server, to, &err);
        return;
    }
    if (!e) {
        server_reply(b->server, to, NULL);
        return;
    }
    e->trust = TRUST_REMOVING;
    spec.arg = store_job_new(b, key, "", to);
    if (jobs_add(b->jobs, &spec, &err) < 0)
        remove_done(spec.arg, NULL, &err);
}

struct template_removal {
    const struct store_job *job;
    int result;
    struct sp_error *err;
};

static void remove_if_of_template(void *ctx, const char *name) {
    struct template_removal *rm = ctx;
    const struct layout *layout = &rm->job->broker->layout;
    char digest[SHA256_HEX_SIZE];

    if (rm->result < 0 || !request_hex_is_valid(name, BROKER_KEY_SIZE - 1)) /* a sandbox's snapshots stay */
        return;
    if (snapshot_template(layout, name, digest, NULL) == 0 && strcmp(digest, rm->job->digest) == 0)
        rm->result = snapshot_remove(layout, name, rm->err);
}

static int remove_template_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct store_job *job = arg;
    const struct layout *layout = &job->broker->layout;
    struct template_removal rm = {.job = job, .err = err};
    _cleanup_close_ int dir = -1;
    int r = for_each_name(layout->snapshots, remove_if_of_template, &rm, err);

    (void)ret_result;
    if (r == 0)
        r = rm.result;
    if (r < 0)
        return r;
    dir = openat(layout->templates, job->digest, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir >= 0 && unlinkat(dir, LAYOUT_MANIFEST, 0) < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "unlink", "manifest of template %s", job->digest);
    return dir_remove_tree(layout->templates, job->digest, err);
}

static void remove_template_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct store_job *job = arg;
    struct broker *b = job->broker;
    struct snapshot_entry *next;

    (void)result;
    b->removing_template[0] = '\0';
    for (struct snapshot_entry *e = b->snapshots; e; e = next) {
        next = e->next;
        (void)store_ops_snapshot(b, e->key); /* forgets it when it is gone */
    }
    if (error) {
        server_fail(b->server, &job->to, error);
    } else {
        log_event(LOG_L_INFO, "template_removed", "template", job->digest, NULL);
        server_reply(b->server, &job->to, NULL);
    }
    free(job);
}

void store_ops_remove_template(struct broker *b, const char *digest, const struct reply_to *to) {
    struct job_spec spec = {.name = "template_remove",
                            .timeout_ms = REMOVE_TIMEOUT_MS,
                            .work = remove_template_work,
                            .done = remove_template_done};
    struct sp_error err = {0};

    if (vm_table_uses_template(&b->vms, digest))
        (void)sp_error_set(&err, SP_E_CONFLICT, "template %s is in use", digest);
    else if (b->removing_template[0])
        (void)sp_error_set(&err, SP_E_CONFLICT, "template %s is being removed", b->removing_template);
    if (err.code != SP_OK) {
        server_fail(b->server, to, &err);
        return;
    }
    (void)text_copy(b->removing_template, sizeof(b->removing_template), digest);
    spec.arg = store_job_new(b, "", digest, to);
    if (jobs_add(b->jobs, &spec, &err) < 0)
        remove_template_done(spec.arg, NULL, &err);
}

/* --- listing ------------------------------------------------------------------------------------------------------- */

struct listing {
    const struct layout *layout;
    json_t *templates, *snapshots;
    bool more;
};

static void list_name(struct listing *list, json_t *array, const char *name) {
    if (json_array_size(array) == LIST_MAX)
        list->more = true;
    else
        (void)json_array_append_new(array, json_string(name));
}

static void list_template(void *ctx, const char *name) {
    struct listing *list = ctx;
    char path[SHA256_HEX_SIZE + 16];

    if (request_hex_is_valid(name, SHA256_HEX_SIZE - 1) &&
        text_printf(path, sizeof(path), "%s/" LAYOUT_MANIFEST, name) &&
        faccessat(list->layout->templates, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        list_name(list, list->templates, name);
}

static void list_snapshot(void *ctx, const char *name) {
    struct listing *list = ctx;
    if (request_hex_is_valid(name, BROKER_KEY_SIZE - 1) && snapshot_exists(list->layout, name))
        list_name(list, list->snapshots, name);
}

void store_ops_list(struct broker *b, const struct reply_to *to) {
    struct listing list = {.layout = &b->layout, .templates = json_array(), .snapshots = json_array()};
    struct sp_error err = {0};
    int r = for_each_name(b->layout.templates, list_template, &list, &err);

    if (r == 0)
        r = for_each_name(b->layout.snapshots, list_snapshot, &list, &err);
    if (r < 0) {
        json_decref(list.templates);
        json_decref(list.snapshots);
        server_fail(b->server, to, &err);
        return;
    }
    server_reply(b->server, to,
                 json_pack("{s:o, s:o, s:b}", "templates", list.templates, "snapshots", list.snapshots, "more",
                           list.more));
}
