/* SPDX-License-Identifier: Apache-2.0 */
/* One row a kind of thing that is kept for a time: its limit and how a batch of it is removed. */
#include "store/maintenance.h"
#include "base/text.h"
#include "model/limits.h"
#include "store/pg.h"

#define BATCH "LIMIT 500 FOR UPDATE SKIP LOCKED)"
#define BEFORE(column) column " < now() - $1::bigint * interval '1 hour'"

static const struct {
    enum limit keep;
    const char *sql;
} rows[] = {
    {LIMIT_keep_idempotency_h, "DELETE FROM idempotency WHERE (tenant_id, key_hash, route) IN (SELECT tenant_id, "
                               "key_hash, route FROM idempotency "
                               "WHERE " BEFORE("created_at") " " BATCH},
    /* The operation of a deletion is kept as long as the sandbox: a repeated delete answers with it. */
    {LIMIT_keep_operations_h,
     "DELETE FROM operations WHERE id IN (SELECT o.id FROM operations o WHERE o.state IN ('succeeded', 'failed') "
     "AND o.kind <> 'delete' AND " BEFORE("o.finished_at") " " BATCH},
    {LIMIT_keep_sessions_h, "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE state <> 'started' "
                            "AND " BEFORE("expires_at") " " BATCH},
    {LIMIT_keep_deleted_h, "DELETE FROM sandboxes WHERE id IN (SELECT id FROM sandboxes WHERE state = 'deleted' "
                           "AND " BEFORE("deleted_at") " " BATCH},
    {LIMIT_keep_tokens_h, "DELETE FROM tokens WHERE id IN (SELECT id FROM tokens WHERE " BEFORE(
                              "coalesce(revoked_at, expires_at)") " " BATCH},
    {LIMIT_keep_audit_h, "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE " BEFORE("at") " " BATCH},
};

int maintenance_sweep(struct store *s, uint64_t *ret_removed, struct sp_error *err) {
    *ret_removed = 0;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct pg_args a = {0};
        uint64_t n = 0;
        pg_int(&a, (int64_t)limit_row(rows[i].keep)->value);
        int r = pg_count(s, rows[i].sql, &a, &n, err);
        if (r < 0)
            return r;
        *ret_removed += n;
    }
    return 0;
}

static int count_sandboxes(struct store *s, struct store_sums *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    int r = pg_run(s, "SELECT state, count(*), count(*) FILTER (WHERE ready) FROM sandboxes GROUP BY state", NULL, &res,
                   err);
    for (int i = 0; r == 0 && i < pg_rows(res); i++) {
        enum sandbox_state state;
        if (!sandbox_state_parse(pg_get_text(res, i, 0), &state))
            return pg_corrupt(err, "sandbox state");
        ret->sandboxes[state] = (uint64_t)pg_get_int(res, i, 1);
        ret->sandboxes_ready += (uint64_t)pg_get_int(res, i, 2);
    }
    return r;
}

int maintenance_sums(struct store *s, struct store_sums *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct store_sums sums = {0};
    int r = count_sandboxes(s, &sums, err);
    if (r == 0)
        r = pg_run(s,
                   "SELECT (SELECT count(*) FROM operations WHERE state IN ('pending', 'running')), "
                   "(SELECT count(*) FROM sessions WHERE state = 'started'), (SELECT count(*) FROM outbox), "
                   "(SELECT count(*) FROM nodes WHERE last_seen_at > now() - interval '30 seconds'), "
                   "(SELECT count(*) FROM nodes WHERE last_seen_at <= now() - interval '30 seconds')",
                   NULL, &res, err);
    if (r < 0)
        return r;
    sums.operations_open = (uint64_t)pg_get_int(res, 0, 0);
    sums.sessions_open = (uint64_t)pg_get_int(res, 0, 1);
    sums.outbox = (uint64_t)pg_get_int(res, 0, 2);
    sums.nodes_ready = (uint64_t)pg_get_int(res, 0, 3);
    sums.nodes_lost = (uint64_t)pg_get_int(res, 0, 4);
    *ret = sums;
    return 0;
}
