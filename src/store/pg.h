/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the store only: arguments of a statement, running it, reading columns. Statements are prepared once a connection,
 * by the address of their text, so pass literals. */
#pragma once
#include "base/cleanup.h"
#include "store/store.h"
#include <libpq-fe.h>

#define PG_ARGS_MAX 40

struct pg_args {
    unsigned n;
    const char *values[PG_ARGS_MAX];
    int lengths[PG_ARGS_MAX], formats[PG_ARGS_MAX];
    char numbers[PG_ARGS_MAX][24];
};
/* Texts and bytes are borrowed until the statement ran. NULL is SQL's null. */
void pg_text(struct pg_args *a, const char *v);
void pg_text_or_null(struct pg_args *a, const char *v); /* "" is null too */
void pg_int(struct pg_args *a, int64_t v);
void pg_bool(struct pg_args *a, bool v);
void pg_bytes(struct pg_args *a, const void *v, size_t len);
void pg_null(struct pg_args *a);

/* a may be NULL. ret may be NULL when rows do not matter. */
int pg_run(struct store *s, const char *sql, const struct pg_args *a, struct store_result **ret, struct sp_error *err);
/* Inside a transaction, for statements whose rows nobody looks at: goes out together with the next pg_run() or the commit
 * and costs no round trip of its own. Should it fail, that one fails with its error. */
int pg_queue(struct store *s, const char *sql, const struct pg_args *a, struct sp_error *err);
/* The same as pg_run; *ret_rows is the number of rows given back or touched. */
int pg_count(struct store *s, const char *sql, const struct pg_args *a, uint64_t *ret_rows, struct sp_error *err);
/* Several statements of plain text at once, not prepared. */
int pg_script(struct store *s, const char *sql, struct sp_error *err);
/* For statements that call pg_notify() themselves: remembers it as this process's own news. */
void pg_note(struct store *s, char kind, const char *id);
/* pg_notify on the one channel, queued; heard when the transaction commits. Kind: 'n' node, 'o' operation, 'r' reconcile. */
int pg_notify(struct store *s, char kind, const char *id, struct sp_error *err);

int pg_rows(const struct store_result *r);
int pg_columns(const struct store_result *r);
const char *pg_get(const struct store_result *r, int row, int col);      /* NULL: SQL's null */
const char *pg_get_text(const struct store_result *r, int row, int col); /* "" for null */
int64_t pg_get_int(const struct store_result *r, int row, int col);      /* 0 for null */
bool pg_get_bool(const struct store_result *r, int row, int col);        /* false for null */
/* bytea, as bytes: false unless it is exactly len long. */
bool pg_get_bytes(const struct store_result *r, int row, int col, void *dst, size_t len);
/* Any bytea: heap, NULL for null. */
unsigned char *pg_get_blob(const struct store_result *r, int row, int col, size_t *ret_len);

/* Milliseconds since the epoch, 0 for null; and microseconds for cursors. */
#define PG_MS(x) "coalesce((extract(epoch from " x ") * 1000)::bigint, 0)"
#define PG_US(x) "(extract(epoch from " x ") * 1000000)::bigint"
/* `(column, id) < cursor` for $us, $id; a null $us takes all. */
#define PG_AFTER(column, id, us, ident)                                                                                \
    "(" us "::bigint IS NULL OR (" column ", " id ") < (timestamptz 'epoch' + " us                                     \
    "::bigint * interval '1 microsecond', " ident "::text))"
/* Adds the two arguments of PG_AFTER. */
struct pg_cursor {
    char id[48];
};
void pg_page(struct pg_args *a, const struct store_page *page, struct pg_cursor *mem);

int pg_corrupt(struct sp_error *err, const char *what);
