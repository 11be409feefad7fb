/* SPDX-License-Identifier: Apache-2.0 */
/* How operations end, and what that means for the sandbox, the snapshot it was making and the children of a fork. */
#include "base/text.h"
#include "store/lifecycle_internal.h"
#include "store/pg.h"
#include "store/sessions.h"

int lifecycle_add_outbox(struct store *s, const char *sandbox_id, const char *reason, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, sandbox_id);
    pg_text(&a, reason);
    int r = pg_queue(s, "INSERT INTO outbox (sandbox_id, reason) VALUES ($1, $2)", &a, err);
    return r < 0 ? r : pg_notify(s, 'r', "", err);
}

/* The snapshot it was making does not come about; children that waited for it are the reconciler's. A client's snapshot
 * stays to be read, the platform's own go. */
static int abort_snapshot(struct store *s, const char *operation_id, const struct operation_end *end,
                          struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, operation_id);
    pg_text(&a, failure_name(end->failure));
    pg_text(&a, *end->message ? end->message : failure_text(end->failure));
    int r = pg_queue(s,
                     "UPDATE snapshots SET state = CASE kind WHEN 'snapshot' THEN 'failed' ELSE 'deleting' END, "
                     "error_code = $2, error_message = $3 WHERE operation_id = $1 AND state = 'creating'",
                     &a, err);
    if (r < 0)
        return r;
    a.n = 1;
    return pg_queue(s,
                    "WITH c AS (INSERT INTO outbox (sandbox_id, reason) SELECT sandbox_id, 'fork' FROM operations "
                    "WHERE fork_id = $1 AND state IN ('pending', 'running') RETURNING 1) "
                    "SELECT pg_notify('space', 'r') FROM c",
                    &a, err);
}

int lifecycle_finish_operation(struct store *s, const char *operation_id, const struct operation_end *end,
                               struct sp_error *err) {
    struct pg_args a = {0};
    bool good = end->failure == FAILURE_NONE;
    pg_text(&a, operation_id);
    pg_text(&a, good ? "succeeded" : "failed");
    pg_text_or_null(&a, failure_name(end->failure));
    pg_text(&a, good ? NULL : *end->message ? end->message : failure_text(end->failure));
    pg_text(&a, end->timings);
    pg_text(&a, end->start_kind);
    pg_note(s, 'o', operation_id);
    int r = pg_queue(
        s,
        "WITH o AS (UPDATE operations SET state = $2, error_code = $3, error_message = $4, "
        "timings = coalesce($5, timings), start_kind = coalesce($6, start_kind), finished_at = clock_timestamp(), "
        "started_at = CASE WHEN $2 = 'succeeded' THEN coalesce(started_at, now()) ELSE started_at END "
        "WHERE id = $1 AND state IN ('pending', 'running') RETURNING id, fork_id), "
        "f AS (INSERT INTO outbox (sandbox_id, reason) SELECT p.sandbox_id, 'fork' FROM o "
        "JOIN operations p ON p.id = o.fork_id RETURNING 1) "
        "SELECT pg_notify('space', 'o' || id) FROM o UNION ALL SELECT pg_notify('space', 'r') FROM f",
        &a, err);
    return r < 0 || good ? r : abort_snapshot(s, operation_id, end, err);
}

int lifecycle_fail_sandbox(struct store *s, const char *id, const char *operation_id, const struct operation_end *end,
                           struct sp_error *err) {
    struct pg_args a = {0};
    int r;
    pg_text(&a, id);
    pg_text(&a, failure_name(end->failure));
    pg_text(&a, *end->message ? end->message : failure_text(end->failure));
    r = pg_queue(s,
                 "UPDATE sandboxes SET state = 'failed', ready = false, error_code = $2, error_message = $3, "
                 "operation_id = NULL, streams = 0, updated_at = now() WHERE id = $1",
                 &a, err);
    if (r == 0 && operation_id)
        r = lifecycle_finish_operation(s, operation_id, end, err);
    if (r == 0)
        r = session_lose_all(s, id, err);
    return r;
}

int lifecycle_give_up(struct store *s, const char *id, const char *operation_id, enum sandbox_state state, bool ready,
                      bool renew, const struct operation_end *end, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, sandbox_state_name(state));
    pg_int(&a, renew ? 1 : 0);
    pg_bool(&a, ready);
    int r = pg_queue(s,
                     "UPDATE sandboxes SET state = $2, ready = $4 AND $2 = 'running', operation_id = NULL, "
                     "generation = generation + $3::bigint, updated_at = now() WHERE id = $1",
                     &a, err);
    return r < 0 ? r : lifecycle_finish_operation(s, operation_id, end, err);
}

int lifecycle_end_delete(struct store *s, const char *id, const char *operation_id, struct sp_error *err) {
    struct operation_end end = {.message = ""};
    struct pg_args a = {0};
    pg_text(&a, id);
    int r = pg_queue(s,
                     "UPDATE sandboxes SET state = 'deleted', ready = false, operation_id = NULL, deleted_at = now(), "
                     "released_at = CASE WHEN node_id IS NOT NULL THEN coalesce(released_at, now()) END, streams = 0, "
                     "updated_at = now() WHERE id = $1",
                     &a, err);
    return r < 0 || !operation_id ? r : lifecycle_finish_operation(s, operation_id, &end, err);
}
