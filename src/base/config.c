/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration parser: assignments out of text, environment and flags, each checked against its table row.
 * Printing (help, docs, values) is in config_print.c. Knows no key of the product.
 */
#include "base/config.h"
#include "base/text.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

#define ROWS_MAX 128
#define KEY_MAX 64
#define LINE_MAX_ 4096
#define ENV_PREFIX "SPACE_"
#define ENV_TYPO_DISTANCE 2u
#define ENV_TYPO_MIN_LEN 5

static void *field_of(void *settings, const struct config_row *row) {
    return (char *)settings + row->offset;
}

static const struct config_row *find_row(const struct config_row *rows, size_t n, const char *key) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].key, key) == 0)
            return &rows[i];
    return NULL;
}

static const char *nearest_key(const struct config_row *rows, size_t n, const char *key) {
    const char *names[ROWS_MAX];
    for (size_t i = 0; i < n; i++)
        names[i] = rows[i].key;
    return text_nearest(key, names, n);
}

static int unknown_key(const struct config_row *rows, size_t n, const char *key, const char *source,
                       struct sp_error *err) {
    char shown[KEY_MAX];
    const char *near = nearest_key(rows, n, key);
    (void)text_escape(shown, sizeof(shown), key, strlen(key));
    if (near)
        return sp_error_field(err, SP_E_INVALID, shown, "%s: unknown key %s; did you mean %s?", source, shown, near);
    return sp_error_field(err, SP_E_INVALID, shown, "%s: unknown key %s", source, shown);
}

static bool is_one_of(const char *value, const char *choices) {
    size_t len = strlen(value);
    while (*choices) {
        size_t n = strcspn(choices, "|");
        if (n == len && memcmp(choices, value, n) == 0)
            return true;
        choices += n + (choices[n] == '|');
    }
    return false;
}

static bool parse_bool(const char *s, bool *ret) {
    if (is_one_of(s, "true|yes|on|1"))
        *ret = true;
    else if (is_one_of(s, "false|no|off|0"))
        *ret = false;
    else
        return false;
    return true;
}

static bool has_control_character(const char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return true;
    return false;
}

static int bad_value(const struct config_row *row, const char *source, struct sp_error *err) {
    unsigned long long min = row->min, max = row->max;
    switch (row->type) {
    case CONFIG_U64:
        return sp_error_field(err, SP_E_INVALID, row->key, "%s: %s must be an integer from %llu to %llu", source,
                              row->key, min, max);
    case CONFIG_BOOL:
        return sp_error_field(err, SP_E_INVALID, row->key, "%s: %s must be true or false", source, row->key);
    case CONFIG_ENUM:
        return sp_error_field(err, SP_E_INVALID, row->key, "%s: %s must be one of %s", source, row->key, row->choices);
    case CONFIG_STRING:
    default:
        return sp_error_field(err, SP_E_INVALID, row->key,
                              "%s: %s must have %llu to %llu bytes of UTF-8 without control characters", source,
                              row->key, min, max);
    }
}

static bool assign(void *field, const struct config_row *row, const char *value) {
    size_t len = strlen(value);
    uint64_t number;
    bool flag;

    switch (row->type) {
    case CONFIG_U64:
        if (!text_to_u64(value, row->min, row->max, &number))
            return false;
        memcpy(field, &number, sizeof(number));
        return true;
    case CONFIG_BOOL:
        if (!parse_bool(value, &flag))
            return false;
        memcpy(field, &flag, sizeof(flag));
        return true;
    case CONFIG_ENUM:
        return is_one_of(value, row->choices) && text_copy(field, row->size, value);
    case CONFIG_STRING:
        if (len < row->min || len > row->max || has_control_character(value) || !text_is_utf8(value, len))
            return false;
        return text_copy(field, row->size, value);
    default:
        return false;
    }
}

static size_t wanted_size(const struct config_row *row) {
    switch (row->type) {
    case CONFIG_U64:
        return sizeof(uint64_t);
    case CONFIG_BOOL:
        return sizeof(bool);
    case CONFIG_ENUM:
        return 32;
    case CONFIG_STRING:
    default:
        return row->size;
    }
}

void config_defaults(void *settings, const struct config_row *rows, size_t n) {
    assert(n <= ROWS_MAX);
    for (size_t i = 0; i < n; i++) {
        const struct config_row *row = &rows[i];
        bool good;
        assert(strlen(row->key) < KEY_MAX && find_row(rows, n, row->key) == row);
        assert(row->doc && row->size == wanted_size(row) && (row->type != CONFIG_ENUM || row->choices));
        assert(row->type != CONFIG_STRING || row->max < row->size);
        good = assign(field_of(settings, row), row, row->fallback ? row->fallback : "");
        assert(good);
        (void)good;
    }
}

int config_set(void *settings, const struct config_row *rows, size_t n, const char *key, const char *value,
               const char *source, struct sp_error *err) {
    const struct config_row *row = find_row(rows, n, key);
    if (!row)
        return unknown_key(rows, n, key, source, err);
    if (!assign(field_of(settings, row), row, value))
        return bad_value(row, source, err);
    return 0;
}

