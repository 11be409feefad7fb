/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes report, applied: the meaning is plan_observe()'s, this file reads what is recorded and writes the effect. */
#include "base/buf.h"
#include "store/lifecycle.h"
#include "store/lifecycle_internal.h"
#include "store/pg.h"
#include "store/sessions.h"
#include "store/snapshots.h"
#include <string.h>

/* Columns of a locked row. */
enum {
    C_ID,
    C_STATE,
    C_READY,
    C_NODE,
    C_RELEASED,
    C_GENERATION,
    C_OPERATION,
    C_KIND,
    C_OPERATION_STATE,
    C_FROM,
    C_SNAPSHOT,
    C_SNAPSHOT_STATE,
    C_SNAPSHOT_ERROR,
    C_STREAMS,
    C_ACTIVE,
    C_START
};
#define ACTIVE_STEP_MS 1000 /* how exactly a node's active_at is kept */

/* A text array literal of ids: they have been checked to hold nothing that would need quoting. */
static bool ids_literal(struct buf *out, const char *const *ids, size_t n) {
    (void)buf_append_byte(out, '{');
    for (size_t i = 0; i < n; i++)
        (void)buf_printf(out, "%s%s", i ? "," : "", ids[i]);
    (void)buf_append_byte(out, '}');
    return !out->failed;
}

int lifecycle_lock_observed(struct store *s, const char *node_id, const char *const *ids, size_t n,
                            struct store_result **ret_res, struct sp_error *err) {
    _cleanup_buf_ struct buf list = {0};
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    buf_init(&list, 1 << 20);
    if (!ids_literal(&list, ids, n))
        return sp_error_set(err, SP_E_TOO_LARGE, "too many sandboxes in one report");
    pg_text(&a, list.data);
    /* A lock that had to wait sees the new row of its own table, but the old ones of those joined to it: so it comes
     * first, in a statement of its own, here and wherever a locked row is read together with others. */
    int r = pg_queue(s, "SELECT 1 FROM sandboxes WHERE id = ANY($1::text[]) ORDER BY id FOR NO KEY UPDATE", &a, err);
    if (r < 0)
        return r;
    pg_text(&a, node_id);
    r = pg_run(
        s,
        "SELECT b.id, b.state, b.ready, b.node_id, b.released_at IS NOT NULL, b.generation, b.operation_id, "
        "o.kind, o.state, o.from_state, x.id, x.state, x.error_code, b.streams, " PG_MS(
            "b.node_active_at") ", b.start_snapshot_id FROM nodes n LEFT JOIN sandboxes b ON b.id = ANY($1::text[]) "
                                "LEFT JOIN operations o ON o.id = b.operation_id LEFT JOIN snapshots x ON "
                                "x.operation_id = o.id "
                                "WHERE n.id = $2",
        &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "node %s has not registered", node_id);
    *ret_res = TAKE_PTR(res);
    return 0;
}

static int find(const struct store_result *locked, const char *id) {
    for (int i = 0; i < pg_rows(locked); i++)
        if (strcmp(pg_get_text(locked, i, C_ID), id) == 0)
            return i;
    return -1;
}

static int read_row(const struct store_result *locked, int row, struct plan_sandbox *ret,
                    enum operation_state *ret_operation_state, struct sp_error *err) {
    *ret = (struct plan_sandbox){.has_node = true,
                                 .is_released = pg_get_bool(locked, row, C_RELEASED),
                                 .from = SANDBOX_CREATING,
                                 .has_operation = pg_get(locked, row, C_OPERATION) != NULL};
    *ret_operation_state = OPERATION_PENDING;
    if (!sandbox_state_parse(pg_get_text(locked, row, C_STATE), &ret->state))
        return pg_corrupt(err, "sandbox state");
    if (ret->has_operation &&
        (!operation_kind_parse(pg_get_text(locked, row, C_KIND), &ret->operation) ||
         !operation_state_parse(pg_get_text(locked, row, C_OPERATION_STATE), ret_operation_state) ||
         (pg_get(locked, row, C_FROM) && !sandbox_state_parse(pg_get_text(locked, row, C_FROM), &ret->from))))
        return pg_corrupt(err, "operation");
    return 0;
}

