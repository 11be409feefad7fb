/* SPDX-License-Identifier: Apache-2.0 */
/* Create, delete and the passes of the reconciler. What nodes report is in lifecycle_observe.c. */
#include "store/lifecycle.h"
#include "base/text.h"
#include "store/lifecycle_internal.h"
#include "store/nodes.h"
#include "store/pg.h"
#include "store/sessions.h"

#define WORK_MAX 500

static int add_outbox(struct store *s, const char *sandbox_id, const char *reason, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, sandbox_id);
    pg_text(&a, reason);
    int r = pg_queue(s, "INSERT INTO outbox (sandbox_id, reason) VALUES ($1, $2)", &a, err);
    return r < 0 ? r : pg_notify(s, 'r', "", err);
}

/* ---- create ---- */

/* Sandbox, operation, outbox and notification in one round trip. */
int lifecycle_create(struct store *s, const struct sandbox_new_row *n, struct sp_error *err) {
    struct pg_args a = {0};
    char note[80];
    (void)snprintf(note, sizeof(note), "%s%.64s", n->node_id ? "n" : "r", n->node_id ? n->node_id : "");
    pg_text(&a, n->id);
    pg_text(&a, n->tenant_id);
    pg_text(&a, n->name);
    pg_text(&a, n->template_id);
    pg_text(&a, n->template_name);
    pg_text(&a, n->template_tag);
    pg_text(&a, n->digest);
    pg_int(&a, (int64_t)n->vcpus);
    pg_int(&a, (int64_t)n->memory_mib);
    pg_text(&a, n->metadata);
    pg_text(&a, n->env);
    pg_text(&a, n->hostname);
    pg_text(&a, n->machine_id);
    pg_text(&a, n->node_id);
    pg_text(&a, n->operation_id);
    pg_int(&a, (int64_t)n->timeout_s);
    pg_text(&a, note);
    return pg_queue(
        s,
        "WITH b AS (INSERT INTO sandboxes (id, tenant_id, name, state, template_id, template_name, template_tag, "
        "digest, vcpus, memory_mib, metadata, env, hostname, machine_id, node_id, operation_id) "
        "VALUES ($1, $2, $3, 'creating', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)), "
        "o AS (INSERT INTO operations (id, tenant_id, sandbox_id, kind, state, deadline_at) "
        "VALUES ($15, $2, $1, 'create', 'pending', now() + $16::bigint * interval '1 second')), "
        "x AS (INSERT INTO outbox (sandbox_id, reason) VALUES ($1, 'create')) "
        "SELECT pg_notify('space', $17)",
        &a, err);
}

/* ---- ends ---- */

int lifecycle_finish_operation(struct store *s, const char *operation_id, enum failure failure, const char *message,
                               struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, operation_id);
    pg_text(&a, failure == FAILURE_NONE ? "succeeded" : "failed");
    pg_text_or_null(&a, failure_name(failure));
    pg_text(&a, failure == FAILURE_NONE ? NULL : *message ? message : failure_text(failure));
    return pg_queue(
        s,
        "WITH o AS (UPDATE operations SET state = $2, error_code = $3, error_message = $4, finished_at = now(), "
        "started_at = CASE WHEN $2 = 'succeeded' THEN coalesce(started_at, now()) ELSE started_at END "
        "WHERE id = $1 AND state IN ('pending', 'running') RETURNING id) "
        "SELECT pg_notify('space', 'o' || id) FROM o",
        &a, err);
}

int lifecycle_fail_sandbox(struct store *s, const char *id, const char *operation_id, enum failure failure,
                           const char *message, struct sp_error *err) {
    struct pg_args a = {0};
    int r;
    pg_text(&a, id);
    pg_text(&a, failure_name(failure));
    pg_text(&a, *message ? message : failure_text(failure));
    r = pg_queue(s,
                 "UPDATE sandboxes SET state = 'failed', ready = false, error_code = $2, error_message = $3, "
                 "operation_id = NULL, updated_at = now() WHERE id = $1",
                 &a, err);
    if (r == 0 && operation_id)
        r = lifecycle_finish_operation(s, operation_id, failure, message, err);
    if (r == 0)
        r = session_lose_all(s, id, err);
    return r;
}

int lifecycle_end_delete(struct store *s, const char *id, const char *operation_id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    int r = pg_queue(s,
                     "UPDATE sandboxes SET state = 'deleted', ready = false, operation_id = NULL, deleted_at = now(), "
                     "released_at = CASE WHEN node_id IS NOT NULL THEN coalesce(released_at, now()) END, "
                     "updated_at = now() WHERE id = $1",
                     &a, err);
    if (r == 0 && operation_id)
        r = lifecycle_finish_operation(s, operation_id, FAILURE_NONE, "", err);
    return r;
}

/* ---- delete ---- */

static int insert_delete(struct store *s, const struct sandbox *b, const char *operation_id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, b->id);
    pg_text(&a, b->tenant_id);
    pg_text(&a, operation_id);
    int r = pg_queue(s,
                     "INSERT INTO operations (id, tenant_id, sandbox_id, kind, state, started_at) "
                     "VALUES ($3, $2, $1, 'delete', 'running', now())",
                     &a, err);
    if (r < 0)
        return r;
    a.n = 0;
    pg_text(&a, b->id);
    pg_text(&a, operation_id);
    pg_bool(&a, b->node_id && !b->is_released);
    return pg_queue(
        s,
        "UPDATE sandboxes SET ready = false, operation_id = $2, delete_operation_id = $2, updated_at = now(), "
        "state = CASE WHEN $3::boolean THEN 'deleting' ELSE state END WHERE id = $1",
        &a, err);
}

