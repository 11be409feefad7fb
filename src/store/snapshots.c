/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of snapshots. Locks: sandboxes first, then snapshots, then nodes. */
#include "store/snapshots.h"
#include "base/buf.h"
#include "model/limits.h"
#include "store/nodes.h"
#include "store/pg.h"

#define COLUMNS                                                                                                        \
    "x.id, x.sandbox_id, x.node_id, x.name, x.parent_id, x.kind, x.state, x.generation, x.ready_at IS NOT NULL, "      \
    "x.memory_bytes, x.disk_bytes, x.exclusive_bytes, x.stall_us, x.template_id, x.template_name, x.template_tag, "    \
    "x.digest, x.vcpus, x.memory_mib, x.error_code, x.error_message, x.metadata, x.operation_id, " PG_MS(              \
        "x.created_at") ", " PG_US("x.created_at") ", " PG_MS("x.ready_at") ", t.manifest, x.content"
#define FROM " FROM snapshots x LEFT JOIN templates t ON t.id = x.template_id "

int snapshot_row(const struct store_result *res, int row, struct snapshot *ret, struct sp_error *err) {
    struct snapshot x = {
        .id = pg_get_text(res, row, 0),
        .sandbox_id = pg_get_text(res, row, 1),
        .node_id = pg_get_text(res, row, 2),
        .name = pg_get(res, row, 3),
        .parent_id = pg_get(res, row, 4),
        .generation = (uint64_t)pg_get_int(res, row, 7),
        .has_sizes = pg_get_bool(res, row, 8),
        .memory_bytes = pg_get_int(res, row, 9),
        .disk_bytes = pg_get_int(res, row, 10),
        .exclusive_bytes = pg_get_int(res, row, 11),
        .stall_us = pg_get_int(res, row, 12),
        .template_id = pg_get(res, row, 13),
        .template_name = pg_get_text(res, row, 14),
        .template_tag = pg_get(res, row, 15),
        .digest = pg_get_text(res, row, 16),
        .vcpus = (uint64_t)pg_get_int(res, row, 17),
        .memory_mib = (uint64_t)pg_get_int(res, row, 18),
        .error_code = pg_get(res, row, 19),
        .error_message = pg_get(res, row, 20),
        .metadata = pg_get_text(res, row, 21),
        .operation_id = pg_get(res, row, 22),
        .created_ms = pg_get_int(res, row, 23),
        .created_us = pg_get_int(res, row, 24),
        .ready_ms = pg_get_int(res, row, 25),
        .manifest = pg_get(res, row, 26),
    };
    if (!snapshot_kind_parse(pg_get_text(res, row, 5), &x.kind) ||
        !snapshot_state_parse(pg_get_text(res, row, 6), &x.state) ||
        !snapshot_content_parse(pg_get_text(res, row, 27), &x.content))
        return pg_corrupt(err, "snapshot");
    *ret = x;
    return 0;
}

int snapshot_get(struct store *s, const char *id, const char *tenant_id, bool lock, struct store_result **ret_res,
                 struct snapshot *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, tenant_id);
    int r = 0;
    if (lock) /* on its own, see lifecycle_observe.c */
        r = pg_queue(s, "SELECT 1 FROM snapshots WHERE id = $1 AND tenant_id = $2 FOR NO KEY UPDATE", &a, err);
    if (r == 0)
        r = pg_run(s, "SELECT " COLUMNS FROM "WHERE x.id = $1 AND x.tenant_id = $2", &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no snapshot %s", id);
    r = snapshot_row(res, 0, ret, err);
    if (r == 0)
        *ret_res = TAKE_PTR(res);
    return r;
}

#define LIST(which)                                                                                                    \
    "SELECT " COLUMNS FROM "WHERE x.tenant_id = $4 " which                                                             \
    "AND ($5::text IS NULL OR x.kind = $5) AND ($6::text IS NULL OR x.state = $6) AND " PG_AFTER(                      \
        "x.created_at", "x.id", "$1", "$2") " ORDER BY x.created_at DESC, x.id DESC LIMIT $3"

int snapshot_list(struct store *s, const struct snapshot_filter *f, const struct store_page *page,
                  struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    struct pg_cursor mem;
    pg_page(&a, page, &mem);
    pg_int(&a, page->limit);
    pg_text(&a, f->tenant_id);
    pg_text(&a, f->kind);
    pg_text(&a, f->state);
    if (f->sandbox_id)
        pg_text(&a, f->sandbox_id);
    int r = pg_run(s, f->sandbox_id ? LIST("AND x.sandbox_id = $7 ") : LIST(""), &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int snapshot_describe(struct store *s, const char *id, const char *name, const char *metadata, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, name);
    pg_text(&a, metadata);
    return pg_queue(s, "UPDATE snapshots SET name = $2, metadata = $3 WHERE id = $1", &a, err);
}

int snapshot_count(struct store *s, const char *tenant_id, uint64_t *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, tenant_id);
    int r = pg_run(s, "SELECT count(*) FROM snapshots WHERE tenant_id = $1 AND state <> 'deleting'", &a, &res, err);
    if (r == 0)
        *ret = (uint64_t)pg_get_int(res, 0, 0);
    return r;
}

