/* SPDX-License-Identifier: Apache-2.0 */
/* Copying, measuring and listing snapshots: all of it jobs, because where a file is takes the file system a while to say. */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/snapshot.h"
#include "broker/snapshot_copy.h"
#include "broker/store_ops.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#define COPY_TIMEOUT_MS 120000
#define STAT_TIMEOUT_MS 60000
#define LIST_TIMEOUT_MS 300000
#define LIST_MAX 200
#define PACK_TIMEOUT_MS 600000
#define PACK_NICE 10
#define SCATTERED 8000 /* extents: a clone of so many takes 20 ms */

struct copy_op {
    struct broker *broker;
    char from[BROKER_KEY_SIZE], to[BROKER_KEY_SIZE]; /* stat: from alone; list: to is `after` */
    json_t *manifest;
    struct reply_to reply;
    struct sp_error failure;
    struct copy_op *next; /* while it is in broker->copies */
};

static struct copy_op *op_new(struct broker *b, const char *from, const char *to, const struct reply_to *reply) {
    struct copy_op *op = calloc(1, sizeof(*op));
    if (!op)
        abort();
    *op = (struct copy_op){.broker = b, .reply = *reply};
    (void)text_copy(op->from, sizeof(op->from), from);
    (void)text_copy(op->to, sizeof(op->to), to);
    return op;
}

static void op_free(struct copy_op *op) {
    for (struct copy_op **at = &op->broker->copies; *at; at = &(*at)->next)
        if (*at == op) {
            *at = op->next;
            break;
        }
    json_decref(op->manifest);
    free(op);
}

bool store_ops_is_made(const struct broker *b, const char *key) {
    for (const struct copy_op *op = b->copies; op; op = op->next)
        if (strcmp(op->to, key) == 0)
            return true;
    for (const struct vm *vm = b->vms.first; vm; vm = vm->next)
        if (strcmp(vm->seal_key, key) == 0)
            return true;
    return false;
}

bool store_ops_is_copied(const struct broker *b, const char *key) {
    for (const struct copy_op *op = b->copies; op; op = op->next)
        if (strcmp(op->from, key) == 0)
            return true;
    return false;
}

static void run(struct copy_op *op, const char *name, uint64_t timeout_ms,
                int (*work)(void *arg, json_t **ret_result, struct sp_error *err),
                void (*done)(void *arg, const json_t *result, const struct sp_error *error)) {
    const struct job_spec spec = {.name = name, .timeout_ms = timeout_ms, .arg = op, .work = work, .done = done};
    struct sp_error err = {0};

    if (jobs_add(op->broker->jobs, &spec, &err) < 0)
        done(op, NULL, &err);
}

/* Hands the job's result on as it is. */
static void reply_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct copy_op *op = arg;
    if (error)
        server_fail(op->broker->server, &op->reply, error);
    else
        server_reply(op->broker->server, &op->reply, json_deep_copy(result));
    op_free(op);
}

/* --- sizes ---------------------------------------------------------------------------------------------------------- */

static int stat_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct copy_op *op = arg;
    struct snapshot_size size;
    int r = snapshot_size(&op->broker->layout, op->from, &size, err);
    if (r == 0)
        *ret_result = json_pack("{s:I, s:I, s:I, s:I}", "memory_bytes", (json_int_t)size.memory_bytes, "disk_bytes",
                                (json_int_t)size.disk_bytes, "exclusive_bytes", (json_int_t)size.exclusive_bytes,
                                "shared_bytes", (json_int_t)size.shared_bytes);
    return r;
}

void store_ops_stat(struct broker *b, const char *key, const struct reply_to *to) {
    run(op_new(b, key, "", to), "snapshot_stat", STAT_TIMEOUT_MS, stat_work, reply_done);
}

