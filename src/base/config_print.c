/* SPDX-License-Identifier: Apache-2.0 */
/* What a configuration table looks like to people: --help, the docs page, and a file that loads back. */
#include "base/config.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HELP_WIDTH 100
#define HELP_INDENT 6

static int result(const struct buf *out) {
    return out->failed ? -(int)SP_E_TOO_LARGE : 0;
}

static void print_flag(const char *key, struct buf *out) {
    (void)buf_append_str(out, "--");
    for (; *key; key++)
        (void)buf_append_byte(out, (uint8_t)(*key == '_' ? '-' : *key));
}

/* Words of one paragraph, wrapped. */
static void print_wrapped(const char *text, struct buf *out) {
    size_t column = 0;
    while (*text) {
        size_t len = strcspn(text, " ");
        if (column && column + 1 + len > HELP_WIDTH) {
            (void)buf_append_byte(out, '\n');
            column = 0;
        }
        if (column) {
            (void)buf_append_byte(out, ' ');
            column++;
        } else {
            (void)buf_printf(out, "%*s", HELP_INDENT, "");
            column = HELP_INDENT;
        }
        (void)buf_append(out, text, len);
        column += len;
        text += len;
        text += strspn(text, " ");
    }
    (void)buf_append_byte(out, '\n');
}

static void print_type(const struct config_row *row, struct buf *out) {
    switch (row->type) {
    case CONFIG_U64:
        (void)buf_printf(out, "%" PRIu64 "..%" PRIu64, row->min, row->max);
        break;
    case CONFIG_BOOL:
        (void)buf_append_str(out, "true|false");
        break;
    case CONFIG_ENUM:
        (void)buf_append_str(out, row->choices);
        break;
    case CONFIG_STRING:
    default:
        (void)buf_printf(out, "text of %" PRIu64 "..%" PRIu64 " bytes", row->min, row->max);
        break;
    }
}

int config_print_help(const struct config_row *rows, size_t n, struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        const char *fallback = rows[i].fallback;
        (void)buf_append_str(out, "  ");
        print_flag(rows[i].key, out);
        (void)buf_append_str(out, "  ");
        print_type(&rows[i], out);
        if (fallback && *fallback)
            (void)buf_printf(out, "  (default %s)", fallback);
        (void)buf_append_byte(out, '\n');
        print_wrapped(rows[i].doc, out);
    }
    return result(out);
}

/* A table cell: "|" would end it. */
static void print_cell(const char *s, struct buf *out) {
    for (; *s; s++) {
        if (*s == '|')
            (void)buf_append_byte(out, '\\');
        (void)buf_append_byte(out, (uint8_t)*s);
    }
}

int config_print_markdown(const struct config_row *rows, size_t n, struct buf *out) {
    (void)buf_append_str(out, "| key | values | default | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        const char *fallback = rows[i].fallback;
        struct buf type;
        buf_init(&type, 512);
        print_type(&rows[i], &type);
        (void)buf_printf(out, "| `%s` | ", rows[i].key);
        print_cell(type.data, out);
        buf_done(&type);
        if (fallback && *fallback)
            (void)buf_printf(out, " | `%s` | ", fallback);
        else
            (void)buf_append_str(out, " | | ");
        print_cell(rows[i].doc, out);
        (void)buf_append_str(out, " |\n");
    }
    return result(out);
}

int config_print_values(const void *settings, const struct config_row *rows, size_t n, struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        const char *field = (const char *)settings + rows[i].offset;
        uint64_t number;
        bool flag;
        (void)buf_printf(out, "%s = ", rows[i].key);
        switch (rows[i].type) {
        case CONFIG_U64:
            memcpy(&number, field, sizeof(number));
            (void)buf_printf(out, "%" PRIu64, number);
            break;
        case CONFIG_BOOL:
            memcpy(&flag, field, sizeof(flag));
            (void)buf_append_str(out, flag ? "true" : "false");
            break;
        case CONFIG_STRING:
        case CONFIG_ENUM:
        default:
            (void)buf_append_str(out, field);
            break;
        }
        (void)buf_append_byte(out, '\n');
    }
    return result(out);
}
