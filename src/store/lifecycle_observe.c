/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes report, applied: the meaning is plan_observe()'s, this file reads what is recorded and writes the effect. */
#include "base/buf.h"
#include "store/lifecycle.h"
#include "store/lifecycle_internal.h"
#include "store/pg.h"
#include "store/sessions.h"
#include <string.h>

/* Columns of a locked row. */
enum { C_ID, C_STATE, C_READY, C_NODE, C_RELEASED, C_GENERATION, C_OPERATION, C_KIND, C_OPERATION_STATE };

/* A text array literal of ids: they have been checked to hold nothing that would need quoting. */
static bool ids_literal(struct buf *out, const char *const *ids, size_t n) {
    (void)buf_append_byte(out, '{');
    for (size_t i = 0; i < n; i++)
        (void)buf_printf(out, "%s%s", i ? "," : "", ids[i]);
    (void)buf_append_byte(out, '}');
    return !out->failed;
}

int lifecycle_lock_observed(struct store *s, const char *const *ids, size_t n, struct store_result **ret_res,
                            struct sp_error *err) {
    _cleanup_buf_ struct buf list = {0};
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
    return pg_run(s,
                  "SELECT b.id, b.state, b.ready, b.node_id, b.released_at IS NOT NULL, b.generation, b.operation_id, "
                  "o.kind, o.state FROM sandboxes b LEFT JOIN operations o ON o.id = b.operation_id "
                  "WHERE b.id = ANY($1::text[])",
                  &a, ret_res, err);
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
                                 .has_operation = pg_get(locked, row, C_OPERATION) != NULL};
    *ret_operation_state = OPERATION_PENDING;
    if (!sandbox_state_parse(pg_get_text(locked, row, C_STATE), &ret->state))
        return pg_corrupt(err, "sandbox state");
    if (ret->has_operation &&
        (!operation_kind_parse(pg_get_text(locked, row, C_KIND), &ret->operation) ||
         !operation_state_parse(pg_get_text(locked, row, C_OPERATION_STATE), ret_operation_state)))
        return pg_corrupt(err, "operation");
    return 0;
}

/* State running, readiness, and what the node says about the VM. */
static int write_running(struct store *s, const struct observed *o, const struct observe_effect *e, bool has_ended,
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
    return pg_queue(
        s,
        "UPDATE sandboxes SET state = $2, ready = $3, accelerator = coalesce($4, accelerator), "
        "kernel = coalesce($5, kernel), vmm = coalesce($6, vmm), timings = coalesce($7, timings), "
        "started_at = CASE WHEN $2 = 'running' THEN coalesce(started_at, now()) END, "
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

static int write_effect(struct store *s, const struct observed *o, const struct observe_effect *e,
                        const char *operation_id, enum sandbox_state before, struct sp_error *err) {
    int r = 0;
    if (e->release)
        r = write_release(s, o->id, err);
    if (r == 0 && e->state == SANDBOX_FAILED && before != SANDBOX_FAILED)
        return lifecycle_fail_sandbox(s, o->id, operation_id, e->failure, o->message, err);
    if (r == 0 && e->state == SANDBOX_DELETED && before != SANDBOX_DELETED)
        return lifecycle_end_delete(s, o->id, operation_id, err);
    if (r == 0 && (e->state == SANDBOX_RUNNING || e->state == SANDBOX_CREATING))
        r = write_running(s, o, e, e->outcome == OUTCOME_SUCCEEDED, err);
    if (r == 0 && e->outcome == OUTCOME_STARTED)
        r = start_operation(s, operation_id, err);
    if (r == 0 && e->outcome == OUTCOME_SUCCEEDED)
        r = lifecycle_finish_operation(s, operation_id, FAILURE_NONE, "", err);
    return r;
}

int lifecycle_observe(struct store *s, const struct store_result *locked, const char *node_id, const struct observed *o,
                      enum observed_fit *ret_fit, bool *ret_poke, struct sp_error *err) {
    struct plan_sandbox before;
    enum operation_state operation_state;
    int row = find(locked, o->id);
    *ret_fit = OBSERVED_UNKNOWN;
    if (row < 0 || strcmp(pg_get_text(locked, row, C_NODE), node_id) != 0)
        return 0;
    int r = read_row(locked, row, &before, &operation_state, err);
    if (r < 0 || before.state == SANDBOX_DELETED || (before.is_released && o->what.state != OBSERVED_DELETED))
        return r;
    *ret_fit = OBSERVED_STALE;
    if ((uint64_t)pg_get_int(locked, row, C_GENERATION) != o->generation)
        return 0;
    *ret_fit = OBSERVED_FITS;
    struct observe_effect e = plan_observe(&before, pg_get_bool(locked, row, C_READY), operation_state, &o->what);
    if (!e.changes)
        return 0;
    *ret_poke = *ret_poke || e.release || (e.state != before.state && e.state != SANDBOX_RUNNING);
    return write_effect(s, o, &e, pg_get(locked, row, C_OPERATION), before.state, err);
}

int lifecycle_fail_all_of_node(struct store *s, const char *node_id, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, node_id);
    int r = pg_run(s,
                   "SELECT id, operation_id FROM sandboxes WHERE node_id = $1 AND state = 'running' "
                   "AND released_at IS NULL ORDER BY id FOR NO KEY UPDATE",
                   &a, &res, err);
    for (int i = 0; r == 0 && i < pg_rows(res); i++)
        r = lifecycle_fail_sandbox(s, pg_get_text(res, i, 0), pg_get(res, i, 1), FAILURE_NODE_LOST, "", err);
    return r;
}
