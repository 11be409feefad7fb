/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the audit table. */
#include "store/audit.h"
#include "store/pg.h"

int audit_add(struct store *s, const struct audit_row *row, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, row->tenant_id);
    pg_text(&a, row->token_id);
    pg_text(&a, row->action);
    pg_text_or_null(&a, row->object_id);
    pg_text(&a, row->peer);
    return pg_queue(s, "INSERT INTO audit (tenant_id, token_id, action, object_id, peer) VALUES ($1, $2, $3, $4, $5)",
                    &a, err);
}
