/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes report (spec/internal-api.md): read as a whole before anything is written. Fields we do not know are ignored:
 * a node may be newer than we are. */
#include "base/log.h"
#include "base/text.h"
#include "control/handlers.h"
#include "control/internal.h"
#include "control/render.h"
#include "model/limits.h"
#include "store/lifecycle.h"
#include "store/pools.h"
#include "store/snapshots.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SHORT 128
#define POOLS_MAX 256
#define TIMINGS_MAX 64
#define BYTES_MAX (1ull << 60)

/* Texts borrow from the body, timings are ours. */
struct report {
    struct request *rq;
    size_t n, n_removed, n_pools, n_snapshots;
    struct observed *items;
    const char **ids, **removed, **snapshots;
    char **timings; /* two a sandbox */
    struct pool_report *pools;
    bool has_capacity, has_garbage;
    struct node_capacity capacity;
    uint64_t garbage_snapshots, garbage_bytes;
    json_t *unknown, *settled;
    uint64_t accepted;
};

static void report_done(struct report *rep) {
    for (size_t i = 0; rep->timings && i < rep->n * 2; i++)
        free(rep->timings[i]);
    free(rep->items);
    free(rep->ids);
    free(rep->removed);
    free(rep->snapshots);
    free(rep->timings);
    free(rep->pools);
    json_decref(rep->unknown);
    json_decref(rep->settled);
}

static void *rows(size_t n, size_t size) {
    void *p = calloc(n + 1, size);
    if (!p)
        abort();
    return p;
}

/* ---- parts ---- */

int internal_read_ids(struct request *rq, const char *key, const char ***ret, size_t *ret_n) {
    json_t *array = NULL, *item;
    size_t i;
    int r = json_get_opt_array(rq->body, "", key, LIMIT_VALUE(observed_snapshots), &array, &rq->err);
    if (r < 0)
        return r;
    *ret = rows(json_array_size(array), sizeof(**ret));
    *ret_n = json_array_size(array);
    json_array_foreach (array, i, item) {
        const char *id = json_string_value(item);
        if (!id || !id_is(id, ID_SNAPSHOT))
            return sp_error_field(&rq->err, SP_E_INVALID, key, "%s.%zu must be the id of a snapshot", key, i);
        (*ret)[i] = id;
    }
    return 0;
}

/* {code, message} */
static int read_failure(struct request *rq, const json_t *of, const char *path, enum failure *ret,
                        const char **ret_message) {
    const char *code = "internal";
    json_t *error = NULL;
    char inner[80];
    int r = json_get_opt_object(of, path, "error", &error, &rq->err);
    (void)snprintf(inner, sizeof(inner), "%.70s.error", path);
    *ret_message = "";
    if (r == 0 && error)
        r = json_get_string(error, inner, "code", 1, SHORT, &code, &rq->err);
    if (r == 0 && error)
        r = json_get_opt_string(error, inner, "message", 0, 1024, "", ret_message, &rq->err);
    if (r == 0 && !failure_parse(code, ret))
        log_event(LOG_L_WARN, "unknown_failure_code", "code", code, NULL);
    if (*ret == FAILURE_NONE || *ret == FAILURE_SUPERSEDED || *ret == FAILURE_CHILDREN_FAILED)
        *ret = FAILURE_INTERNAL;
    return r;
}

static int read_timings(struct request *rq, const json_t *of, const char *path, char **mem, const char **ret) {
    json_t *timings = NULL;
    int r = json_get_opt_object(of, path, "timings", &timings, &rq->err);
    if (r == 0 && timings && json_object_size(timings) <= TIMINGS_MAX)
        *ret = *mem = json_print(timings);
    return r;
}

static int read_operation(struct request *rq, const json_t *item, const char *path, struct observed *o, char **mem) {
    json_t *operation = NULL;
    char inner[64];
    int r = json_get_opt_object(item, path, "operation", &operation, &rq->err);
    if (r < 0 || !operation)
        return r;
    (void)snprintf(inner, sizeof(inner), "%.50s.operation", path);
    r = json_get_string(operation, inner, "id", 1, 31, &o->operation_id, &rq->err);
    o->what.operation_failed = json_is_object(json_object_get(operation, "error"));
    if (r == 0 && o->what.operation_failed)
        r = read_failure(rq, operation, inner, &o->what.operation_failure, &o->operation_message);
    return r < 0 ? r : read_timings(rq, operation, inner, mem, &o->operation_timings);
}

