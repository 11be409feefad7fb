/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of pools. A change of one is news for every node. */
#include "store/pools.h"
#include "store/nodes.h"
#include "store/pg.h"

int pool_insert(struct store *s, const struct pool_new_row *n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, n->id);
    pg_text(&a, n->template_id);
    pg_text(&a, n->template_name);
    pg_text(&a, n->template_tag);
    pg_text(&a, n->digest);
    pg_int(&a, (int64_t)n->vcpus);
    pg_int(&a, (int64_t)n->memory_mib);
    pg_int(&a, (int64_t)n->size);
    int r = pg_run(s,
                   "INSERT INTO pools (id, template_id, template_name, template_tag, digest, vcpus, memory_mib, size) "
                   "VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                   &a, NULL, err);
    return r < 0 ? r : node_poke_all(s, err);
}

int pool_list(struct store *s, const char *id, struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    int r = pg_run(
        s,
        "SELECT p.id, p.template_name, p.template_tag, p.digest, p.vcpus, p.memory_mib, p.size, coalesce((SELECT "
        "json_agg(json_build_object('node_id', q.node_id, 'warm', q.warm, 'filling', q.filling, 'target', q.target, "
        "'hits', q.hits, 'misses', q.misses, 'reported_at', to_char(q.reported_at AT TIME ZONE 'UTC', "
        "'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')) ORDER BY q.node_id) FROM pool_nodes q WHERE q.pool_id = p.id)::text, "
        "'[]'), " PG_MS("p.created_at") " FROM pools p WHERE $1::text IS NULL OR p.id = $1 ORDER BY p.created_at, p.id",
        &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

void pool_row(const struct store_result *res, int row, struct pool *ret) {
    *ret = (struct pool){.id = pg_get_text(res, row, 0),
                         .template_name = pg_get_text(res, row, 1),
                         .template_tag = pg_get(res, row, 2),
                         .digest = pg_get_text(res, row, 3),
                         .vcpus = (uint64_t)pg_get_int(res, row, 4),
                         .memory_mib = (uint64_t)pg_get_int(res, row, 5),
                         .size = (uint64_t)pg_get_int(res, row, 6),
                         .nodes = pg_get_text(res, row, 7),
                         .created_ms = pg_get_int(res, row, 8)};
}

static int changed(struct store *s, const char *id, int r, uint64_t n, struct sp_error *err) {
    if (r == 0 && n == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no pool %s", id);
    return r < 0 ? r : node_poke_all(s, err);
}

int pool_resize(struct store *s, const char *id, uint64_t size, struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t n = 0;
    pg_text(&a, id);
    pg_int(&a, (int64_t)size);
    int r = pg_count(s, "UPDATE pools SET size = $2 WHERE id = $1", &a, &n, err);
    return changed(s, id, r, n, err);
}

int pool_delete(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t n = 0;
    pg_text(&a, id);
    int r = pg_count(s, "DELETE FROM pools WHERE id = $1", &a, &n, err);
    return changed(s, id, r, n, err);
}

int pools_follow_tag(struct store *s, const char *owner, const char *name, const char *tag, struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t n = 0;
    pg_text(&a, owner);
    pg_text(&a, name);
    pg_text(&a, tag);
    int r = pg_count(s,
                     "UPDATE pools p SET template_id = t.id, digest = t.digest FROM template_tags g "
                     "JOIN templates t ON t.id = g.template_id WHERE g.owner = $1 AND g.name = $2 AND g.tag = $3 "
                     "AND p.template_name = $2 AND p.template_tag = $3 AND p.digest <> t.digest "
                     "AND EXISTS (SELECT 1 FROM templates o WHERE o.id = p.template_id AND o.owner = $1) "
                     "AND NOT EXISTS (SELECT 1 FROM pools q WHERE q.digest = t.digest AND q.vcpus = p.vcpus "
                     "AND q.memory_mib = p.memory_mib)",
                     &a, &n, err);
    return r < 0 || n == 0 ? r : node_poke_all(s, err);
}

int pool_report(struct store *s, const char *node_id, const struct pool_report *r, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, r->pool_id);
    pg_text(&a, node_id);
    pg_int(&a, (int64_t)r->warm);
    pg_int(&a, (int64_t)r->filling);
    pg_int(&a, (int64_t)r->target);
    pg_int(&a, (int64_t)r->hits);
    pg_int(&a, (int64_t)r->misses);
    return pg_queue(s,
                    "INSERT INTO pool_nodes (pool_id, node_id, warm, filling, target, hits, misses) "
                    "SELECT p.id, $2, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint FROM pools p "
                    "WHERE p.id = $1 FOR KEY SHARE "
                    "ON CONFLICT (pool_id, node_id) DO UPDATE SET warm = excluded.warm, filling = excluded.filling, "
                    "target = excluded.target, hits = excluded.hits, misses = excluded.misses, reported_at = now()",
                    &a, err);
}
