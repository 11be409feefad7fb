/* SPDX-License-Identifier: Apache-2.0 */
/* The columns of a sandbox in one place, and the reads that use them. */
#include "store/sandboxes.h"
#include "model/limits.h"
#include "store/operation_columns.h"
#include "store/pg.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define LOST_AFTER "interval '" STRING(30000) " milliseconds'"
_Static_assert(LIMIT_VALUE_node_lost_ms == 30000, "LOST_AFTER says the same");

#define COLUMNS                                                                                                        \
    "s.id, s.tenant_id, s.name, s.state, s.ready AND n.last_seen_at > now() - " LOST_AFTER                             \
    ", s.template_name, s.template_tag, s.digest, s.vcpus, s.memory_mib, s.generation, s.metadata, s.node_id, "        \
    "n.gateway_url, s.released_at IS NOT NULL, s.operation_id, s.delete_operation_id, s.error_code, s.error_message, " \
    "s.accelerator, s.kernel, s.vmm, s.timings, " PG_MS("s.created_at") ", " PG_US("s.created_at") ", " PG_MS(         \
        "s.updated_at") ", " PG_MS("s.started_at") ", " PG_MS("s.deleted_at") ", s.template_id, s.lifecycle, "         \
                                                                              "s.start_snapshot_id, "                  \
                                                                              "s.last_snapshot_id, "                   \
                                                                              "s.parent_sandbox_id, "                  \
                                                                              "s.parent_snapshot_id, s.start_kind, "   \
                                                                              "s.streams, " PG_MS("s.active_at")
#define N_COLUMNS 37
#define FROM " FROM sandboxes s LEFT JOIN nodes n ON n.id = s.node_id "

int sandbox_row(const struct store_result *res, int row, struct sandbox *ret, struct sp_error *err) {
    struct sandbox b = {
        .id = pg_get_text(res, row, 0),
        .tenant_id = pg_get_text(res, row, 1),
        .name = pg_get(res, row, 2),
        .ready = pg_get_bool(res, row, 4),
        .template_name = pg_get_text(res, row, 5),
        .template_tag = pg_get(res, row, 6),
        .digest = pg_get_text(res, row, 7),
        .vcpus = (uint64_t)pg_get_int(res, row, 8),
        .memory_mib = (uint64_t)pg_get_int(res, row, 9),
        .generation = (uint64_t)pg_get_int(res, row, 10),
        .metadata = pg_get_text(res, row, 11),
        .node_id = pg_get(res, row, 12),
        .gateway_url = pg_get(res, row, 13),
        .is_released = pg_get_bool(res, row, 14),
        .operation_id = pg_get(res, row, 15),
        .delete_operation_id = pg_get(res, row, 16),
        .error_code = pg_get(res, row, 17),
        .error_message = pg_get(res, row, 18),
        .accelerator = pg_get(res, row, 19),
        .kernel = pg_get(res, row, 20),
        .vmm = pg_get(res, row, 21),
        .timings = pg_get(res, row, 22),
        .created_ms = pg_get_int(res, row, 23),
        .created_us = pg_get_int(res, row, 24),
        .updated_ms = pg_get_int(res, row, 25),
        .started_ms = pg_get_int(res, row, 26),
        .deleted_ms = pg_get_int(res, row, 27),
        .template_id = pg_get(res, row, 28),
        .lifecycle = pg_get_text(res, row, 29),
        .start_snapshot_id = pg_get(res, row, 30),
        .last_snapshot_id = pg_get(res, row, 31),
        .parent_sandbox_id = pg_get(res, row, 32),
        .parent_snapshot_id = pg_get(res, row, 33),
        .start_kind = pg_get(res, row, 34),
        .streams = (uint64_t)pg_get_int(res, row, 35),
        .active_ms = pg_get_int(res, row, 36),
    };
    if (!sandbox_state_parse(pg_get_text(res, row, 3), &b.state))
        return pg_corrupt(err, "sandbox state");
    *ret = b;
    return 0;
}