static char *trim(char *s) {
    size_t len;
    s += strspn(s, " \t\r");
    len = strlen(s);
    while (len && strchr(" \t\r", s[len - 1]))
        s[--len] = '\0';
    return s;
}

/* One line, changed in place; `seen` has a place for each row. */
static int load_line(void *settings, const struct config_row *rows, size_t n, char *line, const char *source,
                     bool *seen, struct sp_error *err) {
    const struct config_row *row;
    char *equals, *key;

    line = trim(line);
    if (!*line || *line == '#')
        return 0;
    equals = strchr(line, '=');
    if (!equals)
        return sp_error_set(err, SP_E_INVALID, "%s: a line must read key = value", source);
    *equals = '\0';
    key = trim(line);
    row = find_row(rows, n, key);
    if (row && seen[row - rows])
        return sp_error_field(err, SP_E_INVALID, key, "%s: %s is set twice in this file", source, key);
    if (row)
        seen[row - rows] = true;
    return config_set(settings, rows, n, key, trim(equals + 1), source, err);
}

int config_load_text(void *settings, const struct config_row *rows, size_t n, const char *text, const char *name,
                     struct sp_error *err) {
    bool seen[ROWS_MAX] = {false};
    assert(n <= ROWS_MAX);
    for (unsigned number = 1; *text; number++) {
        char line[LINE_MAX_], source[128];
        size_t len = strcspn(text, "\n");
        int r;

        if (!text_printf(source, sizeof(source), "%s:%u", name, number))
            (void)text_printf(source, sizeof(source), "line %u", number);
        if (len >= sizeof(line))
            return sp_error_set(err, SP_E_INVALID, "%s: line longer than %zu bytes", source, sizeof(line) - 1);
        memcpy(line, text, len);
        line[len] = '\0';
        r = load_line(settings, rows, n, line, source, seen, err);
        if (r < 0)
            return r;
        text += len + (text[len] == '\n');
    }
    return 0;
}

/* The key of `SPACE_KEY=value` in lower case; false for other variables. */
static bool environment_key(const char *entry, char key[KEY_MAX], const char **ret_value) {
    size_t len;
    if (!text_starts_with(entry, ENV_PREFIX))
        return false;
    entry += sizeof(ENV_PREFIX) - 1;
    len = strcspn(entry, "=");
    if (len == 0 || len >= KEY_MAX || entry[len] != '=')
        return false;
    for (size_t i = 0; i < len; i++)
        key[i] = (char)(entry[i] >= 'A' && entry[i] <= 'Z' ? entry[i] - 'A' + 'a' : entry[i]);
    key[len] = '\0';
    *ret_value = entry + len + 1;
    return true;
}

static bool is_typo(const struct config_row *rows, size_t n, const char *key) {
    const char *near = strlen(key) >= ENV_TYPO_MIN_LEN ? nearest_key(rows, n, key) : NULL;
    return near && text_distance(near, key) <= ENV_TYPO_DISTANCE;
}

int config_load_environment(void *settings, const struct config_row *rows, size_t n, const char *const *environ_,
                            struct sp_error *err) {
    for (; *environ_; environ_++) {
        char key[KEY_MAX];
        const char *value;
        int r;
        if (!environment_key(*environ_, key, &value) || (!find_row(rows, n, key) && !is_typo(rows, n, key)))
            continue;
        r = config_set(settings, rows, n, key, value, "environment", err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* "--some-key[=value]" into some_key; *ret_value is NULL without "=". */
static bool flag_key(const char *arg, char key[KEY_MAX], const char **ret_value) {
    size_t len;
    arg += 2;
    len = strcspn(arg, "=");
    if (len == 0 || len >= KEY_MAX)
        return false;
    for (size_t i = 0; i < len; i++)
        key[i] = arg[i] == '-' ? '_' : arg[i];
    key[len] = '\0';
    *ret_value = arg[len] == '=' ? arg + len + 1 : NULL;
    return true;
}

int config_load_flags(void *settings, const struct config_row *rows, size_t n, int argc, char **argv, int *ret_next,
                      struct sp_error *err) {
    int i = 1;
    while (i < argc && argv[i][0] == '-' && argv[i][1] && strcmp(argv[i], "--") != 0) {
        char key[KEY_MAX], source[KEY_MAX];
        const char *value;
        int r;

        (void)text_escape(source, sizeof(source), argv[i], strcspn(argv[i], "="));
        if (argv[i][1] != '-' || !flag_key(argv[i], key, &value))
            return sp_error_set(err, SP_E_INVALID, "unknown flag %s", source);
        if (!find_row(rows, n, key))
            return unknown_key(rows, n, key, source, err);
        if (!value) {
            if (i + 1 >= argc)
                return sp_error_field(err, SP_E_INVALID, key, "%s needs a value", source);
            value = argv[++i];
        }
        r = config_set(settings, rows, n, key, value, source, err);
        if (r < 0)
            return r;
        i++;
    }
    *ret_next = i;
    return 0;
}
