/* SPDX-License-Identifier: Apache-2.0 */
/* Query parameters against rows of fields. */
#include "control/query.h"
#include "base/json.h"
#include "base/text.h"
#include "model/limits.h"
#include "wire/url.h"
#include <assert.h>
#include <string.h>
#include <strings.h>

#define KEY_SIZE 128
#define VALUE_SIZE 1024
#define ROWS_MAX 16

static int bad(struct sp_error *err, const char *key, const char *why) {
    char shown[60];
    (void)text_escape(shown, sizeof(shown), key, strlen(key));
    return sp_error_field(err, SP_E_INVALID, shown, "query parameter %s %s", shown, why);
}

static int set_new(json_t *obj, const char *key, json_t *value, const char *shown, struct sp_error *err) {
    if (json_object_get(obj, key)) {
        json_decref(value);
        return bad(err, shown, "is given twice");
    }
    if (!value || json_object_set_new(obj, key, value) < 0) /* no UTF-8 */
        return bad(err, shown, "must be UTF-8");
    return 0;
}

static int add_to_map(const struct field *f, json_t *out, const char *key, const char *value, struct sp_error *err) {
    json_t *map = json_object_get(out, f->name);
    if (!map) {
        map = json_object();
        (void)json_object_set_new(out, f->name, map);
    }
    return set_new(map, key + strlen(f->name) + 1, json_string(value), key, err);
}

static int add(const struct field_table *table, json_t *out, const char *key, const char *value, struct sp_error *err) {
    const char *names[ROWS_MAX];
    char why[96];
    uint64_t number;
    assert(table->n_fields <= ROWS_MAX);
    for (size_t i = 0; i < table->n_fields; i++) {
        const struct field *f = &table->fields[i];
        size_t len = strlen(f->name);
        names[i] = f->name;
        if (f->type == FIELD_MAP && strncmp(key, f->name, len) == 0 && key[len] == '.')
            return add_to_map(f, out, key, value, err);
        if (f->type == FIELD_MAP || strcmp(f->name, key) != 0)
            continue;
        bool is_number = f->type == FIELD_UINT && text_to_u64(value, 0, INT64_MAX, &number);
        return set_new(out, key, is_number ? json_integer((json_int_t)number) : json_string(value), key, err);
    }
    const char *near = text_nearest(key, names, table->n_fields);
    (void)snprintf(why, sizeof(why), "is not known%s%.40s%s", near ? "; did you mean " : "", near ? near : "",
                   near ? "?" : "");
    return bad(err, key, why);
}

int query_parse(const struct field_table *table, const char *query, json_t **ret, struct sp_error *err) {
    _cleanup_json_ json_t *out = json_object();
    char key[KEY_SIZE], value[VALUE_SIZE];
    size_t pos = 0, len = strlen(query);
    int r;
    while ((r = url_query_next(query, len, &pos, key, sizeof(key), value, sizeof(value))) == 1) {
        r = add(table, out, key, value, err);
        if (r < 0)
            return r;
    }
    if (r < 0)
        return sp_error_field(err, SP_E_INVALID, "", "the query is badly encoded, or a part of it is too long");
    r = validate_body(table, out, err);
    if (r == 0)
        *ret = TAKE_PTR(out);
    return r;
}

int query_parse_prefer(const char *value, unsigned *ret_wait_s, struct sp_error *err) {
    while (value && *value) {
        char item[32];
        size_t n;
        uint64_t wait;
        value += strspn(value, " \t,");
        n = strcspn(value, ",;");
        if (n >= 5 && strncasecmp(value, "wait=", 5) == 0) {
            while (n > 5 && (value[n - 1] == ' ' || value[n - 1] == '\t'))
                n--;
            if (n >= sizeof(item))
                n = sizeof(item) - 1;
            memcpy(item, value, n);
            item[n] = '\0';
            if (!text_to_u64(item + 5, 0, LIMIT_VALUE(wait_seconds), &wait))
                return sp_error_field(err, SP_E_INVALID, "Prefer", "wait must be a whole number from 0 to %d",
                                      (int)LIMIT_VALUE(wait_seconds));
            *ret_wait_s = (unsigned)wait;
            return 0;
        }
        value += strcspn(value, ",");
    }
    return 0;
}
