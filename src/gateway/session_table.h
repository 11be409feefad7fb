/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many streams and calls each session has open here, and in all: the gateway's limits. A session has an entry while
 * it has something open.
 */
#pragma once
#include "base/random.h"
#include <stdbool.h>
#include <stddef.h>

enum session_use { SESSION_STREAM, SESSION_CALL, SESSION_USES };

struct session_entry;
struct session_table;

struct session_table *session_table_new(const unsigned max_per_session[SESSION_USES]); /* aborts when out of memory */
struct session_table *session_table_free(struct session_table *t);                     /* NULL is fine; returns NULL */
/* Counts one more of that use; NULL when the session has its share. */
struct session_entry *session_enter(struct session_table *t, const char *session_id, enum session_use use);
void session_leave(struct session_table *t, struct session_entry *e, enum session_use use);
size_t session_table_sessions(const struct session_table *t);
size_t session_table_open(const struct session_table *t, enum session_use use);
