/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request bodies (and queries, turned into objects) against tables: a row a field holds type, bounds, pattern and whether it is needed.
 * One validator walks them; its error names the field, the limit and, for an unknown field, the nearest known one.
 * After it a handler may read the fields without looking at types again.
 */
#pragma once
#include "base/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum field_type {
    FIELD_STRING, /* min..max bytes, pattern, choices */
    FIELD_UINT,   /* min..max */
    FIELD_BOOL,
    FIELD_OBJECT,  /* exactly the fields in `fields` */
    FIELD_STRINGS, /* array of strings: at most `entries`, each min..max bytes */
    FIELD_MAP,     /* object of strings: at most `entries`; keys follow `key_pattern`; values min..max bytes; `total` */
    FIELD_JSON,    /* any object, at most `total` bytes as compact JSON */
};

/* Forms of strings; each is a row of allowed bytes in validate.c. */
enum pattern {
    PATTERN_ANY,           /* any text */
    PATTERN_NAME,          /* letters, digits, '.', '_', '-', first one a letter or digit */
    PATTERN_TEMPLATE_NAME, /* the same in lower case */
    PATTERN_TEMPLATE_REF,  /* name, name:tag, name@digest */
    PATTERN_DIGEST,        /* 64 lower-case hex digits */
    PATTERN_METADATA_KEY,  /* letters, digits, '.', '_', '/', '-' */
    PATTERN_ENV_KEY,       /* letters, digits, '_', first one no digit */
    PATTERN_ABSOLUTE_PATH, /* starts with '/' */
    PATTERN_USER,          /* a user's name or number */
    PATTERN_TENANT_ID,
    PATTERN_SANDBOX_ID,
    PATTERN_SNAPSHOT_ID,
    PATTERN_NODE_ID,
    PATTERN_COUNT_
};
bool pattern_matches(enum pattern p, const char *text);
const char *pattern_text(enum pattern p); /* "must ..." */

struct field {
    const char *name;
    enum field_type type;
    bool required;
    bool nullable; /* null is a value of its own; the values of a nullable FIELD_MAP may be null too */
    uint64_t min, max;
    enum pattern pattern, key_pattern;
    const char *choices; /* "a|b|c" */
    const struct field *fields;
    size_t n_fields;
    uint64_t entries, total;
};

struct field_table {
    const struct field *fields;
    size_t n_fields;
    bool may_be_missing; /* the whole body may be left out */
    bool not_empty;      /* at least one field */
    uint64_t total;      /* bytes of all strings of the body together; 0: no such bound */
};

/* 0 or -SP_E_INVALID. body NULL: there was none. */
int validate_body(const struct field_table *table, const json_t *body, struct sp_error *err);

/* Template references, after PATTERN_TEMPLATE_REF: cut into name and tag or digest (the others ""). */
struct template_ref {
    char name[65], tag[65], digest[65];
};
bool template_ref_parse(const char *text, struct template_ref *ret);
