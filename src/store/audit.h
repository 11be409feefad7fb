/* SPDX-License-Identifier: Apache-2.0 */
/* Who changed what. One row a mutation, in its transaction; never a secret. */
#pragma once
#include "store/store.h"

struct audit_row {
    const char *tenant_id, *token_id, *action /* operationId of the route */, *object_id /* may be "" */, *peer;
};
int audit_add(struct store *s, const struct audit_row *row, struct sp_error *err);
