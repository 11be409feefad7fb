/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of an operation (alias o), for the two files of the store that read them. */
#pragma once
#include "store/operations.h"
#include "store/pg.h"

#define OPERATION_COLUMNS                                                                                                                                                                                                               \
    "o.id, o.sandbox_id, o.kind, o.state, o.error_code, o.error_message, " PG_MS("o.accepted_at") ", " PG_US(                                                                                                                           \
        "o."                                                                                                                                                                                                                            \
        "accepte"                                                                                                                                                                                                                       \
        "d_at") ", " PG_MS("o.started_at") ", " PG_MS("o.finished_at") ", " PG_MS("o.deadline_at") ", o.reason, "                                                                                                                       \
                                                                                                   "o.snapshot_id, "                                                                                                                    \
                                                                                                   "o.start_kind, "                                                                                                                     \
                                                                                                   "o.timings,"                                                                                                                         \
                                                                                                   " " PG_US(                                                                                                                           \
                                                                                                       "o."                                                                                                                             \
                                                                                                       "st"                                                                                                                             \
                                                                                                       "ar"                                                                                                                             \
                                                                                                       "te"                                                                                                                             \
                                                                                                       "d_"                                                                                                                             \
                                                                                                       "a"                                                                                                                              \
                                                                                                       "t") ","                                                                                                                         \
                                                                                                            " " PG_US(                                                                                                                  \
                                                                                                                "o."                                                                                                                    \
                                                                                                                "fini"                                                                                                                  \
                                                                                                                "shed"                                                                                                                  \
                                                                                                                "_at") ", "                                                                                                             \
                                                                                                                       "CASE WHEN o.kind = 'fork' THEN (SELECT json_agg(json_build_object('sandbox_id', c.sandbox_id, 'operation_id', " \
                                                                                                                       "c.id, 'state', c.state, 'error', CASE WHEN c.error_code IS NOT NULL THEN json_build_object('code', "            \
                                                                                                                       "c.error_code, 'message', c.error_message) END) ORDER BY c.fork_index) FROM operations c "                       \
                                                                                                                       "WHERE c.fork_id = o.id)::text END"
/* The same from column `col` on. */
int operation_row_at(const struct store_result *res, int row, int col, struct operation *ret, struct sp_error *err);
