/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structured log lines on stderr, one JSON object a line: time, level, program, event, object ids, fields.
 * `event` is a word of a closed vocabulary (lower_snake), fields are key/value pairs ending with NULL.
 * Values are escaped; never pass a secret. Thread-safe: a line is one write(2). A repeated event is rate-limited
 * per (level, event) above 50 lines a second and the number dropped is said in the next line that passes.
 */
#pragma once
#include "base/error.h"
#include <stdarg.h>

enum log_level { LOG_L_DEBUG, LOG_L_INFO, LOG_L_WARN, LOG_L_ERROR };

void log_init(const char *program, enum log_level level); /* program: static string */
void log_set_level(enum log_level level);
bool log_level_from_name(const char *name, enum log_level *ret);
/* log_event(LOG_L_INFO, "sandbox_started", "sandbox_id", id, "pid", pid_text, NULL) */
void log_event(enum log_level level, const char *event, ... /* const char *key, const char *value, ..., NULL */)
    __attribute__((sentinel));
/* The same with an error's code, op, field, text and errno as fields. */
void log_error(enum log_level level, const char *event, const struct sp_error *err, ...) __attribute__((sentinel));
