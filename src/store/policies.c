/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over the policies. A coarse query finds who may be due, the decision is made on a locked row. */
#include "store/policies.h"
#include "base/json.h"
#include "model/ids.h"
#include "model/limits.h"
#include "store/lifecycle.h"
#include "store/pg.h"
#include "store/snapshots.h"
#include <string.h>

#define WORK_MAX 500
#define CHECKPOINTS_MAX 1000

int policies_find(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_int(&a, WORK_MAX);
    int r = pg_run(s,
                   "SELECT id FROM sandboxes WHERE state IN ('running', 'paused', 'suspended', 'failed') "
                   "AND operation_id IS NULL AND (born_at + life_s * interval '1 second' <= policy_now() "
                   "OR (state = 'running' AND coalesce(checkpoint_at, born_at) + checkpoint_s * interval '1 second' "
                   "<= policy_now()) OR (active_at + idle_s * interval '1 second' <= policy_now() AND streams = 0 "
                   /* what is down already is only ever deleted */
                   "AND (state IN ('running', 'paused') OR lifecycle !~ '\"delete_after_s\": ?null'))) "
                   "ORDER BY active_at LIMIT $1",
                   &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

static int load_view(struct store *s, const struct sandbox *b, struct policy_view *v, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, b->id);
    int r = pg_run(s,
                   "SELECT " PG_MS("policy_now()") ", " PG_MS("born_at") ", " PG_MS("active_at") ", " PG_MS(
                       "checkpoint_at") ", (SELECT count(*) FROM sessions x WHERE x.sandbox_id = b.id "
                                        "AND x.state = 'started') FROM sandboxes b WHERE b.id = $1",
                   &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) != 1)
        return sp_error_set(err, SP_E_NOT_FOUND, "no sandbox %s", b->id);
    *v = (struct policy_view){.state = b->state,
                              .now_ms = pg_get_int(res, 0, 0),
                              .born_ms = pg_get_int(res, 0, 1),
                              .active_ms = pg_get_int(res, 0, 2),
                              .checkpoint_ms = pg_get_int(res, 0, 3),
                              .streams = b->streams,
                              .processes = (uint64_t)pg_get_int(res, 0, 4)};
    return 0;
}

static struct lifecycle_policy policy_of(const char *text) {
    struct lifecycle_policy p = lifecycle_policy_default();
    _cleanup_json_ json_t *fields = NULL;
    if (json_parse(text, strlen(text), 1 << 16, &fields, NULL) == 0)
        lifecycle_policy_merge(&p, fields);
    return p;
}

static int act(struct store *s, const struct sandbox *b, const struct lifecycle_policy *p,
               const struct policy_action *action, struct sp_error *err) {
    char operation_id[ID_SIZE], snapshot_id[ID_SIZE];
    bool makes_snapshot = action->kind == OPERATION_SUSPEND || action->kind == OPERATION_SNAPSHOT;
    id_new(operation_id, ID_OPERATION);
    id_new(snapshot_id, ID_SNAPSHOT);
    if (action->kind == OPERATION_DELETE)
        return lifecycle_delete(s, b, operation_id, action->reason, err);
    struct verb v = {.sandbox = b,
                     .kind = action->kind,
                     .reason = action->reason,
                     .operation_id = operation_id,
                     .timeout_s = makes_snapshot ? LIMIT_VALUE(snapshot_timeout_s) : LIMIT_VALUE(pause_timeout_s),
                     .snapshot_id = makes_snapshot ? snapshot_id : NULL,
                     .snapshot_kind = action->kind == OPERATION_SUSPEND ? SNAPSHOT_SUSPEND : SNAPSHOT_CHECKPOINT,
                     .snapshot_content = action->kind == OPERATION_SNAPSHOT ? p->checkpoint_content : CONTENT_FULL};
    return lifecycle_begin(s, &v, err);
}

