/* SPDX-License-Identifier: Apache-2.0 */
/* Query strings and the Prefer header, turned into what the validator checks. Pure. */
#pragma once
#include "model/validate.h"

/* "a=1&metadata.k=v" → {"a": 1, "metadata": {"k": "v"}}, validated against the table. Parameters of FIELD_UINT rows become
 * numbers; a row of FIELD_MAP takes <name>.<key>. Unknown and doubled parameters are errors. */
int query_parse(const struct field_table *table, const char *query, json_t **ret, struct sp_error *err);
/* Prefer: wait=N among other preferences (which are ignored, as RFC 7240 has it). value may be NULL. 0 when none. */
int query_parse_prefer(const char *value, unsigned *ret_wait_s, struct sp_error *err);
