/* SPDX-License-Identifier: Apache-2.0 */
/* What the CLI shows: tables or JSON on stdout, progress and errors on stderr. One row of progress on a terminal, one line
 * per change elsewhere; nothing when stderr is no terminal and quiet. */
#pragma once
#include "base/error.h"
#include <jansson.h>
#include <stdbool.h>

enum output_format { OUTPUT_TABLE, OUTPUT_JSON };
void output_set_format(enum output_format format);
enum output_format output_format(void);
bool output_is_terminal(void); /* stderr */
void output_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void output_progress_end(void);
/* "space: <text>" with the field first, and a hint when the error is retryable. Returns the exit status. */
int output_error(const struct sp_error *err);

struct output_column {
    const char *title;
    const char *path; /* "state", "template.name" */
};
/* An array of objects as a table, or as JSON with -o json. */
void output_list(const json_t *items, const struct output_column *columns, size_t n);
/* One object: JSON, or "key: value" lines. */
void output_object(const json_t *object, const struct output_column *columns, size_t n);
