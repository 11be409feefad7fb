/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of operations. */
#include "store/operations.h"
#include "store/operation_columns.h"
#include "store/pg.h"

#define COLUMNS OPERATION_COLUMNS

int operation_row_at(const struct store_result *res, int row, int col, struct operation *ret, struct sp_error *err) {
    struct operation o = {
        .id = pg_get_text(res, row, col),
        .sandbox_id = pg_get_text(res, row, col + 1),
        .error_code = pg_get(res, row, col + 4),
        .error_message = pg_get(res, row, col + 5),
        .accepted_ms = pg_get_int(res, row, col + 6),
        .accepted_us = pg_get_int(res, row, col + 7),
        .started_ms = pg_get_int(res, row, col + 8),
        .finished_ms = pg_get_int(res, row, col + 9),
        .deadline_ms = pg_get_int(res, row, col + 10),
        .snapshot_id = pg_get(res, row, col + 12),
        .start_kind = pg_get(res, row, col + 13),
        .timings = pg_get(res, row, col + 14),
        .started_us = pg_get_int(res, row, col + 15),
        .finished_us = pg_get_int(res, row, col + 16),
        .children = pg_get(res, row, col + 17),
    };
    if (!operation_kind_parse(pg_get_text(res, row, col + 2), &o.kind) ||
        !operation_state_parse(pg_get_text(res, row, col + 3), &o.state) ||
        !operation_reason_parse(pg_get_text(res, row, col + 11), &o.reason))
        return pg_corrupt(err, "operation");
    *ret = o;
    return 0;
}

int operation_row(const struct store_result *res, int row, struct operation *ret, struct sp_error *err) {
    return operation_row_at(res, row, 0, ret, err);
}

int operation_get(struct store *s, const char *id, const char *tenant_id, struct store_result **ret_res,
                  struct operation *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, tenant_id);
    int r = pg_run(s, "SELECT " COLUMNS " FROM operations o WHERE o.id = $1 AND o.tenant_id = $2", &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no operation %s", id);
    r = operation_row(res, 0, ret, err);
    if (r == 0)
        *ret_res = TAKE_PTR(res);
    return r;
}

#define LIST(which)                                                                                                    \
    "SELECT " COLUMNS " FROM operations o WHERE " which                                                                \
    " AND ($5::text IS NULL OR o.state = $5) AND " PG_AFTER("o.accepted_at", "o.id", "$1",                             \
                                                            "$2") " ORDER BY o.accepted_at DESC, o.id DESC LIMIT $3"

int operation_list(struct store *s, const char *tenant_id, const char *sandbox_id, const char *state,
                   const struct store_page *page, struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    struct pg_cursor mem;
    pg_page(&a, page, &mem);
    pg_int(&a, page->limit);
    pg_text(&a, tenant_id);
    pg_text(&a, state);
    if (sandbox_id)
        pg_text(&a, sandbox_id);
    int r = pg_run(s, sandbox_id ? LIST("o.tenant_id = $4 AND o.sandbox_id = $6") : LIST("o.tenant_id = $4"), &a,
                   ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}
