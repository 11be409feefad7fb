/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of operations, read only: lifecycle.h writes them. */
#pragma once
#include "model/states.h"
#include "store/store.h"

struct operation {
    const char *id, *sandbox_id;
    enum operation_kind kind;
    enum operation_state state;
    enum operation_reason reason;
    const char *error_code, *error_message; /* NULL unless failed */
    const char *snapshot_id;                /* the one it makes, or starts from; NULL: none */
    const char *start_kind, *timings;       /* NULL: not said; timings: JSON text */
    const char *children;                   /* JSON text, of a fork alone */
    int64_t accepted_ms, accepted_us, started_ms, started_us, finished_ms, finished_us, deadline_ms;
};
int operation_row(const struct store_result *res, int row, struct operation *ret, struct sp_error *err);
int operation_get(struct store *s, const char *id, const char *tenant_id, struct store_result **ret_res,
                  struct operation *ret, struct sp_error *err);
/* sandbox_id and state may be NULL. */
int operation_list(struct store *s, const char *tenant_id, const char *sandbox_id, const char *state,
                   const struct store_page *page, struct store_result **ret_res, int *ret_n, struct sp_error *err);
