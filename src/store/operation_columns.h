/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of an operation (alias o), for the two files of the store that read them. */
#pragma once
#include "store/operations.h"
#include "store/pg.h"

#define OPERATION_COLUMNS                                                                                              \
    "o.id, o.sandbox_id, o.kind, o.state, o.error_code, o.error_message, " PG_MS("o.accepted_at") ", " PG_US(          \
        "o.accepted_at") ", " PG_MS("o.started_at") ", " PG_MS("o.finished_at") ", " PG_MS("o.deadline_at")
/* The same from column `col` on. */
int operation_row_at(const struct store_result *res, int row, int col, struct operation *ret, struct sp_error *err);