int sandbox_get(struct store *s, const char *id, const char *tenant_id, bool lock, struct store_result **ret_res,
                struct sandbox *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, tenant_id);
    int r = 0;
    if (lock) /* on its own, see lifecycle_observe.c */
        r = pg_queue(s,
                     "SELECT 1 FROM sandboxes WHERE id = $1 AND ($2::text IS NULL OR tenant_id = $2) FOR NO KEY UPDATE",
                     &a, err);
    if (r == 0)
        r = pg_run(s, "SELECT " COLUMNS FROM "WHERE s.id = $1 AND ($2::text IS NULL OR s.tenant_id = $2)", &a, &res,
                   err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no sandbox %s", id);
    r = sandbox_row(res, 0, ret, err);
    if (r == 0)
        *ret_res = TAKE_PTR(res);
    return r;
}

int sandbox_get_by_operation(struct store *s, const char *operation_id, const char *tenant_id,
                             struct store_result **ret_res, struct operation *ret_operation, struct sandbox *ret,
                             struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct operation op;
    struct pg_args a = {0};
    pg_text(&a, operation_id);
    pg_text(&a, tenant_id);
    int r = pg_run(s,
                   "SELECT " COLUMNS ", " OPERATION_COLUMNS FROM "JOIN operations o ON o.sandbox_id = s.id "
                   "WHERE o.id = $1 AND o.tenant_id = $2",
                   &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no operation %s", operation_id);
    r = operation_row_at(res, 0, N_COLUMNS, &op, err);
    if (r == 0)
        r = sandbox_row(res, 0, ret, err);
    if (r < 0)
        return r;
    *ret_operation = op;
    *ret_res = TAKE_PTR(res);
    return 0;
}

/* The two partial indexes are chosen by these texts, so they stay literal. */
#define LIST(which)                                                                                                    \
    "SELECT " COLUMNS FROM "WHERE s.tenant_id = $4 AND s.state " which                                                 \
    " AND ($5::text IS NULL OR s.state = $5) AND ($6::text IS NULL OR s.name = $6) "                                   \
    "AND ($7::jsonb IS NULL OR s.metadata @> $7) AND " PG_AFTER(                                                       \
        "s.created_at", "s.id", "$1", "$2") " ORDER BY s.created_at DESC, s.id DESC LIMIT $3"

int sandbox_list(struct store *s, const struct sandbox_filter *f, const struct store_page *page,
                 struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    enum sandbox_state state = SANDBOX_CREATING;
    struct pg_args a = {0};
    struct pg_cursor mem;
    pg_page(&a, page, &mem);
    pg_int(&a, page->limit);
    pg_text(&a, f->tenant_id);
    pg_text(&a, f->state);
    pg_text(&a, f->name);
    pg_text(&a, f->metadata);
    if (f->state)
        (void)sandbox_state_parse(f->state, &state);
    int r = pg_run(s, state == SANDBOX_DELETED ? LIST("= 'deleted'") : LIST("<> 'deleted'"), &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int sandbox_describe(struct store *s, const char *id, const struct sandbox_description *d, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, d->name);
    pg_text(&a, d->metadata);
    pg_text(&a, d->lifecycle);
    pg_int(&a, (int64_t)d->idle_s);
    pg_int(&a, (int64_t)d->life_s);
    pg_int(&a, (int64_t)d->checkpoint_s);
    return pg_queue(s,
                    "UPDATE sandboxes SET name = $2, metadata = $3, lifecycle = $4, idle_s = nullif($5::bigint, 0), "
                    "life_s = nullif($6::bigint, 0), checkpoint_s = nullif($7::bigint, 0), active_at = policy_now(), "
                    "updated_at = now() WHERE id = $1",
                    &a, err);
}

int sandbox_touch(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    return pg_queue(s, "UPDATE sandboxes SET active_at = policy_now() WHERE id = $1", &a, err);
}

int sandbox_env(struct store *s, const char *id, struct store_result **ret_res, const char **ret_env,
                struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    int r = pg_run(s, "SELECT env FROM sandboxes WHERE id = $1", &a, ret_res, err);
    if (r == 0)
        *ret_env = pg_rows(*ret_res) ? pg_get_text(*ret_res, 0, 0) : "{}";
    return r;
}