/* The report as the plan sees it: of the operation on its way and its snapshot only, with what was recorded before. */
static int read_observation(const struct store_result *locked, int row, const struct observed *o,
                            struct observation *ret, struct sp_error *err) {
    const char *operation = pg_get(locked, row, C_OPERATION), *snapshot = pg_get(locked, row, C_SNAPSHOT);
    *ret = o->what;
    ret->operation_failed = o->what.operation_failed && operation && strcmp(operation, o->operation_id) == 0;
    ret->has_snapshot = snapshot != NULL;
    if (!snapshot)
        return 0;
    if (!snapshot_state_parse(pg_get_text(locked, row, C_SNAPSHOT_STATE), &ret->snapshot))
        return pg_corrupt(err, "snapshot state");
    (void)failure_parse(pg_get_text(locked, row, C_SNAPSHOT_ERROR), &ret->snapshot_failure);
    if (ret->snapshot == SNAPSHOT_CREATING && o->snapshot.id && strcmp(o->snapshot.id, snapshot) == 0) {
        ret->snapshot = o->snapshot.state;
        ret->snapshot_failure = o->snapshot.failure;
    }
    return 0;
}

/* ---- the effect ---- */

/* State, readiness, and what the node says about the VM. */
static int write_state(struct store *s, const struct observed *o, const struct observe_effect *e, bool has_ended,
                       struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, o->id);
    pg_text(&a, sandbox_state_name(e->state));
    pg_bool(&a, e->ready);
    pg_text(&a, o->accelerator);
    pg_text(&a, o->kernel);
    pg_text(&a, o->vmm);
    pg_text(&a, o->timings);
    pg_bool(&a, has_ended);
    pg_text(&a, o->start_kind);
    return pg_queue(
        s,
        "UPDATE sandboxes SET state = $2, ready = $3, accelerator = coalesce($4, accelerator), "
        "kernel = coalesce($5, kernel), vmm = coalesce($6, vmm), timings = coalesce($7, timings), "
        "start_kind = coalesce($9, start_kind), "
        "started_at = CASE WHEN $2 = 'running' THEN coalesce(started_at, now()) ELSE started_at END, "
        "operation_id = CASE WHEN $8::boolean THEN NULL ELSE operation_id END, updated_at = now() WHERE id = $1",
        &a, err);
}

static int write_release(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    return pg_queue(s,
                    "UPDATE sandboxes SET released_at = coalesce(released_at, now()), updated_at = now() WHERE id = $1",
                    &a, err);
}

static int start_operation(struct store *s, const char *operation_id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, operation_id);
    return pg_queue(s,
                    "UPDATE operations SET state = 'running', started_at = now() WHERE id = $1 AND state = 'pending'",
                    &a, err);
}

/* After a rollback the last good snapshot is the one it went back to. */
static int note_rollback(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    return pg_queue(s, "UPDATE sandboxes SET last_snapshot_id = start_snapshot_id WHERE id = $1", &a, err);
}

struct effect {
    const struct observed *o;
    struct observe_effect e;
    struct plan_sandbox before;
    const char *operation_id;
};

static struct operation_end end_of(const struct effect *f) {
    const struct observed *o = f->o;
    bool failed = f->e.outcome == OUTCOME_FAILED || (f->e.state == SANDBOX_FAILED && f->before.state != SANDBOX_FAILED);
    const char *message = o->what.state == OBSERVED_FAILED ? o->message
                          : o->what.operation_failed       ? o->operation_message
                          : o->snapshot.id                 ? o->snapshot.message
                                                           : "";
    return (struct operation_end){.failure = failed ? f->e.failure : FAILURE_NONE,
                                  .message = failed && message ? message : "",
                                  .timings = o->operation_timings ? o->operation_timings : o->timings,
                                  .start_kind = o->start_kind};
}

static int write_end(struct store *s, const struct effect *f, struct sp_error *err) {
    const struct observe_effect *e = &f->e;
    struct operation_end end = end_of(f);
    bool finishes = e->outcome == OUTCOME_SUCCEEDED;
    int r = 0;
    if (e->state == SANDBOX_FAILED && f->before.state != SANDBOX_FAILED)
        return lifecycle_fail_sandbox(s, f->o->id, f->operation_id, &end, err);
    if (e->state == SANDBOX_DELETED && f->before.state != SANDBOX_DELETED)
        return lifecycle_end_delete(s, f->o->id, f->operation_id, err);
    if (e->outcome == OUTCOME_FAILED)
        return lifecycle_give_up(s, f->o->id, f->operation_id, e->state, e->ready, false, &end, err);
    if (e->state != f->before.state || finishes || e->changes)
        r = write_state(s, f->o, e, finishes, err);
    if (r == 0 && e->outcome == OUTCOME_STARTED)
        r = start_operation(s, f->operation_id, err);
    if (r == 0 && finishes && f->before.operation == OPERATION_ROLLBACK)
        r = note_rollback(s, f->o->id, err);
    if (r == 0 && finishes)
        r = lifecycle_finish_operation(s, f->operation_id, &end, err);
    return r;
}

