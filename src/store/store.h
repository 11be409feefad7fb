/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection to PostgreSQL, used by one thread at a time: connecting when needed, transactions, time limits on
 * everything, retries where nothing can have happened yet. All SQL of the product is in this folder; what the tables
 * hold is in the headers named after them.
 *
 * Errors: SP_E_UNAVAILABLE the database does not answer, or asks for another try; SP_E_CONFLICT a unique constraint (its name
 * in err->field); SP_E_CORRUPT a row that breaks the model; SP_E_INTERNAL anything else it refuses.
 */
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct store;

/* Does not connect yet. url: a libpq connection string or URI; timeout_ms bounds each statement, waiting included. */
int store_new(const char *url, uint64_t timeout_ms, struct store **ret, struct sp_error *err);
struct store *store_free(struct store *s); /* NULL is fine; returns NULL */
/* Connects when there is no connection; after a try that failed slowly, fails at once for a quarter of a second. */
int store_connect(struct store *s, struct sp_error *err);
int store_ping(struct store *s, struct sp_error *err);
void store_disconnect(struct store *s);
uint64_t store_connects(const struct store *s); /* connections made so far */

int store_begin(struct store *s, struct sp_error *err);
/* On failure the transaction is over. store_outcome_is_unknown() then tells whether it may have been committed. */
int store_commit(struct store *s, struct sp_error *err);
void store_rollback(struct store *s); /* safe without a transaction */
bool store_in_transaction(const struct store *s);
/* Of the last failure: trying the whole transaction again may work. */
bool store_should_retry(const struct store *s);
/* Of the last failure: the connection broke while the commit was on its way. */
bool store_outcome_is_unknown(const struct store *s);

/* Runs fn in a transaction; rolls back when it fails. Tries again, up to three times, on a serialization failure, a
 * deadlock or a lost connection, so fn must be repeatable from the start. When the outcome of the commit is unknown it
 * tries again only if `is_idempotent`: fn then finds out itself what happened. */
int store_transaction(struct store *s, bool is_idempotent, int (*fn)(struct store *s, void *ctx, struct sp_error *err),
                      void *ctx, struct sp_error *err);

/* What transactions that were committed on this connection told everybody by pg_notify() since the last call, so that this
 * process need not wait to hear it from the database; and the connection's number, by which the copy that comes is known. Not
 * complete: only ever to be quicker. */
struct store_note {
    char kind;
    char id[72];
};
/* Returns how many, at most `max`. */
unsigned store_take_notes(struct store *s, struct store_note *ret, unsigned max, int *ret_pid);

/* What a query gave: memory that the pointers in the rows borrow from. */
struct store_result;
struct store_result *store_result_free(struct store_result *r); /* NULL is fine; returns NULL */
static inline void store_result_freep(struct store_result **r) {
    *r = store_result_free(*r);
}
#define _cleanup_result_ __attribute__((cleanup(store_result_freep)))

/* A page of a list: rows after `cursor` ("" or NULL: from the start), newest first. Cursors are made by the store
 * ("<microseconds>.<id>"); store_cursor_is_valid() before handing one in. */
struct store_page {
    const char *cursor;
    unsigned limit;
};
bool store_cursor_is_valid(const char *cursor);
/* The cursor of a row, from the values a list gave. */
#define STORE_CURSOR_SIZE 64
const char *store_cursor_format(char dst[STORE_CURSOR_SIZE], int64_t created_us, const char *id);
