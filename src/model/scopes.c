/* SPDX-License-Identifier: Apache-2.0 */
/* Names of scopes, in the order of their bits. */
#include "model/scopes.h"
#include "base/text.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[SCOPES_COUNT] = {"sandboxes:read",  "sandboxes:write",
                                                "sessions:write",  "templates:read",
                                                "templates:write", "tokens:write",
                                                "nodes:read",      "admin"};

const char *scope_name(unsigned bit_index) {
    assert(bit_index < SCOPES_COUNT);
    return names[bit_index];
}

bool scope_parse(const char *name, uint32_t *ret_bit) {
    for (unsigned i = 0; i < SCOPES_COUNT; i++)
        if (strcmp(names[i], name) == 0) {
            *ret_bit = 1u << i;
            return true;
        }
    return false;
}

bool scopes_allow(uint32_t held, uint32_t needed) {
    return (held & SCOPE_ADMIN) || (held & needed) == needed;
}

json_t *scopes_to_json(uint32_t set) {
    json_t *array = json_array();
    for (unsigned i = 0; i < SCOPES_COUNT; i++)
        if (set & (1u << i) && json_array_append_new(array, json_string(names[i])) < 0)
            abort();
    return array;
}

int scopes_from_json(const json_t *array, const char *field, uint32_t *ret, struct sp_error *err) {
    uint32_t set = 0;
    size_t i;
    json_t *item;

    json_array_foreach (array, i, item) {
        const char *name = json_string_value(item);
        uint32_t bit;
        if (!name || !scope_parse(name, &bit)) {
            const char *near = name ? text_nearest(name, names, SCOPES_COUNT) : NULL;
            char shown[48];
            return sp_error_field(err, SP_E_INVALID, field, "%s: unknown scope %s%s%s%s", field,
                                  name ? text_escape(shown, sizeof(shown), name, strlen(name)) : "(no string)",
                                  near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        }
        if (set & bit)
            return sp_error_field(err, SP_E_INVALID, field, "%s: %s is there twice", field, name);
        set |= bit;
    }
    if (set == 0)
        return sp_error_field(err, SP_E_INVALID, field, "%s must name at least one scope", field);
    *ret = set;
    return 0;
}