int policies_apply(struct store *s, const char *id, struct policy_action *ret_done, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct policy_view view;
    struct sandbox b;
    *ret_done = (struct policy_action){0};
    int r = sandbox_get(s, id, NULL, true, &res, &b, err);
    if (r == -SP_E_NOT_FOUND || (r == 0 && b.operation_id))
        return 0;
    if (r == 0)
        r = load_view(s, &b, &view, err);
    if (r < 0)
        return r;
    struct lifecycle_policy p = policy_of(b.lifecycle);
    struct policy_action action = policy_decide(&p, &view);
    if (!action.acts)
        return 0;
    r = act(s, &b, &p, &action, err);
    if (r == 0)
        *ret_done = action;
    return r;
}

/* ---- checkpoints ---- */

int checkpoints_find(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    int r = pg_run(s,
                   "SELECT DISTINCT sandbox_id FROM snapshots WHERE kind = 'checkpoint' AND state = 'ready' "
                   "GROUP BY sandbox_id, content HAVING count(*) > 1",
                   NULL, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

static int remove_others(struct store *s, const struct store_result *rows, const bool *keep, uint64_t *ret_removed,
                         struct sp_error *err) {
    int r = 0;
    for (int i = 0; r == 0 && i < pg_rows(rows); i++) {
        _cleanup_result_ struct store_result *res = NULL, *uses = NULL;
        const char *why = NULL;
        struct snapshot x;
        if (keep[i])
            continue;
        r = snapshot_get(s, pg_get_text(rows, i, 0), pg_get_text(rows, i, 2), true, &res, &x, err);
        if (r == 0)
            r = snapshot_in_use(s, &x, &uses, &why, err);
        if (r < 0 || why || x.state != SNAPSHOT_READY)
            continue;
        r = snapshot_begin_delete(s, &x, err);
        *ret_removed += r == 0;
    }
    return r;
}

/* Those of one content, thinned out by themselves. */
static int thin_out(struct store *s, const struct sandbox *b, enum snapshot_content content, uint64_t *ret_removed,
                    struct sp_error *err) {
    _cleanup_result_ struct store_result *rows = NULL;
    int64_t taken_ms[CHECKPOINTS_MAX];
    bool keep[CHECKPOINTS_MAX];
    struct pg_args a = {0};
    pg_text(&a, b->id);
    pg_int(&a, CHECKPOINTS_MAX);
    pg_text(&a, snapshot_content_name(content));
    int r = pg_run(s,
                   "SELECT id, " PG_MS("taken_at") ", tenant_id FROM snapshots WHERE sandbox_id = $1 "
                                                   "AND kind = 'checkpoint' AND state = 'ready' AND content = $3 "
                                                   "ORDER BY taken_at DESC, id DESC LIMIT $2",
                   &a, &rows, err);
    if (r < 0)
        return r;
    struct lifecycle_policy p = policy_of(b->lifecycle);
    for (int i = 0; i < pg_rows(rows); i++)
        taken_ms[i] = pg_get_int(rows, i, 1);
    policy_keep(&p, taken_ms, (size_t)pg_rows(rows), keep);
    return remove_others(s, rows, keep, ret_removed, err);
}

int checkpoints_apply(struct store *s, const char *id, uint64_t *ret_removed, struct sp_error *err) {
    _cleanup_result_ struct store_result *sandbox = NULL;
    struct sandbox b;
    *ret_removed = 0;
    int r = sandbox_get(s, id, NULL, true, &sandbox, &b, err);
    if (r == -SP_E_NOT_FOUND)
        return 0;
    for (int c = 0; r == 0 && c < SNAPSHOT_CONTENT_COUNT_; c++)
        r = thin_out(s, &b, (enum snapshot_content)c, ret_removed, err);
    return r;
}

/* ---- the clock ---- */

int policy_clock_advance(struct store *s, int64_t seconds, int64_t *ret_offset_s, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_int(&a, seconds);
    int r = pg_run(s,
                   "WITH c AS (UPDATE policy_clock SET offset_s = offset_s + $1::bigint RETURNING offset_s) "
                   "SELECT offset_s, pg_notify('space', 'rclock') FROM c",
                   &a, &res, err);
    if (r == 0)
        *ret_offset_s = pg_get_int(res, 0, 0);
    return r;
}
