/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of template releases and tags. A create holds its release FOR KEY SHARE, a removal FOR UPDATE: one waits. */
#include "store/templates.h"
#include "base/text.h"
#include "store/pg.h"
#include "store/pools.h"

#define COLUMNS                                                                                                        \
    "t.id, t.owner, t.name, t.digest, t.manifest, t.size_bytes, " PG_MS("t.created_at") ", " PG_US(                    \
        "t.created_at") ", coalesce((SELECT json_agg(g.tag ORDER BY g.tag) FROM template_tags g WHERE g.template_id "  \
                        "= t.id), '[]')"

void template_row(const struct store_result *res, int row, struct template *ret) {
    *ret = (struct template){
        .id = pg_get_text(res, row, 0),
        .owner = pg_get_text(res, row, 1),
        .name = pg_get_text(res, row, 2),
        .digest = pg_get_text(res, row, 3),
        .manifest = pg_get_text(res, row, 4),
        .size_bytes = (uint64_t)pg_get_int(res, row, 5),
        .created_ms = pg_get_int(res, row, 6),
        .created_us = pg_get_int(res, row, 7),
        .tags = pg_get_text(res, row, 8),
    };
}

int template_owner(struct store *s, const char *tenant_id, const char *name, char ret_owner[32], struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, tenant_id);
    pg_text(&a, name);
    int r = pg_run(s, "SELECT owner FROM templates WHERE owner IN ($1, '') AND name = $2 ORDER BY owner DESC LIMIT 1",
                   &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no template %s", name);
    if (!text_copy(ret_owner, 32, pg_get_text(res, 0, 0)))
        return pg_corrupt(err, "template");
    return 0;
}

static int one(struct store_result **res, struct store_result **ret_res, struct template *ret, const char *name,
               struct sp_error *err) {
    if (pg_rows(*res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "template %s has no such release", name);
    template_row(*res, 0, ret);
    *ret_res = TAKE_PTR(*res);
    return 0;
}

int template_resolve(struct store *s, const char *tenant_id, const struct template_ref *ref,
                     struct store_result **ret_res, struct template *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, tenant_id);
    pg_text(&a, ref->name);
    pg_text(&a, *ref->digest ? ref->digest : ref->tag);
    /* The owner is chosen by the name alone, so a tenant's own template never falls through to a shared tag. */
    int r = pg_run(s,
                   *ref->digest
                       ? "SELECT " COLUMNS " FROM templates t WHERE t.name = $2 AND t.digest = $3 AND t.owner = "
                         "(SELECT max(owner) FROM templates WHERE owner IN ($1, '') AND name = $2) FOR KEY SHARE OF t"
                       : "SELECT " COLUMNS " FROM templates t JOIN template_tags k ON k.template_id = t.id "
                         "WHERE k.name = $2 AND k.tag = $3 AND k.owner = "
                         "(SELECT max(owner) FROM templates WHERE owner IN ($1, '') AND name = $2) FOR KEY SHARE OF t",
                   &a, &res, err);
    return r < 0 ? r : one(&res, ret_res, ret, ref->name, err);
}

int template_insert(struct store *s, const struct template_new_row *t, bool *ret_is_new, struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t n;
    pg_text(&a, t->id);
    pg_text(&a, t->owner);
    pg_text(&a, t->name);
    pg_text(&a, t->digest);
    pg_int(&a, (int64_t)t->size_bytes);
    pg_text(&a, t->manifest);
    int r = pg_count(s,
                     "INSERT INTO templates (id, owner, name, digest, size_bytes, manifest) "
                     "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT ON CONSTRAINT templates_release DO NOTHING",
                     &a, &n, err);
    if (r == 0)
        *ret_is_new = n == 1;
    return r;
}

int template_get(struct store *s, const char *owner, const char *name, const char *digest,
                 struct store_result **ret_res, struct template *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, owner);
    pg_text(&a, name);
    pg_text(&a, digest);
    int r = pg_run(s, "SELECT " COLUMNS " FROM templates t WHERE t.owner = $1 AND t.name = $2 AND t.digest = $3", &a,
                   &res, err);
    return r < 0 ? r : one(&res, ret_res, ret, name, err);
}

