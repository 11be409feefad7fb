/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON with our limits, over jansson, and getters whose errors name the field. Any value may be handed to a getter:
 * one that is no object is an error, never a crash.
 */
#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include <pthread.h>
#include <string.h>

#define DEPTH_MAX 32

static pthread_once_t seed_once = PTHREAD_ONCE_INIT;

/* jansson would seed its hash from /dev/urandom, which a jail may not have, and fall back to the clock. */
static void seed_hash(void) {
    size_t seed;
    random_bytes(&seed, sizeof(seed));
    json_object_seed(seed | 1);
}

/* Nesting alone, before the parser recurses over it; strings are skipped, everything else is the parser's business. */
static bool depth_is_fine(const char *data, size_t len) {
    bool in_string = false;
    unsigned depth = 0;
    for (size_t i = 0; i < len; i++) {
        char c = data[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"')
            in_string = true;
        else if (c == '{' || c == '[') {
            if (++depth > DEPTH_MAX)
                return false;
        } else if ((c == '}' || c == ']') && depth > 0)
            depth--;
    }
    return true;
}

int json_parse(const char *data, size_t len, size_t max, json_t **ret, struct sp_error *err) {
    json_error_t je;
    json_t *j;

    if (len > max)
        return sp_error_set(err, SP_E_TOO_LARGE, "JSON of %zu bytes, at most %zu are accepted", len, max);
    if (!depth_is_fine(data, len))
        return sp_error_set(err, SP_E_INVALID, "JSON is nested deeper than %d", DEPTH_MAX);
    (void)pthread_once(&seed_once, seed_hash);
    j = json_loadb(data, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (!j) {
        char text[JSON_ERROR_TEXT_LENGTH];
        /* jansson quotes the input near the error. */
        (void)text_escape(text, sizeof(text), je.text, strlen(je.text));
        return sp_error_set(err, SP_E_INVALID, "bad JSON at line %d column %d: %s", je.line, je.column, text);
    }
    *ret = j;
    return 0;
}

char *json_print(const json_t *j) {
    char *s = json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!s)
        abort();
    return s;
}

/* "path.key", or "key" at the top, or "path" for the value itself; cut when too long. */
static const char *field_name(char dst[64], const char *path, const char *key) {
    int n = snprintf(dst, 64, "%s%s%s", path, *path && *key ? "." : "", key);
    if (n < 0)
        dst[0] = '\0';
    return dst;
}

static int bad(struct sp_error *err, const char *path, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int bad(struct sp_error *err, const char *path, const char *key, const char *fmt, ...) {
    char name[64], what[160];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    (void)field_name(name, path, key);
    return sp_error_field(err, SP_E_INVALID, name, "%s%s%s", name, *name ? " " : "the body ", n < 0 ? "" : what);
}

/* The member, NULL when missing or null; an error when obj is no object. */
static int lookup(const json_t *obj, const char *path, const char *key, json_t **ret, struct sp_error *err) {
    json_t *v;
    if (!json_is_object(obj))
        return bad(err, path, "", "must be an object");
    v = json_object_get(obj, key);
    *ret = json_is_null(v) ? NULL : v;
    return 0;
}

static int check_string(const json_t *v, const char *path, const char *key, size_t min, size_t max, const char **ret,
                        struct sp_error *err) {
    size_t len = json_string_length(v);
    const char *s = json_string_value(v);
    if (!s)
        return bad(err, path, key, "must be a string");
    if (len < min || len > max)
        return bad(err, path, key, "must have %zu to %zu bytes, has %zu", min, max, len);
    if (strlen(s) != len)
        return bad(err, path, key, "must not hold a NUL");
    *ret = s;
    return 0;
}

int json_get_string(const json_t *obj, const char *path, const char *key, size_t min, size_t max, const char **ret,
                    struct sp_error *err) {
    json_t *v = NULL;
    int r = lookup(obj, path, key, &v, err);
    if (r < 0)
        return r;
    if (!v)
        return bad(err, path, key, "is required");
    return check_string(v, path, key, min, max, ret, err);
}

int json_get_opt_string(const json_t *obj, const char *path, const char *key, size_t min, size_t max,
                        const char *fallback, const char **ret, struct sp_error *err) {
    json_t *v = NULL;
    int r = lookup(obj, path, key, &v, err);
    if (r < 0)
        return r;
    if (v)
        return check_string(v, path, key, min, max, ret, err);
    *ret = fallback;
    return 0;
}

static int check_u64(const json_t *v, const char *path, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
                     struct sp_error *err) {
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || (uint64_t)n < min || (uint64_t)n > max)
        return bad(err, path, key, "must be an integer from %llu to %llu", (unsigned long long)min,
                   (unsigned long long)max);
    *ret = (uint64_t)n;
    return 0;
}

int json_get_u64(const json_t *obj, const char *path, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
                 struct sp_error *err) {
    json_t *v = NULL;
    int r = lookup(obj, path, key, &v, err);
    if (r < 0)
        return r;
    if (!v)
        return bad(err, path, key, "is required");
    return check_u64(v, path, key, min, max, ret, err);
}

int json_get_opt_u64(const json_t *obj, const char *path, const char *key, uint64_t min, uint64_t max,
                     uint64_t fallback, uint64_t *ret, struct sp_error *err) {
    json_t *v = NULL;
    int r = lookup(obj, path, key, &v, err);
    if (r < 0)
        return r;
    if (v)
        return check_u64(v, path, key, min, max, ret, err);
    *ret = fallback;
    return 0;
}

int json_get_opt_bool(const json_t *obj, const char *path, const char *key, bool fallback, bool *ret,
                      struct sp_error *err) {
    json_t *v = NULL;
    int r = lookup(obj, path, key, &v, err);
    if (r < 0)
        return r;
    if (v && !json_is_boolean(v))
        return bad(err, path, key, "must be true or false");
    *ret = v ? json_is_true(v) : fallback;
    return 0;
}

int json_get_opt_object(const json_t *obj, const char *path, const char *key, json_t **ret, struct sp_error *err) {
    json_t *v = NULL;
    int r = lookup(obj, path, key, &v, err);
    if (r < 0)
        return r;
    if (v && !json_is_object(v))
        return bad(err, path, key, "must be an object");
    *ret = v;
    return 0;
}

int json_get_opt_array(const json_t *obj, const char *path, const char *key, size_t max_items, json_t **ret,
                       struct sp_error *err) {
    json_t *v = NULL;
    int r = lookup(obj, path, key, &v, err);
    if (r < 0)
        return r;
    if (v && !json_is_array(v))
        return bad(err, path, key, "must be a list");
    if (v && json_array_size(v) > max_items)
        return bad(err, path, key, "must have at most %zu items, has %zu", max_items, json_array_size(v));
    *ret = v;
    return 0;
}

static bool is_one_of(const char *key, const char *const *names) {
    for (; *names; names++)
        if (strcmp(*names, key) == 0)
            return true;
    return false;
}

/* Iterating needs a non-const value; nothing is changed. */
static json_t *unconst(const json_t *obj) {
    union {
        const json_t *in;
        json_t *out;
    } u = {.in = obj};
    return u.out;
}

int json_check_keys(const json_t *obj, const char *path, const char *const *names, struct sp_error *err) {
    json_t *object = unconst(obj);
    size_t n = 0;

    if (!json_is_object(obj))
        return bad(err, path, "", "must be an object");
    while (names[n])
        n++;
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        const char *key = json_object_iter_key(it), *near;
        char shown[48];
        if (is_one_of(key, names))
            continue;
        (void)text_escape(shown, sizeof(shown), key, strlen(key));
        near = text_nearest(key, names, n);
        if (near)
            return bad(err, path, shown, "is not known; did you mean %s?", near);
        return bad(err, path, shown, "is not known");
    }
    return 0;
}