int lifecycle_delete(struct store *s, const struct sandbox *b, const char *operation_id, struct sp_error *err) {
    bool on_node = b->node_id && !b->is_released;
    int r = 0;
    if (b->operation_id)
        r = lifecycle_finish_operation(s, b->operation_id, FAILURE_SUPERSEDED, "", err);
    if (r == 0)
        r = insert_delete(s, b, operation_id, err);
    if (r == 0)
        r = session_lose_all(s, b->id, err);
    if (r == 0)
        r = add_outbox(s, b->id, "delete", err);
    if (r < 0)
        return r;
    return on_node ? node_poke(s, b->node_id, err) : lifecycle_end_delete(s, b->id, operation_id, err);
}

/* ---- the reconciler ---- */

int lifecycle_take_outbox(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_int(&a, WORK_MAX);
    int r = pg_run(s,
                   "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) "
                   "RETURNING sandbox_id",
                   &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int lifecycle_find_work(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_int(&a, WORK_MAX);
    int r = pg_run(s,
                   "SELECT id FROM sandboxes WHERE (state = 'creating' AND node_id IS NULL) "
                   "OR (state = 'deleting' AND (node_id IS NULL OR released_at IS NOT NULL)) "
                   "OR id IN (SELECT sandbox_id FROM operations WHERE state IN ('pending', 'running') "
                   "AND deadline_at <= now()) ORDER BY created_at, id LIMIT $1",
                   &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

const char *lifecycle_work_id(const struct store_result *res, int row) {
    return pg_get_text(res, row, 0);
}

/* One sandbox as the plan sees it, and what applying needs. */
struct work {
    struct store_result *res;
    struct plan_sandbox sandbox;
    const char *id, *node_id, *operation_id;
    int64_t now_ms;
    bool is_there;
};

static int load_work(struct store *s, const char *id, struct work *w, struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t locked = 0;
    pg_text(&a, id);
    int r = pg_count(s, "SELECT 1 FROM sandboxes WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED", &a, &locked, err);
    if (r < 0 || locked == 0)
        return r;
    r = pg_run(s,
               "SELECT b.id, b.state, b.node_id, b.released_at IS NOT NULL, b.vcpus, b.memory_mib, b.operation_id, "
               "o.kind, " PG_MS("o.deadline_at") ", " PG_MS(
                   "now()") " FROM sandboxes b LEFT JOIN operations o ON o.id = b.operation_id "
                            "WHERE b.id = $1",
               &a, &w->res, err);
    if (r < 0)
        return r;
    w->is_there = pg_rows(w->res) == 1;
    if (!w->is_there)
        return 0;
    w->id = pg_get_text(w->res, 0, 0);
    w->node_id = pg_get(w->res, 0, 2);
    w->operation_id = pg_get(w->res, 0, 6);
    w->now_ms = pg_get_int(w->res, 0, 9);
    w->sandbox = (struct plan_sandbox){.has_node = w->node_id != NULL,
                                       .is_released = pg_get_bool(w->res, 0, 3),
                                       .vcpus = (uint64_t)pg_get_int(w->res, 0, 4),
                                       .memory_mib = (uint64_t)pg_get_int(w->res, 0, 5),
                                       .has_operation = w->operation_id != NULL,
                                       .deadline_ms = pg_get_int(w->res, 0, 8)};
    if (!sandbox_state_parse(pg_get_text(w->res, 0, 1), &w->sandbox.state) ||
        (w->operation_id && !operation_kind_parse(pg_get_text(w->res, 0, 7), &w->sandbox.operation)))
        return pg_corrupt(err, "sandbox");
    return 0;
}

static int assign(struct store *s, const struct work *w, enum plan_verb *ret_verb, struct sp_error *err) {
    enum placement placement;
    struct pg_args a = {0};
    char node_id[65];
    int r = node_place(s, w->sandbox.vcpus, w->sandbox.memory_mib, &placement, node_id, err);
    if (r < 0 || placement != PLACED)
        return r;
    pg_text(&a, w->id);
    pg_text(&a, node_id);
    r = pg_queue(s, "UPDATE sandboxes SET node_id = $2, updated_at = now() WHERE id = $1", &a, err);
    if (r == 0)
        r = pg_notify(s, 'n', node_id, err);
    if (r == 0)
        *ret_verb = PLAN_ASSIGN;
    return r;
}

static int apply(struct store *s, const struct work *w, enum plan_verb *ret_verb, struct sp_error *err) {
    struct plan_action action;
    int r = 0;
    /* Placement looks at the nodes under a lock of its own, so the plan gets none here. */
    plan(&w->sandbox, 1, NULL, 0, w->now_ms, &action);
    if (action.verb == PLAN_NOTHING && w->sandbox.state == SANDBOX_CREATING && !w->sandbox.has_node)
        return assign(s, w, ret_verb, err);
    if (action.verb == PLAN_FAIL) {
        r = lifecycle_fail_sandbox(s, w->id, w->operation_id, action.failure, "", err);
        if (r == 0 && w->node_id)
            r = node_poke(s, w->node_id, err);
    } else if (action.verb == PLAN_FINISH_DELETE)
        r = lifecycle_end_delete(s, w->id, w->operation_id, err);
    if (r == 0)
        *ret_verb = action.verb;
    return r;
}

int lifecycle_reconcile(struct store *s, const char *id, enum plan_verb *ret_verb, struct sp_error *err) {
    struct work w = {0};
    *ret_verb = PLAN_NOTHING;
    int r = load_work(s, id, &w, err);
    if (r == 0 && w.is_there)
        r = apply(s, &w, ret_verb, err);
    w.res = store_result_free(w.res);
    return r;
}