int snapshot_is_of_line(struct store *s, const char *id, const char *sandbox_id, bool *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, sandbox_id);
    int r = pg_run(s,
                   "WITH RECURSIVE line(id, parent, until, parted) AS ("
                   "SELECT id, parent_sandbox_id, timestamptz 'infinity', parent_at FROM sandboxes WHERE id = $2 "
                   "UNION ALL SELECT l.parent, b.parent_sandbox_id, least(l.until, l.parted), b.parent_at "
                   "FROM line l LEFT JOIN sandboxes b ON b.id = l.parent WHERE l.parent IS NOT NULL) "
                   "SELECT EXISTS (SELECT 1 FROM snapshots x JOIN line l ON l.id = x.sandbox_id "
                   "WHERE x.id = $1 AND x.created_at <= l.until)",
                   &a, &res, err);
    if (r == 0)
        *ret = pg_get_bool(res, 0, 0);
    return r;
}

int snapshot_use(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    return pg_queue(s, "UPDATE snapshots SET used_at = now() WHERE id = $1", &a, err);
}

/* ---- removal ---- */

int snapshot_in_use(struct store *s, const struct snapshot *x, struct store_result **ret_res, const char **ret_why,
                    struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, x->id);
    int r = pg_run(s,
                   "SELECT 'sandbox ' || id || CASE WHEN state IN ('creating', 'waking') THEN ' is starting from it' "
                   "ELSE ' is suspended on it' END FROM sandboxes WHERE "
                   "(start_snapshot_id = $1 AND state IN ('creating', 'waking')) "
                   "OR (last_snapshot_id = $1 AND state IN ('suspended', 'waking')) LIMIT 1",
                   &a, ret_res, err);
    if (r == 0)
        *ret_why = pg_rows(*ret_res) ? pg_get_text(*ret_res, 0, 0) : NULL;
    return r;
}

/* A sandbox whose last good one goes has the newest of the others. */
#define FORGET                                                                                                         \
    "UPDATE sandboxes b SET last_snapshot_id = (SELECT y.id FROM snapshots y WHERE y.sandbox_id = b.id "               \
    "AND y.state = 'ready' AND y.kind <> 'fork' ORDER BY y.created_at DESC, y.id DESC LIMIT 1) "

int snapshot_begin_delete(struct store *s, const struct snapshot *x, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, x->id);
    int r = pg_queue(s, "UPDATE snapshots SET state = 'deleting' WHERE id = $1", &a, err);
    if (r == 0)
        r = pg_queue(s, FORGET "WHERE b.last_snapshot_id = $1 AND b.state <> 'deleted'", &a, err);
    return r < 0 ? r : node_poke(s, x->node_id, err);
}

#define GRACE "interval '10 seconds'" /* what is being started from one says so in used_at first */

int snapshots_sweep(struct store *s, uint64_t *ret_n, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_int(&a, (int64_t)LIMIT_VALUE(keep_failed_snapshots_h));
    int r = pg_run(
        s,
        "UPDATE snapshots x SET state = 'deleting' WHERE x.id IN (SELECT id FROM snapshots WHERE "
        "(state = 'ready' AND kind <> 'snapshot') OR state IN ('ready', 'failed') AND (state = 'failed' OR NOT EXISTS "
        "(SELECT 1 FROM tenants t WHERE t.id = tenant_id)) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) "
        "AND x.state IN ('ready', 'failed') AND x.used_at < now() - " GRACE " AND ("
        "(x.state = 'failed' AND x.created_at < now() - $1::bigint * interval '1 hour') "
        "OR NOT EXISTS (SELECT 1 FROM tenants t WHERE t.id = x.tenant_id) "
        "OR (x.state = 'ready' AND NOT EXISTS (SELECT 1 FROM sandboxes b WHERE b.start_snapshot_id = x.id "
        "AND b.state IN ('creating', 'waking')) AND NOT EXISTS (SELECT 1 FROM sandboxes b "
        "WHERE b.last_snapshot_id = x.id AND b.state NOT IN ('deleting', 'deleted') AND x.kind <> 'fork') AND "
        /* the newest that holds memory stays beside newer ones that don't */
        "NOT EXISTS (SELECT 1 FROM sandboxes b WHERE x.kind = 'suspend' AND b.id = x.sandbox_id AND b.state NOT IN "
        "('deleting', 'deleted') AND NOT EXISTS (SELECT 1 FROM snapshots y WHERE y.sandbox_id = x.sandbox_id AND "
        "y.state = 'ready' AND y.kind <> 'fork' AND y.content = 'full' AND y.created_at > x.created_at)) AND "
        "(x.kind = 'suspend' OR (x.kind = 'checkpoint' AND NOT EXISTS (SELECT 1 FROM sandboxes b "
        "WHERE b.id = x.sandbox_id AND b.state NOT IN ('deleting', 'deleted'))) OR (x.kind = 'fork' AND NOT EXISTS "
        "(SELECT 1 FROM operations o WHERE o.id = x.operation_id AND o.state IN ('pending', 'running')))))) "
        "RETURNING x.id, x.node_id",
        &a, &res, err);
    for (int i = 0; r == 0 && i < pg_rows(res); i++) {
        a.n = 0;
        pg_text(&a, pg_get_text(res, i, 0));
        r = pg_queue(s, FORGET "WHERE b.last_snapshot_id = $1 AND b.state <> 'deleted'", &a, err);
        if (r == 0)
            r = node_poke(s, pg_get_text(res, i, 1), err);
    }
    if (r == 0)
        *ret_n = (uint64_t)pg_rows(res);
    return r;
}

