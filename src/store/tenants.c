/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tenants. Usage is counted when it is asked for: no counter can drift. */
#include "store/tenants.h"
#include "base/text.h"
#include "model/ids.h"
#include "model/limits.h"
#include "store/pg.h"

#define COLUMNS                                                                                                        \
    "t.id, t.name, t.max_sandboxes, t.max_vcpus, t.max_memory_mib, t.max_sessions_per_sandbox, "                       \
    "t.requests_per_second, " PG_MS("t.created_at") ", " PG_US("t.created_at") ", u.sandboxes, u.vcpus, u.memory_mib"
#define USAGE                                                                                                          \
    " CROSS JOIN LATERAL (SELECT count(*) AS sandboxes,"                                                               \
    " coalesce(sum(vcpus) FILTER (WHERE state <> 'failed'), 0) AS vcpus,"                                              \
    " coalesce(sum(memory_mib) FILTER (WHERE state <> 'failed'), 0) AS memory_mib"                                     \
    " FROM sandboxes WHERE tenant_id = t.id AND state NOT IN ('deleting', 'deleted')) u"

struct quotas quotas_default(void) {
    return (struct quotas){.max_sandboxes = LIMIT_VALUE(quota_sandboxes),
                           .max_vcpus = LIMIT_VALUE(quota_vcpus),
                           .max_memory_mib = LIMIT_VALUE(quota_memory_mib),
                           .max_sessions_per_sandbox = LIMIT_VALUE(quota_sessions),
                           .requests_per_second = LIMIT_VALUE(quota_requests)};
}

static void add_quotas(struct pg_args *a, const struct quotas *q) {
    pg_int(a, (int64_t)q->max_sandboxes);
    pg_int(a, (int64_t)q->max_vcpus);
    pg_int(a, (int64_t)q->max_memory_mib);
    pg_int(a, (int64_t)q->max_sessions_per_sandbox);
    pg_int(a, (int64_t)q->requests_per_second);
}

int tenant_insert(struct store *s, const char *id, const char *name, const struct quotas *q, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, name);
    add_quotas(&a, q);
    return pg_run(s,
                  "INSERT INTO tenants (id, name, max_sandboxes, max_vcpus, max_memory_mib, max_sessions_per_sandbox, "
                  "requests_per_second) VALUES ($1, $2, $3, $4, $5, $6, $7)",
                  &a, NULL, err);
}

void tenant_row(const struct store_result *res, int row, struct tenant *ret) {
    *ret = (struct tenant){
        .id = pg_get_text(res, row, 0),
        .name = pg_get_text(res, row, 1),
        .quotas = {.max_sandboxes = (uint64_t)pg_get_int(res, row, 2),
                   .max_vcpus = (uint64_t)pg_get_int(res, row, 3),
                   .max_memory_mib = (uint64_t)pg_get_int(res, row, 4),
                   .max_sessions_per_sandbox = (uint64_t)pg_get_int(res, row, 5),
                   .requests_per_second = (uint64_t)pg_get_int(res, row, 6)},
        .created_ms = pg_get_int(res, row, 7),
        .created_us = pg_get_int(res, row, 8),
        .sandboxes = (uint64_t)pg_get_int(res, row, 9),
        .vcpus = (uint64_t)pg_get_int(res, row, 10),
        .memory_mib = (uint64_t)pg_get_int(res, row, 11),
    };
}

int tenant_get(struct store *s, const char *id, bool lock, struct store_result **ret_res, struct tenant *ret,
               struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    int r = 0;
    pg_text(&a, id);
    /* The lock comes first, in a statement of its own, so that the count below sees what was committed meanwhile. */
    if (lock)
        r = pg_queue(s, "SELECT 1 FROM tenants WHERE id = $1 FOR NO KEY UPDATE", &a, err);
    if (r == 0)
        r = pg_run(s, "SELECT " COLUMNS " FROM tenants t" USAGE " WHERE t.id = $1", &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no tenant %s", id);
    tenant_row(res, 0, ret);
    *ret_res = TAKE_PTR(res);
    return 0;
}

int tenant_list(struct store *s, const struct store_page *page, struct store_result **ret_res, int *ret_n,
                struct sp_error *err) {
    struct pg_args a = {0};
    struct pg_cursor mem;
    pg_page(&a, page, &mem);
    pg_int(&a, page->limit);
    int r =
        pg_run(s,
               "SELECT " COLUMNS " FROM tenants t" USAGE
               " WHERE " PG_AFTER("t.created_at", "t.id", "$1", "$2") " ORDER BY t.created_at DESC, t.id DESC LIMIT $3",
               &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int tenant_update(struct store *s, const char *id, const char *name, const struct quotas *q, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, name);
    add_quotas(&a, q);
    return pg_run(s,
                  "UPDATE tenants SET name = $2, max_sandboxes = $3, max_vcpus = $4, max_memory_mib = $5, "
                  "max_sessions_per_sandbox = $6, requests_per_second = $7 WHERE id = $1",
                  &a, NULL, err);
}

int tenant_delete(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    /* Deleted sandboxes still name releases; the tags have to go before what they name. */
    int r = pg_run(s, "DELETE FROM sandboxes WHERE tenant_id = $1", &a, NULL, err);
    if (r == 0)
        r = pg_run(s, "DELETE FROM template_tags WHERE owner = $1", &a, NULL, err);
    if (r == 0)
        r = pg_run(s, "DELETE FROM templates WHERE owner = $1", &a, NULL, err);
    if (r == 0)
        r = pg_run(s, "DELETE FROM tenants WHERE id = $1", &a, NULL, err);
    return r;
}

int tenant_ensure(struct store *s, const char *name, char ret_id[32], struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct quotas q = quotas_default();
    struct pg_args a = {0};
    char id[ID_SIZE];
    id_new(id, ID_TENANT);
    pg_text(&a, id);
    pg_text(&a, name);
    add_quotas(&a, &q);
    int r = pg_run(s,
                   "INSERT INTO tenants (id, name, max_sandboxes, max_vcpus, max_memory_mib, max_sessions_per_sandbox, "
                   "requests_per_second) VALUES ($1, $2, $3, $4, $5, $6, $7) "
                   "ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id",
                   &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) != 1 || !text_copy(ret_id, ID_SIZE, pg_get_text(res, 0, 0)))
        return pg_corrupt(err, "tenant");
    return 0;
}
