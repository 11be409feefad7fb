/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration from one table: a row per key holds type, default, range and doc. The same keys come from a file
 * (`key = value`, # comments), the environment (SPACE_<KEY> upper-cased) and flags (--key-with-dashes value), later
 * ones winning in that order. An unknown key is an error that names the nearest known one. The product's own table
 * is src/model/settings.h.
 */
#pragma once
#include "base/buf.h"
#include "base/error.h"
#include <stdint.h>

enum config_type { CONFIG_STRING, CONFIG_U64, CONFIG_BOOL, CONFIG_ENUM };

struct config_row {
    const char *key; /* lower_snake */
    enum config_type type;
    const char *fallback; /* default, as text; NULL reads as "" */
    uint64_t min, max;    /* CONFIG_U64: value; CONFIG_STRING: length */
    const char *choices;  /* CONFIG_ENUM: "a|b|c" */
    size_t offset;        /* of the field in the settings struct: char[max+1], uint64_t, bool, or char[32] for enums */
    size_t size;          /* of the field */
    const char *doc;      /* one sentence, with the unit */
};

/* Fills *settings with the defaults, checking the table itself (assert). */
void config_defaults(void *settings, const struct config_row *rows, size_t n);
/* One assignment; `source` is shown in errors ("space.conf:12", "environment", "--flag"). */
int config_set(void *settings, const struct config_row *rows, size_t n, const char *key, const char *value,
               const char *source, struct sp_error *err);
int config_load_text(void *settings, const struct config_row *rows, size_t n, const char *text, const char *name,
                     struct sp_error *err);
/* SPACE_<KEY>=value. Other SPACE_ variables belong to other programs and are ignored, unless the name is within two
 * letters of a key: then it is taken for a misspelling and is an error. */
int config_load_environment(void *settings, const struct config_row *rows, size_t n, const char *const *environ_,
                            struct sp_error *err);
/* Takes --key value and --key=value out of argv; stops at the first non-flag or "--"; *ret_next is its index.
 * A flag that is no key is an error naming the nearest. */
int config_load_flags(void *settings, const struct config_row *rows, size_t n, int argc, char **argv, int *ret_next,
                      struct sp_error *err);
/* Text for --help (width 100) and a Markdown table for the docs; `key = value` lines for writing a file. */
int config_print_help(const struct config_row *rows, size_t n, struct buf *out);
int config_print_markdown(const struct config_row *rows, size_t n, struct buf *out);
int config_print_values(const void *settings, const struct config_row *rows, size_t n, struct buf *out);
