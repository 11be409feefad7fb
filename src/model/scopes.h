/* SPDX-License-Identifier: Apache-2.0 */
/* Scopes of management tokens, as names and as a set of bits. */
#pragma once
#include "base/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum scope {
    SCOPE_SANDBOXES_READ = 1u << 0,
    SCOPE_SANDBOXES_WRITE = 1u << 1,
    SCOPE_SESSIONS_WRITE = 1u << 2,
    SCOPE_TEMPLATES_READ = 1u << 3,
    SCOPE_TEMPLATES_WRITE = 1u << 4,
    SCOPE_TOKENS_WRITE = 1u << 5,
    SCOPE_NODES_READ = 1u << 6,
    SCOPE_ADMIN = 1u << 7, /* all of the above, and other tenants where a route says so */
    SCOPE_ALL = (1u << 8) - 1,
};
#define SCOPES_COUNT 8

const char *scope_name(unsigned bit_index); /* < SCOPES_COUNT */
bool scope_parse(const char *name, uint32_t *ret_bit);
/* needed = 0: any token will do. */
bool scopes_allow(uint32_t held, uint32_t needed);
/* Set → JSON array of names, in the order of the enum. */
json_t *scopes_to_json(uint32_t set);
/* Array of distinct known names, at least one; errors name `field`. */
int scopes_from_json(const json_t *array, const char *field, uint32_t *ret, struct sp_error *err);