/* Whoever was told nothing may have been cut off before the name was durable. */
static int existing_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct copy_op *op = arg;
    const struct layout *layout = &op->broker->layout;
    struct snapshot_size size;
    int r = fsync(layout->snapshots) < 0 ? sp_error_errno(err, errno, "fsync", "snapshots") : 0;

    if (r == 0)
        r = snapshot_size(layout, op->from, &size, err);
    if (r == 0)
        *ret_result =
            json_pack("{s:b, s:I, s:I, s:I, s:i, s:i, s:{}}", "existed", true, "memory_bytes",
                      (json_int_t)size.memory_bytes, "disk_bytes", (json_int_t)size.disk_bytes, "exclusive_bytes",
                      (json_int_t)size.exclusive_bytes, "pages", 0, "stall_us", 0, "timings_us");
    return r;
}

void store_ops_stat_existing(struct broker *b, const char *key, const struct reply_to *to) {
    run(op_new(b, key, "", to), "snapshot_stat", STAT_TIMEOUT_MS, existing_work, reply_done);
}

/* --- the list ------------------------------------------------------------------------------------------------------- */

/* The LIST_MAX first names behind `after`, in order; *ret_more: there are others. */
static int collect_names(const struct copy_op *op, char (*names)[BROKER_KEY_SIZE], size_t *ret_n, bool *ret_more,
                         struct sp_error *err) {
    const struct layout *layout = &op->broker->layout;
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    size_t n = 0;
    int fd = openat(layout->snapshots, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)close_fd(fd);
        return sp_error_errno(err, errno, "opendir", "snapshots");
    }
    while ((entry = readdir(dir))) {
        const char *name = entry->d_name;
        size_t at = n;
        if (!request_key_is_sandboxes(name) || strcmp(name, op->to) <= 0 || !snapshot_exists(layout, name))
            continue;
        while (at > 0 && strcmp(names[at - 1], name) > 0)
            at--;
        *ret_more = *ret_more || n == LIST_MAX;
        if (at == LIST_MAX)
            continue;
        n -= n == LIST_MAX;
        memmove(names[at + 1], names[at], (n - at) * sizeof(names[0]));
        (void)text_copy(names[at], sizeof(names[at]), name);
        n++;
    }
    *ret_n = n;
    return 0;
}

static int list_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct copy_op *op = arg;
    char(*names)[BROKER_KEY_SIZE] = calloc(LIST_MAX + 1, sizeof(*names));
    json_t *list = json_array();
    bool more = false;
    size_t n = 0;
    int r = names ? collect_names(op, names, &n, &more, err) : sp_error_set(err, SP_E_INTERNAL, "out of memory");

    for (size_t i = 0; i < n && r == 0; i++) {
        struct snapshot_size size;
        /* One that is gone meanwhile is none. */
        if (snapshot_size(&op->broker->layout, names[i], &size, NULL) == 0)
            (void)json_array_append_new(list, json_pack("{s:s, s:I}", "snapshot", names[i], "exclusive_bytes",
                                                        (json_int_t)size.exclusive_bytes));
    }
    free(names);
    if (r == 0)
        *ret_result = json_pack("{s:O, s:b}", "snapshots", list, "more", more);
    json_decref(list);
    return r;
}

void store_ops_list_snapshots(struct broker *b, const char *after, const struct reply_to *to) {
    run(op_new(b, "", after, to), "snapshot_list", LIST_TIMEOUT_MS, list_work, reply_done);
}

/* --- copies --------------------------------------------------------------------------------------------------------- */

static int undo_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct copy_op *op = arg;
    (void)ret_result;
    return snapshot_copy_undo(&op->broker->layout, op->to, err);
}

static void undo_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct copy_op *op = arg;
    (void)result;
    if (error)
        log_error(LOG_L_ERROR, "snapshot_copy_not_undone", error, "snapshot", op->to, NULL);
    server_fail(op->broker->server, &op->reply, &op->failure);
    op_free(op);
}

static int copy_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct copy_op *op = arg;
    const struct snapshot_copy copy = {.layout = &op->broker->layout,
                                       .from = op->from,
                                       .to = op->to,
                                       .node_manifest = op->manifest};
    struct snapshot_size size;
    int r = snapshot_copy(&copy, err);

    if (r == 0)
        r = snapshot_size(&op->broker->layout, op->to, &size, err);
    if (r == 0)
        *ret_result =
            json_pack("{s:b, s:I, s:I, s:I}", "existed", false, "memory_bytes", (json_int_t)size.memory_bytes,
                      "disk_bytes", (json_int_t)size.disk_bytes, "exclusive_bytes", (json_int_t)size.exclusive_bytes);
    return r;
}

