/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The validator: walks a table and a JSON value side by side. Pure and total: any JSON may be handed in. Query strings are
 * decoded here too, because their rules are rows of the same table.
 */
#include "model/validate.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "model/limits.h"
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define PATH_SIZE 160
#define FIELDS_MAX 32

/* path: escaped already, by join(). */
static int bad(struct sp_error *err, const char *path, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int bad(struct sp_error *err, const char *path, const char *fmt, ...) {
    char why[200], field[64];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(why, sizeof(why), fmt, ap) < 0)
        why[0] = '\0';
    va_end(ap);
    (void)snprintf(field, sizeof(field), "%.63s", path);
    return sp_error_field(err, SP_E_INVALID, field, "%s%s%s", path, *path ? " " : "the body ", why);
}

/* "prefix.name", cut where it would not fit: it is only shown. */
static const char *join(char dst[PATH_SIZE], const char *prefix, const char *name) {
    char shown[80];
    (void)text_escape(shown, sizeof(shown), name, strlen(name));
    if (snprintf(dst, PATH_SIZE, "%.70s%s%.80s", prefix, *prefix ? "." : "", shown) < 0)
        dst[0] = '\0';
    return dst;
}

static const char *nearest_field(const struct field *rows, size_t n, const char *word) {
    const char *names[FIELDS_MAX];
    assert(n <= FIELDS_MAX);
    for (size_t i = 0; i < n; i++)
        names[i] = rows[i].name;
    return text_nearest(word, names, n);
}

static int unknown_field(const struct field *rows, size_t n, const char *path, const char *name, struct sp_error *err) {
    const char *near = nearest_field(rows, n, name);
    char full[PATH_SIZE];
    return bad(err, join(full, path, name), "is no known field%s%s%s", near ? "; did you mean " : "", near ? near : "",
               near ? "?" : "");
}

static bool choice_allows(const char *choices, const char *value) {
    size_t len = strlen(value);
    for (const char *p = choices; len > 0; p++) {
        size_t n = strcspn(p, "|");
        if (n == len && memcmp(p, value, n) == 0)
            return true;
        p += n;
        if (!*p)
            return false;
    }
    return false;
}

static int check_text(const struct field *f, const char *path, const char *s, size_t len, struct sp_error *err) {
    if (len < f->min || len > f->max)
        return bad(err, path, "must have %" PRIu64 " to %" PRIu64 " bytes, has %zu", f->min, f->max, len);
    if (strlen(s) != len)
        return bad(err, path, "must not hold a NUL");
    if (f->choices && !choice_allows(f->choices, s))
        return bad(err, path, "must be one of %s", f->choices);
    if (!pattern_matches(f->pattern, s))
        return bad(err, path, "%s", pattern_text(f->pattern));
    return 0;
}

static int check_string(const struct field *f, const char *path, const json_t *v, struct sp_error *err) {
    if (!json_is_string(v))
        return bad(err, path, "must be a string");
    return check_text(f, path, json_string_value(v), json_string_length(v), err);
}

static int check_uint(const struct field *f, const char *path, const json_t *v, struct sp_error *err) {
    if (!json_is_integer(v))
        return bad(err, path, "must be a whole number");
    json_int_t n = json_integer_value(v);
    if (n < 0 || (uint64_t)n < f->min || (uint64_t)n > f->max)
        return bad(err, path, "must be from %" PRIu64 " to %" PRIu64 ", is %" JSON_INTEGER_FORMAT, f->min, f->max, n);
    return 0;
}