static int read_snapshot(struct request *rq, const json_t *item, const char *path, struct observed_snapshot *x) {
    const struct {
        const char *key;
        uint64_t *ret;
    } sizes[] = {{"memory_bytes", &x->memory_bytes},
                 {"disk_bytes", &x->disk_bytes},
                 {"exclusive_bytes", &x->exclusive_bytes},
                 {"stall_us", &x->stall_us}};
    const char *state = NULL;
    json_t *snapshot = NULL;
    char inner[64];
    int r = json_get_opt_object(item, path, "snapshot", &snapshot, &rq->err);
    if (r < 0 || !snapshot)
        return r;
    (void)snprintf(inner, sizeof(inner), "%.50s.snapshot", path);
    r = json_get_string(snapshot, inner, "id", 1, 31, &x->id, &rq->err);
    if (r == 0 && !id_is(x->id, ID_SNAPSHOT))
        r = sp_error_field(&rq->err, SP_E_INVALID, "sandboxes.snapshot.id", "%s.id must be the id of a snapshot",
                           inner);
    if (r == 0)
        r = json_get_string(snapshot, inner, "state", 1, 16, &state, &rq->err);
    if (r == 0 && strcmp(state, "ready") != 0 && strcmp(state, "failed") != 0)
        r = sp_error_field(&rq->err, SP_E_INVALID, "sandboxes.snapshot.state", "%s.state must be ready or failed",
                           inner);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(sizes); i++)
        r = json_get_opt_u64(snapshot, inner, sizes[i].key, 0, BYTES_MAX, 0, sizes[i].ret, &rq->err);
    if (r < 0 || !state)
        return r;
    x->state = strcmp(state, "ready") == 0 ? SNAPSHOT_READY : SNAPSHOT_FAILED;
    x->message = "";
    return x->state == SNAPSHOT_FAILED ? read_failure(rq, snapshot, inner, &x->failure, &x->message) : 0;
}

/* RFC 3339 in UTC, as we write it ourselves. */
static bool parse_time(const char *text, int64_t *ret_ms) {
    struct tm tm = {0};
    int64_t ms = 0;
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest)
        return false;
    if (*rest == '.') {
        if (strspn(rest + 1, "0123456789") != 3)
            return false;
        ms = (rest[1] - '0') * 100 + (rest[2] - '0') * 10 + (rest[3] - '0');
        rest += 4;
    }
    *ret_ms = (int64_t)timegm(&tm) * 1000 + ms;
    return strcmp(rest, "Z") == 0 && *ret_ms > 0;
}

static int read_use(struct request *rq, const json_t *item, const char *path, struct observed *o) {
    const char *text = NULL;
    int r = json_get_opt_string(item, path, "active_at", 1, 40, NULL, &text, &rq->err);
    if (r == 0 && text && !parse_time(text, &o->active_ms))
        r = sp_error_field(&rq->err, SP_E_INVALID, "sandboxes.active_at", "%s.active_at must be a time in UTC", path);
    o->has_streams = json_object_get(item, "streams") != NULL;
    return r < 0 ? r : json_get_opt_u64(item, path, "streams", 0, 1u << 20, 0, &o->streams, &rq->err);
}

static int read_start_kind(struct request *rq, const json_t *item, const char *path, struct observed *o) {
    enum start_kind kind = START_NONE;
    int r = json_get_opt_string(item, path, "start_kind", 0, 16, NULL, &o->start_kind, &rq->err);
    if (r == 0 && o->start_kind && (!start_kind_parse(o->start_kind, &kind) || kind == START_NONE))
        o->start_kind = NULL;
    return r;
}

/* ---- one sandbox ---- */