static void copy_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct copy_op *op = arg;
    struct broker *b = op->broker;
    const struct snapshot_entry *from = store_ops_snapshot(b, op->from);

    if (error) {
        op->failure = *error;
        run(op, "snapshot_copy_undo", STAT_TIMEOUT_MS, undo_work, undo_done);
        return;
    }
    if (from && from->trust == TRUST_GOOD)
        store_ops_sealed(b, op->to);
    else
        (void)store_ops_snapshot(b, op->to);
    log_event(LOG_L_INFO, "snapshot_copied", "snapshot", op->to, "from", op->from, NULL);
    reply_done(op, result, NULL);
}

static int check_copy(struct broker *b, const struct request *request, struct sp_error *err) {
    const struct snapshot_entry *from = store_ops_snapshot(b, request->snapshot);

    if (!from)
        return sp_error_field(err, SP_E_NOT_FOUND, "snapshot", "there is no snapshot %s", request->snapshot);
    if (from->trust == TRUST_REMOVING)
        return sp_error_set(err, SP_E_CONFLICT, "snapshot %s is being removed", request->snapshot);
    if (from->trust == TRUST_BROKEN) {
        *err = from->why;
        return -(int)err->code;
    }
    if (store_ops_is_made(b, request->to))
        return sp_error_set(err, SP_E_CONFLICT, "snapshot %s is being made", request->to);
    return 0;
}

void store_ops_copy(struct broker *b, struct request *request, const struct reply_to *to) {
    const struct snapshot_entry *existing = store_ops_snapshot(b, request->to);
    struct sp_error err = {0};
    struct copy_op *op;

    if (existing && existing->trust == TRUST_REMOVING)
        (void)sp_error_set(&err, SP_E_CONFLICT, "snapshot %s is being removed", request->to);
    else if (!existing)
        (void)check_copy(b, request, &err);
    if (err.code != SP_OK) {
        server_fail(b->server, to, &err);
        return;
    }
    if (existing) {
        store_ops_stat_existing(b, request->to, to);
        return;
    }
    op = op_new(b, request->snapshot, request->to, to);
    op->manifest = TAKE_PTR(request->manifest);
    op->next = b->copies;
    b->copies = op;
    run(op, "snapshot_copy", COPY_TIMEOUT_MS, copy_work, copy_done);
}

/* --- packing -------------------------------------------------------------------------------------------------------- */

void store_ops_note_extents(struct broker *b, const char *key, uint64_t extents) {
    struct snapshot_entry *e = extents > SCATTERED ? store_ops_snapshot(b, key) : NULL;
    if (e)
        e->scattered = true;
}

static int pack_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct copy_op *op = arg;
    (void)ret_result;
    (void)setpriority(PRIO_PROCESS, 0, PACK_NICE);
    return snapshot_pack(&op->broker->layout, op->from, err);
}

static void pack_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct copy_op *op = arg;
    struct broker *b = op->broker;

    (void)result;
    if (error)
        log_error(LOG_L_WARN, "snapshot_not_packed", error, "snapshot", op->from, NULL);
    else
        log_event(LOG_L_INFO, "snapshot_packed", "snapshot", op->from, NULL);
    op_free(op);
    b->packing = false;
    store_ops_pack_next(b);
}

void store_ops_pack_next(struct broker *b) {
    for (struct snapshot_entry *e = b->snapshots; e && !b->packing; e = e->next)
        if (e->scattered && e->trust == TRUST_GOOD && !vm_table_uses_snapshot(&b->vms, e->key) &&
            !store_ops_is_copied(b, e->key)) {
            e->scattered = false; /* tried once */
            b->packing = true;
            run(op_new(b, e->key, "", &(struct reply_to){0}), "snapshot_pack", PACK_TIMEOUT_MS, pack_work, pack_done);
            return;
        }
}
