/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jansson with our limits: duplicates refused, depth ≤ 32, size ≤ the caller's maximum, the whole input is one value.
 * Getters name the field in their error (path is the prefix shown, "" at the top): "resources.vcpus must be ...".
 */
#pragma once
#include "base/cleanup.h"
#include "base/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define _cleanup_json_ __attribute__((cleanup(json_unrefp)))
static inline void json_unrefp(json_t **j) {
    json_decref(*j);
}

int json_parse(const char *data, size_t len, size_t max, json_t **ret, struct sp_error *err);
char *json_print(const json_t *j); /* compact, heap; aborts on out of memory */
/* Required string of min..max bytes, no NUL inside. *ret borrows from the object. */
int json_get_string(const json_t *obj, const char *path, const char *key, size_t min, size_t max, const char **ret,
                    struct sp_error *err);
/* Optional (missing or null → *ret = fallback). */
int json_get_opt_string(const json_t *obj, const char *path, const char *key, size_t min, size_t max,
                        const char *fallback, const char **ret, struct sp_error *err);
int json_get_u64(const json_t *obj, const char *path, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
                 struct sp_error *err);
int json_get_opt_u64(const json_t *obj, const char *path, const char *key, uint64_t min, uint64_t max,
                     uint64_t fallback, uint64_t *ret, struct sp_error *err);
int json_get_opt_bool(const json_t *obj, const char *path, const char *key, bool fallback, bool *ret,
                      struct sp_error *err);
/* Optional object / array: *ret = NULL when missing. */
int json_get_opt_object(const json_t *obj, const char *path, const char *key, json_t **ret, struct sp_error *err);
int json_get_opt_array(const json_t *obj, const char *path, const char *key, size_t max_items, json_t **ret,
                       struct sp_error *err);
/* SP_E_INVALID naming the unknown key and the nearest known one when obj holds a key not in names (NULL-ended). */
int json_check_keys(const json_t *obj, const char *path, const char *const *names, struct sp_error *err);

/* The error as it crosses process boundaries: {code, errno, op, field, text}. Encoding aborts on out of memory; an
 * unknown code (a newer peer) decodes as SP_E_INTERNAL. sp_error_decode returns 0 when *ret_error was filled. */
json_t *sp_error_encode(const struct sp_error *err);
int sp_error_decode(const json_t *obj, struct sp_error *ret_error, struct sp_error *err);