json_t *sp_error_encode(const struct sp_error *err) {
    json_t *j = json_pack("{s:s, s:i, s:s, s:s, s:s}", "code", sp_code_name(err->code), "errno", err->err_no, "op",
                          err->op, "field", err->field, "text", err->text);
    if (!j)
        abort();
    return j;
}

int sp_error_decode(const json_t *obj, struct sp_error *ret_error, struct sp_error *err) {
    static const char path[] = "error";
    const char *code = "", *op = "", *field = "", *text = "";
    struct sp_error e = {0};
    uint64_t err_no = 0;

    if (json_get_string(obj, path, "code", 1, 64, &code, err) < 0 ||
        json_get_opt_u64(obj, path, "errno", 0, 4095, 0, &err_no, err) < 0 ||
        json_get_opt_string(obj, path, "op", 0, sizeof(e.op) - 1, "", &op, err) < 0 ||
        json_get_opt_string(obj, path, "field", 0, sizeof(e.field) - 1, "", &field, err) < 0 ||
        json_get_opt_string(obj, path, "text", 0, sizeof(e.text) - 1, "", &text, err) < 0)
        return -(int)SP_E_INVALID;
    if (!sp_code_from_name(code, &e.code) || e.code == SP_OK)
        e.code = SP_E_INTERNAL;
    (void)sp_error_field(&e, e.code, field, "%s", text);
    e.err_no = (int)err_no;
    (void)text_copy(e.op, sizeof(e.op), op);
    *ret_error = e;
    return 0;
}