static int write_effect(struct store *s, const struct effect *f, struct sp_error *err) {
    int r = 0;
    if (f->e.release)
        r = write_release(s, f->o->id, err);
    bool is_release_alone = f->e.release && f->e.state == f->before.state && f->e.outcome == OUTCOME_NONE;
    return r < 0 || is_release_alone ? r : write_end(s, f, err);
}

/* ---- use ---- */

static int write_use(struct store *s, const struct store_result *locked, int row, const struct observed *o,
                     struct sp_error *err) {
    struct pg_args a = {0};
    bool is_new = o->active_ms > pg_get_int(locked, row, C_ACTIVE) + ACTIVE_STEP_MS;
    bool differs = o->has_streams && (int64_t)o->streams != pg_get_int(locked, row, C_STREAMS);
    if (!is_new && !differs)
        return 0;
    pg_text(&a, o->id);
    pg_int(&a, o->has_streams ? (int64_t)o->streams : pg_get_int(locked, row, C_STREAMS));
    pg_int(&a, is_new ? o->active_ms : 0);
    return pg_queue(
        s,
        "UPDATE sandboxes SET streams = $2::bigint, node_active_at = CASE WHEN $3::bigint > 0 "
        "THEN timestamptz 'epoch' + $3::bigint * interval '1 millisecond' ELSE node_active_at END, "
        /* What a node calls now is now; the clock of the policies may be another one. */
        "active_at = greatest(active_at, CASE WHEN $3::bigint > 0 THEN timestamptz 'epoch' + $3::bigint * "
        "interval '1 millisecond' + (policy_now() - now()) WHEN $2::bigint < streams THEN policy_now() END) "
        "WHERE id = $1",
        &a, err);
}

/* ---- one sandbox of a report ---- */

/* Does the node have to hear of it? That what it was asked for is done it knows itself. */
static bool changes_list(const struct effect *f, const struct observation *what) {
    const struct observe_effect *e = &f->e;
    bool fork_may_go = f->before.has_operation && f->before.operation == OPERATION_FORK && what->has_snapshot &&
                       what->snapshot == SNAPSHOT_READY;
    bool has_ended = e->state != f->before.state && (e->state == SANDBOX_FAILED || e->state == SANDBOX_DELETED);
    return e->release || has_ended || e->outcome == OUTCOME_FAILED || fork_may_go;
}

int lifecycle_observe(struct store *s, const struct store_result *locked, const char *node_id, const struct observed *o,
                      enum observed_fit *ret_fit, bool *ret_poke, struct sp_error *err) {
    struct effect f = {.o = o};
    struct observation what;
    enum operation_state operation_state;
    int row = find(locked, o->id);
    *ret_fit = OBSERVED_UNKNOWN;
    if (row < 0 || strcmp(pg_get_text(locked, row, C_NODE), node_id) != 0)
        return 0;
    int r = read_row(locked, row, &f.before, &operation_state, err);
    if (r < 0 || f.before.state == SANDBOX_DELETED || (f.before.is_released && o->what.state != OBSERVED_DELETED))
        return r;
    *ret_fit = OBSERVED_STALE;
    if ((uint64_t)pg_get_int(locked, row, C_GENERATION) != o->generation)
        return 0;
    *ret_fit = OBSERVED_FITS;
    r = read_observation(locked, row, o, &what, err);
    if (r == 0)
        r = write_use(s, locked, row, o, err);
    if (r < 0)
        return r;
    f.operation_id = pg_get(locked, row, C_OPERATION);
    f.e = plan_observe(&f.before, pg_get_bool(locked, row, C_READY), operation_state, &what);
    *ret_poke = *ret_poke || changes_list(&f, &what);
    return !f.e.changes ? 0 : write_effect(s, &f, err);
}

/* What stood on memory is lost; what is started from a snapshot, or from its template, is started again. */
int lifecycle_fail_all_of_node(struct store *s, const char *node_id, struct sp_error *err) {
    struct operation_end end = {.failure = FAILURE_NODE_LOST, .message = ""};
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, node_id);
    int r = pg_run(s,
                   "SELECT b.id, b.operation_id FROM sandboxes b WHERE b.node_id = $1 AND b.released_at IS NULL "
                   "AND (b.state IN ('running', 'pausing', 'paused', 'suspending') OR (b.state = 'waking' AND EXISTS "
                   "(SELECT 1 FROM operations o WHERE o.id = b.operation_id AND o.kind = 'wake' "
                   "AND o.from_state = 'paused'))) ORDER BY b.id FOR NO KEY UPDATE OF b",
                   &a, &res, err);
    for (int i = 0; r == 0 && i < pg_rows(res); i++)
        r = lifecycle_fail_sandbox(s, pg_get_text(res, i, 0), pg_get(res, i, 1), &end, err);
    return r;
}