static int read_state(struct request *rq, const json_t *item, const char *path, struct observed *o) {
    const char *state = NULL;
    int r = json_get_string(item, path, "id", 1, 31, &o->id, &rq->err);
    if (r == 0 && !id_is(o->id, ID_SANDBOX))
        r = sp_error_field(&rq->err, SP_E_INVALID, "sandboxes.id", "%s.id must be the id of a sandbox", path);
    if (r == 0)
        r = json_get_u64(item, path, "generation", 1, INT64_MAX, &o->generation, &rq->err);
    if (r == 0)
        r = json_get_string(item, path, "state", 1, 32, &state, &rq->err);
    if (r == 0 && !observed_state_parse(state, &o->what.state))
        r = sp_error_field(&rq->err, SP_E_INVALID, "sandboxes.state",
                           "%s.state must be creating, running, paused, suspended, failed or deleted", path);
    if (r == 0)
        r = json_get_opt_bool(item, path, "ready", false, &o->what.ready, &rq->err);
    o->message = "";
    return r == 0 && o->what.state == OBSERVED_FAILED ? read_failure(rq, item, path, &o->what.failure, &o->message) : r;
}

static int read_item(struct request *rq, const json_t *item, size_t i, struct report *rep) {
    struct observed *o = &rep->items[i];
    char path[64];
    (void)snprintf(path, sizeof(path), "sandboxes.%zu", i);
    int r = read_state(rq, item, path, o);
    if (r == 0)
        r = json_get_opt_string(item, path, "accelerator", 0, SHORT, NULL, &o->accelerator, &rq->err);
    if (r == 0)
        r = json_get_opt_string(item, path, "kernel", 0, SHORT, NULL, &o->kernel, &rq->err);
    if (r == 0)
        r = json_get_opt_string(item, path, "vmm", 0, SHORT, NULL, &o->vmm, &rq->err);
    if (r == 0)
        r = read_timings(rq, item, path, &rep->timings[2 * i], &o->timings);
    if (r == 0)
        r = read_operation(rq, item, path, o, &rep->timings[2 * i + 1]);
    if (r == 0)
        r = read_snapshot(rq, item, path, &o->snapshot);
    if (r == 0)
        r = read_start_kind(rq, item, path, o);
    if (r == 0)
        r = read_use(rq, item, path, o);
    rep->ids[i] = o->id;
    if (r == 0 && o->snapshot.id)
        rep->snapshots[rep->n_snapshots++] = o->snapshot.id;
    return r;
}

/* ---- the whole ---- */

static int read_pool(struct request *rq, const json_t *item, size_t i, struct pool_report *p) {
    const struct {
        const char *key;
        uint64_t *ret;
    } numbers[] = {{"warm", &p->warm},
                   {"filling", &p->filling},
                   {"target", &p->target},
                   {"hits", &p->hits},
                   {"misses", &p->misses}};
    char path[64];
    (void)snprintf(path, sizeof(path), "pools.%zu", i);
    int r = json_get_string(item, path, "pool_id", 1, 31, &p->pool_id, &rq->err);
    for (size_t k = 0; r == 0 && k < ARRAY_SIZE(numbers); k++)
        r = json_get_opt_u64(item, path, numbers[k].key, 0, INT64_MAX, 0, numbers[k].ret, &rq->err);
    return r;
}

static int read_pools(struct request *rq, struct report *rep) {
    json_t *array = NULL;
    int r = json_get_opt_array(rq->body, "", "pools", POOLS_MAX, &array, &rq->err);
    if (r < 0)
        return r;
    rep->n_pools = json_array_size(array);
    rep->pools = rows(rep->n_pools, sizeof(*rep->pools));
    for (size_t i = 0; r == 0 && i < rep->n_pools; i++)
        r = read_pool(rq, json_array_get(array, i), i, &rep->pools[i]);
    return r;
}

static int read_garbage(struct request *rq, struct report *rep) {
    json_t *garbage = NULL;
    int r = json_get_opt_object(rq->body, "", "garbage", &garbage, &rq->err);
    if (r < 0 || !garbage)
        return r;
    rep->has_garbage = true;
    r = json_get_opt_u64(garbage, "garbage", "snapshots", 0, BYTES_MAX, 0, &rep->garbage_snapshots, &rq->err);
    return r < 0 ? r : json_get_opt_u64(garbage, "garbage", "bytes", 0, BYTES_MAX, 0, &rep->garbage_bytes, &rq->err);
}