/* ---- nodes ---- */

/* A text array literal of ids that have been checked. */
static void ids_literal(struct buf *out, const char *const *ids, size_t n) {
    buf_init(out, 1 << 20);
    (void)buf_append_byte(out, '{');
    for (size_t i = 0; i < n; i++)
        (void)buf_printf(out, "%s%s", i ? "," : "", ids[i]);
    (void)buf_append_byte(out, '}');
}

int snapshot_settle(struct store *s, const char *node_id, const char *sandbox_id, const struct observed_snapshot *x,
                    struct sp_error *err) {
    struct pg_args a = {0};
    if (x->state != SNAPSHOT_READY)
        return 0;
    pg_text(&a, x->id);
    pg_text(&a, node_id);
    pg_text(&a, sandbox_id);
    pg_int(&a, (int64_t)x->memory_bytes);
    pg_int(&a, (int64_t)x->disk_bytes);
    pg_int(&a, (int64_t)x->exclusive_bytes);
    pg_int(&a, (int64_t)x->stall_us);
    /* A copy of what a suspended sandbox stands on, and what children start from, is not what it wakes from. */
    return pg_queue(s,
                    "WITH x AS (UPDATE snapshots SET state = 'ready', ready_at = now(), memory_bytes = $4, "
                    "disk_bytes = $5, exclusive_bytes = $6, stall_us = $7 WHERE id = $1 AND node_id = $2 "
                    "AND sandbox_id = $3 AND state = 'creating' RETURNING sandbox_id, id, kind) "
                    "UPDATE sandboxes b SET last_snapshot_id = x.id FROM x WHERE b.id = x.sandbox_id "
                    "AND x.kind <> 'fork' AND b.state IN ('running', 'pausing', 'paused', 'suspending')",
                    &a, err);
}

int snapshots_settled(struct store *s, const char *const *ids, size_t n, struct store_result **ret_res,
                      const char **ret_json, struct sp_error *err) {
    _cleanup_buf_ struct buf list = {0};
    struct pg_args a = {0};
    ids_literal(&list, ids, n);
    pg_text(&a, list.data);
    int r = pg_run(s,
                   "SELECT json_agg(i) FROM unnest($1::text[]) i "
                   "WHERE NOT EXISTS (SELECT 1 FROM snapshots x WHERE x.id = i AND x.state = 'creating')",
                   &a, ret_res, err);
    if (r == 0)
        *ret_json = pg_get(*ret_res, 0, 0);
    return r;
}

int snapshots_removed(struct store *s, const char *node_id, const char *const *ids, size_t n, struct sp_error *err) {
    _cleanup_buf_ struct buf list = {0};
    struct pg_args a = {0};
    ids_literal(&list, ids, n);
    pg_text(&a, list.data);
    pg_text(&a, node_id);
    return pg_run(s, "DELETE FROM snapshots WHERE id = ANY($1::text[]) AND node_id = $2 AND state = 'deleting'", &a,
                  NULL, err);
}

int snapshots_unknown(struct store *s, const char *node_id, const char *const *ids, size_t n,
                      struct store_result **ret_res, const char **ret_json, struct sp_error *err) {
    _cleanup_buf_ struct buf list = {0};
    struct pg_args a = {0};
    ids_literal(&list, ids, n);
    pg_text(&a, list.data);
    pg_text(&a, node_id);
    int r = pg_run(s,
                   "SELECT json_agg(i) FROM unnest($1::text[]) i "
                   "WHERE NOT EXISTS (SELECT 1 FROM snapshots x WHERE x.id = i AND x.node_id = $2)",
                   &a, ret_res, err);
    if (r == 0)
        *ret_json = pg_get(*ret_res, 0, 0);
    return r;
}