static int check_strings(const struct field *f, const char *path, const json_t *v, struct sp_error *err) {
    size_t i;
    json_t *item;
    if (!json_is_array(v))
        return bad(err, path, "must be an array of strings");
    if (json_array_size(v) > f->entries)
        return bad(err, path, "must have at most %" PRIu64 " items, has %zu", f->entries, json_array_size(v));
    json_array_foreach (v, i, item) {
        char name[24], full[PATH_SIZE];
        (void)text_printf(name, sizeof(name), "%zu", i);
        int r = check_string(f, join(full, path, name), item, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int check_map(const struct field *f, const char *path, json_t *v, struct sp_error *err) {
    uint64_t total = 0;
    const char *key;
    json_t *item;
    if (!json_is_object(v))
        return bad(err, path, "must be an object of strings");
    if (json_object_size(v) > f->entries)
        return bad(err, path, "must have at most %" PRIu64 " entries, has %zu", f->entries, json_object_size(v));
    json_object_foreach (v, key, item) {
        char full[PATH_SIZE];
        (void)join(full, path, key);
        if (!pattern_matches(f->key_pattern, key))
            return bad(err, full, "is no good key: it %s", pattern_text(f->key_pattern));
        total += strlen(key);
        if (f->nullable && json_is_null(item))
            continue;
        int r = check_string(f, full, item, err);
        if (r < 0)
            return r;
        total += json_string_length(item);
    }
    if (f->total && total > f->total)
        return bad(err, path, "must have at most %" PRIu64 " bytes of keys and values, has %" PRIu64, f->total, total);
    return 0;
}

static int check_json(const struct field *f, const char *path, const json_t *v, struct sp_error *err) {
    if (!json_is_object(v))
        return bad(err, path, "must be an object");
    _cleanup_free_ char *text = json_print(v);
    if (strlen(text) > f->total)
        return bad(err, path, "must have at most %" PRIu64 " bytes as JSON, has %zu", f->total, strlen(text));
    return 0;
}

static int check_object(const struct field *rows, size_t n, const char *path, json_t *obj, struct sp_error *err);

// NOLINTNEXTLINE(misc-no-recursion): as deep as the tables are, which is two levels
static int check_field(const struct field *f, const char *path, json_t *v, struct sp_error *err) {
    switch (f->type) {
    case FIELD_STRING:
        return check_string(f, path, v, err);
    case FIELD_UINT:
        return check_uint(f, path, v, err);
    case FIELD_BOOL:
        return json_is_boolean(v) ? 0 : bad(err, path, "must be true or false");
    case FIELD_OBJECT:
        return check_object(f->fields, f->n_fields, path, v, err);
    case FIELD_STRINGS:
        return check_strings(f, path, v, err);
    case FIELD_MAP:
        return check_map(f, path, v, err);
    case FIELD_JSON:
        return check_json(f, path, v, err);
    }
    return bad(err, path, "is of no known type");
}

static const struct field *find_field(const struct field *rows, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the tables are, which is two levels
static int check_object(const struct field *rows, size_t n, const char *path, json_t *obj, struct sp_error *err) {
    const char *key;
    json_t *value;
    char full[PATH_SIZE];
    if (!json_is_object(obj))
        return bad(err, path, "must be an object");
    json_object_foreach (obj, key, value) {
        const struct field *f = find_field(rows, n, key);
        if (!f)
            return unknown_field(rows, n, path, key, err);
        (void)join(full, path, key);
        if (json_is_null(value)) {
            if (f->nullable)
                continue;
            return bad(err, full, "must not be null");
        }
        int r = check_field(f, full, value, err);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < n; i++)
        if (rows[i].required && !json_object_get(obj, rows[i].name))
            return bad(err, join(full, path, rows[i].name), "is required");
    return 0;
}

/* Bytes of all strings and keys of a value. */
// NOLINTNEXTLINE(misc-no-recursion): bounded by the parser, at 32 levels
static uint64_t string_bytes(json_t *v) {
    uint64_t total = 0;
    size_t i;
    const char *key;
    json_t *item;
    if (json_is_string(v))
        return json_string_length(v);
    if (json_is_array(v))
        json_array_foreach (v, i, item)
            total += string_bytes(item);
    if (json_is_object(v))
        json_object_foreach (v, key, item)
            total += strlen(key) + string_bytes(item);
    return total;
}

int validate_body(const struct field_table *table, const json_t *body, struct sp_error *err) {
    if (!body)
        return table->may_be_missing ? 0 : bad(err, "", "is required");
    json_t *b = (json_t *)(uintptr_t)body; /* jansson's iterators take a mutable value; nothing is changed */
    int r = check_object(table->fields, table->n_fields, "", b, err);
    if (r < 0)
        return r;
    if (table->not_empty && json_object_size(b) == 0)
        return bad(err, "", "must name at least one field");
    if (table->total && string_bytes(b) > table->total)
        return bad(err, "", "must have at most %" PRIu64 " bytes of text, has %" PRIu64, table->total, string_bytes(b));
    return 0;
}