static int read_report(struct request *rq, struct report *rep) {
    json_t *array = NULL;
    int r = json_get_opt_array(rq->body, "", "sandboxes", LIMIT_VALUE(observed_sandboxes), &array, &rq->err);
    if (r < 0)
        return r;
    rep->rq = rq;
    rep->n = json_array_size(array);
    rep->items = rows(rep->n, sizeof(*rep->items));
    rep->ids = rows(rep->n, sizeof(*rep->ids));
    rep->snapshots = rows(rep->n, sizeof(*rep->snapshots));
    rep->timings = rows(rep->n * 2, sizeof(*rep->timings));
    for (size_t i = 0; r == 0 && i < rep->n; i++)
        r = read_item(rq, json_array_get(array, i), i, rep);
    if (r == 0)
        r = internal_read_ids(rq, "snapshots_removed", &rep->removed, &rep->n_removed);
    if (r == 0)
        r = read_pools(rq, rep);
    if (r == 0)
        r = read_garbage(rq, rep);
    rep->has_capacity = json_is_object(json_object_get(rq->body, "capacity"));
    if (r == 0 && rep->has_capacity)
        r = internal_read_capacity(rq, rq->body, &rep->capacity);
    return r;
}

static int apply_sandboxes(struct store *s, struct report *rep, const char *node_id, bool *ret_poke,
                           struct sp_error *err) {
    _cleanup_result_ struct store_result *locked = NULL;
    int r = lifecycle_lock_observed(s, node_id, rep->ids, rep->n, &locked, err);
    for (size_t i = 0; r == 0 && i < rep->n; i++) {
        const struct observed *o = &rep->items[i];
        enum observed_fit fit = OBSERVED_UNKNOWN;
        if (o->snapshot.id)
            r = snapshot_settle(s, node_id, o->id, &o->snapshot, err);
        if (r == 0)
            r = lifecycle_observe(s, locked, node_id, o, &fit, ret_poke, err);
        if (r == 0 && fit == OBSERVED_UNKNOWN)
            (void)json_array_append_new(rep->unknown, json_string(o->id));
        rep->accepted += r == 0 && fit == OBSERVED_FITS;
    }
    return r;
}

static int apply_rest(struct store *s, struct report *rep, const char *node_id, struct sp_error *err) {
    int r = 0;
    if (rep->n_removed > 0)
        r = snapshots_removed(s, node_id, rep->removed, rep->n_removed, err);
    for (size_t i = 0; r == 0 && i < rep->n_pools; i++)
        r = pool_report(s, node_id, &rep->pools[i], err);
    if (r == 0 && rep->has_garbage)
        r = node_set_garbage(s, node_id, rep->garbage_snapshots, rep->garbage_bytes, err);
    if (r == 0 && rep->has_capacity)
        r = node_set_capacity(s, node_id, &rep->capacity, err);
    return r;
}

static int apply_report(struct store *s, void *ctx, struct sp_error *err) {
    struct report *rep = ctx;
    _cleanup_result_ struct store_result *res = NULL;
    const char *node_id = request_param(rep->rq, "node_id"), *settled = NULL;
    bool poke = rep->n_removed > 0;
    json_decref(rep->unknown);
    json_decref(rep->settled);
    rep->unknown = json_array();
    rep->settled = json_array();
    rep->accepted = 0;
    int r = apply_sandboxes(s, rep, node_id, &poke, err);
    if (r == 0)
        r = apply_rest(s, rep, node_id, err);
    if (r == 0 && rep->n_snapshots > 0) {
        r = snapshots_settled(s, rep->snapshots, rep->n_snapshots, &res, &settled, err);
        rep->settled = json_of_text(settled, rep->settled);
    }
    if (r == 0)
        r = node_heard(s, node_id, err);
    return r == 0 && poke ? node_poke(s, node_id, err) : r;
}

int handle_observed(struct request *rq) {
    struct report rep = {0};
    int r = read_report(rq, &rep);
    if (r == 0)
        r = store_transaction(rq->db, true, apply_report, &rep, &rq->err);
    if (r == 0) {
        rq->answer = json_object();
        put_int(rq->answer, "accepted", (int64_t)rep.accepted);
        put_new(rq->answer, "unknown", TAKE_PTR(rep.unknown));
        put_new(rq->answer, "settled", TAKE_PTR(rep.settled));
        rq->status = 200;
    }
    report_done(&rep);
    return r;
}