int template_list(struct store *s, const char *tenant_id, const char *name, const struct store_page *page,
                  struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    struct pg_cursor mem;
    pg_page(&a, page, &mem);
    pg_int(&a, page->limit);
    pg_text(&a, tenant_id);
    pg_text(&a, name);
    int r =
        pg_run(s,
               "SELECT " COLUMNS " FROM templates t WHERE t.owner IN ($4, '') AND ($5::text IS NULL OR t.name = $5) "
               "AND " PG_AFTER("t.created_at", "t.id", "$1", "$2") " ORDER BY t.created_at DESC, t.id DESC LIMIT $3",
               &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int template_releases(struct store *s, const char *owner, const char *name, unsigned limit,
                      struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, owner);
    pg_text(&a, name);
    pg_int(&a, limit);
    int r = pg_run(s,
                   "SELECT " COLUMNS " FROM templates t WHERE t.owner = $1 AND t.name = $2 "
                   "ORDER BY t.created_at DESC, t.id DESC LIMIT $3",
                   &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int template_count(struct store *s, const char *owner, uint64_t *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, owner);
    int r = pg_run(s, "SELECT count(*) FROM templates WHERE owner = $1", &a, &res, err);
    if (r == 0)
        *ret = (uint64_t)pg_get_int(res, 0, 0);
    return r;
}

/* ---- tags ---- */

#define TAG_COLUMNS "g.tag, t.digest, " PG_MS("g.updated_at")

void template_tag_row(const struct store_result *res, int row, struct template_tag *ret) {
    *ret = (struct template_tag){.tag = pg_get_text(res, row, 0),
                                 .digest = pg_get_text(res, row, 1),
                                 .updated_ms = pg_get_int(res, row, 2)};
}

int template_tags(struct store *s, const char *owner, const char *name, struct store_result **ret_res, int *ret_n,
                  struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, owner);
    pg_text(&a, name);
    int r = pg_run(s,
                   "SELECT " TAG_COLUMNS " FROM template_tags g JOIN templates t ON t.id = g.template_id "
                   "WHERE g.owner = $1 AND g.name = $2 ORDER BY g.tag",
                   &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int template_tag_get(struct store *s, const char *owner, const char *name, const char *tag,
                     struct store_result **ret_res, struct template_tag *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, owner);
    pg_text(&a, name);
    pg_text(&a, tag);
    int r = pg_run(s,
                   "SELECT " TAG_COLUMNS " FROM template_tags g JOIN templates t ON t.id = g.template_id "
                   "WHERE g.owner = $1 AND g.name = $2 AND g.tag = $3",
                   &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "template %s has no tag %s", name, tag);
    template_tag_row(res, 0, ret);
    *ret_res = TAKE_PTR(res);
    return 0;
}

int template_tag_set(struct store *s, const char *owner, const char *name, const char *tag, const char *digest,
                     struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t n;
    pg_text(&a, owner);
    pg_text(&a, name);
    pg_text(&a, tag);
    pg_text(&a, digest);
    int r =
        pg_count(s,
                 "INSERT INTO template_tags (owner, name, tag, template_id) "
                 "SELECT owner, name, $3, id FROM templates WHERE owner = $1 AND name = $2 AND digest = $4 "
                 "ON CONFLICT (owner, name, tag) DO UPDATE SET template_id = excluded.template_id, updated_at = now()",
                 &a, &n, err);
    if (r == 0 && n == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "template %s has no such release", name);
    return r < 0 ? r : pools_follow_tag(s, owner, name, tag, err);
}

int template_tag_delete(struct store *s, const char *owner, const char *name, const char *tag, struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t n;
    pg_text(&a, owner);
    pg_text(&a, name);
    pg_text(&a, tag);
    int r = pg_count(s, "DELETE FROM template_tags WHERE owner = $1 AND name = $2 AND tag = $3", &a, &n, err);
    if (r == 0 && n == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "template %s has no tag %s", name, tag);
    return r;
}

/* ---- removal ---- */

int template_uses(struct store *s, const char *owner, const char *name, const char *digest, struct template_uses *ret,
                  struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    uint64_t n;
    pg_text(&a, owner);
    pg_text(&a, name);
    pg_text(&a, digest);
    /* The locks wait for creates that hold the release, so they come before the count. */
    int r = pg_count(s,
                     "SELECT 1 FROM templates WHERE owner = $1 AND name = $2 AND ($3::text IS NULL OR digest = $3) "
                     "ORDER BY id FOR UPDATE",
                     &a, &n, err);
    if (r == 0)
        r = pg_run(
            s,
            "SELECT (SELECT count(*) FROM sandboxes b WHERE b.template_id = ANY(x.ids) AND b.state <> 'deleted'), "
            "(SELECT count(*) FROM template_tags g WHERE g.template_id = ANY(x.ids)), "
            "(SELECT count(*) FROM snapshots y WHERE y.template_id = ANY(x.ids) AND y.state IN ('creating', 'ready')) "
            "+ (SELECT count(*) FROM pools p WHERE p.template_id = ANY(x.ids)) "
            "FROM (SELECT coalesce(array_agg(id), '{}') AS ids FROM templates "
            "WHERE owner = $1 AND name = $2 AND ($3::text IS NULL OR digest = $3)) x",
            &a, &res, err);
    if (r < 0)
        return r;
    *ret = (struct template_uses){.releases = n,
                                  .sandboxes = (uint64_t)pg_get_int(res, 0, 0),
                                  .tags = (uint64_t)pg_get_int(res, 0, 1),
                                  .others = (uint64_t)pg_get_int(res, 0, 2)};
    return 0;
}

int template_delete(struct store *s, const char *owner, const char *name, const char *digest, struct sp_error *err) {
    struct pg_args a = {0};
    int r = 0;
    pg_text(&a, owner);
    pg_text(&a, name);
    if (!digest)
        r = pg_run(s, "DELETE FROM template_tags WHERE owner = $1 AND name = $2", &a, NULL, err);
    pg_text(&a, digest);
    if (r == 0)
        r = pg_run(s, "DELETE FROM templates WHERE owner = $1 AND name = $2 AND ($3::text IS NULL OR digest = $3)", &a,
                   NULL, err);
    return r;
}
