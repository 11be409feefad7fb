/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of the reconciler: what has to be looked at, and what plan() says of it, applied. */
#include "base/text.h"
#include "store/lifecycle.h"
#include "store/lifecycle_internal.h"
#include "store/nodes.h"
#include "store/pg.h"

#define WORK_MAX 500

int lifecycle_take_outbox(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_int(&a, WORK_MAX);
    /* Not flushed: rows that come back after a crash are looked at twice, and a caller's commit need not wait behind it. */
    int r = pg_run(s,
                   "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) "
                   "RETURNING sandbox_id, set_config('synchronous_commit', 'off', true)",
                   &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int lifecycle_find_work(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_int(&a, WORK_MAX);
    int r =
        pg_run(s,
               /* Each part by a partial index of what is on its way, however many rows are at rest. */
               "SELECT id FROM (SELECT id, created_at AS at FROM sandboxes WHERE state IN ('creating', 'deleting') "
               "AND ((state = 'creating' AND node_id IS NULL) "
               "OR (state = 'deleting' AND (node_id IS NULL OR released_at IS NOT NULL)) "
               "OR (state = 'creating' AND start_snapshot_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM snapshots x "
               "WHERE x.id = start_snapshot_id AND x.state IN ('creating', 'ready')))) "
               "UNION ALL SELECT sandbox_id, accepted_at FROM operations f WHERE state IN ('pending', 'running') "
               "AND (deadline_at <= now() OR (kind = 'fork' AND NOT EXISTS (SELECT 1 FROM operations c "
               "WHERE c.fork_id = f.id AND c.state IN ('pending', 'running'))))) w GROUP BY id ORDER BY min(at), id "
               "LIMIT $1",
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
    pg_text(&a, id);
    int r = pg_run(
        s,
        "SELECT b.id, b.state, b.node_id, b.released_at IS NOT NULL, b.vcpus, b.memory_mib, b.operation_id, "
        "o.kind, " PG_MS("o.deadline_at") ", " PG_MS(
            "now()") ", o.from_state, "
                     "b.start_snapshot_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM snapshots x "
                     "WHERE x.id = b.start_snapshot_id AND x.state IN ('creating', 'ready')), "
                     "NOT EXISTS (SELECT 1 FROM snapshots x WHERE x.operation_id = o.id AND x.state = 'creating'), "
                     "(SELECT count(*) FROM operations c WHERE c.fork_id = o.id AND c.state IN ('pending', "
                     "'running')), "
                     "(SELECT count(*) FROM operations c WHERE c.fork_id = o.id AND c.state = 'failed') "
                     "FROM sandboxes b LEFT JOIN operations o ON o.id = b.operation_id WHERE b.id = $1",
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
                                       .deadline_ms = pg_get_int(w->res, 0, 8),
                                       .from = SANDBOX_CREATING,
                                       .start_is_gone = pg_get_bool(w->res, 0, 11),
                                       .is_settled = pg_get_bool(w->res, 0, 12),
                                       .children_open = (uint64_t)pg_get_int(w->res, 0, 13),
                                       .children_failed = (uint64_t)pg_get_int(w->res, 0, 14)};
    if (!sandbox_state_parse(pg_get_text(w->res, 0, 1), &w->sandbox.state) ||
        (w->operation_id && !operation_kind_parse(pg_get_text(w->res, 0, 7), &w->sandbox.operation)) ||
        (pg_get(w->res, 0, 10) && !sandbox_state_parse(pg_get_text(w->res, 0, 10), &w->sandbox.from)))
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

static int give_up(struct store *s, const struct work *w, const struct plan_action *action,
                   const struct operation_end *end, struct sp_error *err) {
    /* What a wake without a VM has begun has to end, and only a new generation says so. */
    bool renew = w->sandbox.state == SANDBOX_WAKING && w->sandbox.from != SANDBOX_PAUSED;
    return lifecycle_give_up(s, w->id, w->operation_id, action->state, true, renew, end, err);
}

/* The snapshot that only its children needed is removed by the sweep. */
static int finish_fork(struct store *s, const struct work *w, const struct operation_end *end, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, w->id);
    int r = pg_queue(s, "UPDATE sandboxes SET operation_id = NULL, updated_at = now() WHERE id = $1", &a, err);
    return r < 0 ? r : lifecycle_finish_operation(s, w->operation_id, end, err);
}

/* Placement looks at the nodes under a lock of its own, so the plan gets none here. */
static struct plan_action plan_of(const struct work *w) {
    struct plan_action action;
    plan(&w->sandbox, 1, NULL, 0, w->now_ms, &action);
    return action;
}

static bool needs_node(const struct work *w, const struct plan_action *action) {
    return action->verb == PLAN_NOTHING && w->sandbox.state == SANDBOX_CREATING && !w->sandbox.has_node;
}

static int apply(struct store *s, const struct work *w, enum plan_verb *ret_verb, struct sp_error *err) {
    struct plan_action action = plan_of(w);
    struct operation_end end = {.message = ""};
    int r = 0;
    if (needs_node(w, &action))
        return assign(s, w, ret_verb, err);
    end.failure = action.failure;
    if (action.verb == PLAN_FAIL)
        r = lifecycle_fail_sandbox(s, w->id, w->operation_id, &end, err);
    else if (action.verb == PLAN_GIVE_UP)
        r = give_up(s, w, &action, &end, err);
    else if (action.verb == PLAN_FINISH_FORK)
        r = finish_fork(s, w, &end, err);
    else if (action.verb == PLAN_FINISH_DELETE)
        r = lifecycle_end_delete(s, w->id, w->operation_id, err);
    bool should_poke = action.verb == PLAN_FAIL || action.verb == PLAN_GIVE_UP || action.verb == PLAN_FINISH_FORK;
    if (r == 0 && should_poke && w->node_id)
        r = node_poke(s, w->node_id, err);
    if (r == 0)
        *ret_verb = action.verb;
    return r;
}

int lifecycle_is_due(struct store *s, const char *id, bool *ret_due, struct sp_error *err) {
    struct work w = {0};
    int r = load_work(s, id, &w, err);
    *ret_due = false;
    if (r == 0 && w.is_there) {
        struct plan_action action = plan_of(&w);
        *ret_due = action.verb != PLAN_NOTHING || needs_node(&w, &action);
    }
    w.res = store_result_free(w.res);
    return r;
}

int lifecycle_reconcile(struct store *s, const char *id, enum plan_verb *ret_verb, struct sp_error *err) {
    struct work w = {0};
    struct pg_args a = {0};
    uint64_t locked = 0;
    *ret_verb = PLAN_NOTHING;
    pg_text(&a, id);
    int r = pg_count(s, "SELECT 1 FROM sandboxes WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED", &a, &locked, err);
    if (r < 0 || locked == 0)
        return r;
    r = load_work(s, id, &w, err);
    if (r == 0 && w.is_there)
        r = apply(s, &w, ret_verb, err);
    w.res = store_result_free(w.res);
    return r;
}
