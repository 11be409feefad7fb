/* SPDX-License-Identifier: Apache-2.0 */
/* Tables, JSON, progress. Everything from the server is escaped before a terminal sees it. */
#include "cli/output.h"
#include "base/buf.h"
#include "base/text.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CELL_SIZE 200
#define COLUMNS_MAX 12

static enum output_format chosen = OUTPUT_TABLE;
static bool progress_shown;
static char progress_last[160];

void output_set_format(enum output_format format) {
    chosen = format;
}
enum output_format output_format(void) {
    return chosen;
}
bool output_is_terminal(void) {
    return isatty(STDERR_FILENO) == 1;
}

void output_progress(const char *fmt, ...) {
    char text[160];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (strcmp(text, progress_last) == 0)
        return;
    (void)text_copy(progress_last, sizeof progress_last, text);
    (void)fprintf(stderr, output_is_terminal() ? "\r\033[K%s" : "%s\n", text);
    (void)fflush(stderr);
    progress_shown = true;
}

void output_progress_end(void) {
    if (progress_shown && output_is_terminal())
        (void)fprintf(stderr, "\r\033[K");
    progress_shown = false;
}

int output_error(const struct sp_error *err) {
    output_progress_end();
    char text[512];
    (void)sp_error_format(err, text, sizeof text);
    if (*err->field)
        (void)fprintf(stderr, "space: %s: %s\n", err->field, text);
    else
        (void)fprintf(stderr, "space: %s\n", text);
    return sp_code_exit_status(err->code);
}

static const json_t *lookup(const json_t *object, const char *path) {
    char part[64];
    while (object && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof part)
            return NULL;
        memcpy(part, path, n);
        part[n] = '\0';
        object = json_object_get(object, part);
        path += n + (path[n] == '.');
    }
    return object;
}

static void cell(const json_t *object, const char *path, char dst[CELL_SIZE]) {
    const json_t *v = lookup(object, path);
    if (json_is_string(v))
        (void)text_escape(dst, CELL_SIZE, json_string_value(v), json_string_length(v));
    else if (json_is_integer(v))
        (void)text_printf(dst, CELL_SIZE, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        (void)text_printf(dst, CELL_SIZE, "%.1f", json_real_value(v));
    else if (json_is_boolean(v))
        (void)text_copy(dst, CELL_SIZE, json_is_true(v) ? "yes" : "no");
    else if (json_is_array(v) || json_is_object(v)) {
        char *text = json_dumps(v, JSON_COMPACT);
        (void)text_escape(dst, CELL_SIZE, text ? text : "", text ? strlen(text) : 0);
        free(text);
    } else
        (void)text_copy(dst, CELL_SIZE, "-");
}

static void print_json(const json_t *j) {
    (void)json_dumpf(j, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
    (void)putchar('\n');
}

void output_list(const json_t *items, const struct output_column *columns, size_t n) {
    char text[CELL_SIZE];
    size_t width[COLUMNS_MAX] = {0}, i;
    const json_t *item;
    if (chosen == OUTPUT_JSON) {
        print_json(items);
        return;
    }
    for (size_t c = 0; c < n && c < COLUMNS_MAX; c++) {
        width[c] = strlen(columns[c].title);
        json_array_foreach (items, i, item) {
            cell(item, columns[c].path, text);
            width[c] = strlen(text) > width[c] ? strlen(text) : width[c];
        }
    }
    for (size_t c = 0; c < n; c++)
        (void)printf("%-*s%s", c + 1 < n ? (int)width[c] : 0, columns[c].title, c + 1 < n ? "  " : "\n");
    json_array_foreach (items, i, item) {
        for (size_t c = 0; c < n; c++) {
            cell(item, columns[c].path, text);
            (void)printf("%-*s%s", c + 1 < n ? (int)width[c] : 0, text, c + 1 < n ? "  " : "\n");
        }
    }
}

void output_object(const json_t *object, const struct output_column *columns, size_t n) {
    char text[CELL_SIZE];
    if (chosen == OUTPUT_JSON) {
        print_json(object);
        return;
    }
    for (size_t c = 0; c < n; c++) {
        cell(object, columns[c].path, text);
        (void)printf("%-12s %s\n", columns[c].title, text);
    }
}
