/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments, columns and cursors: the small change of talking to libpq. The connection itself is in store.c. */
#include "store/pg.h"
#include "base/text.h"
#include "store/store_internal.h"
#include <assert.h>
#include <inttypes.h>
#include <string.h>

static unsigned next_arg(struct pg_args *a) {
    assert(a->n < PG_ARGS_MAX);
    a->values[a->n] = NULL;
    a->lengths[a->n] = 0;
    a->formats[a->n] = 0;
    return a->n++;
}

void pg_text(struct pg_args *a, const char *v) {
    unsigned i = next_arg(a);
    a->values[i] = v;
}

void pg_text_or_null(struct pg_args *a, const char *v) {
    pg_text(a, v && *v ? v : NULL);
}

void pg_int(struct pg_args *a, int64_t v) {
    unsigned i = next_arg(a);
    (void)text_printf(a->numbers[i], sizeof(a->numbers[i]), "%" PRId64, v);
    a->values[i] = a->numbers[i];
}

void pg_bool(struct pg_args *a, bool v) {
    pg_text(a, v ? "t" : "f");
}

void pg_bytes(struct pg_args *a, const void *v, size_t len) {
    unsigned i = next_arg(a);
    assert(len <= INT32_MAX);
    a->values[i] = v;
    a->lengths[i] = (int)len;
    a->formats[i] = 1;
}

void pg_null(struct pg_args *a) {
    (void)next_arg(a);
}

int pg_count(struct store *s, const char *sql, const struct pg_args *a, uint64_t *ret_rows, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    int r = pg_run(s, sql, a, &res, err);
    if (r < 0)
        return r;
    const char *touched = PQcmdTuples(res->pg);
    if (!text_to_u64(touched, 0, UINT64_MAX, ret_rows))
        *ret_rows = (uint64_t)pg_rows(res);
    return 0;
}

void pg_note(struct store *s, char kind, const char *id) {
    struct store_note *n = &s->notes[s->n_notes];
    for (unsigned i = 0; i < s->n_notes; i++)
        if (s->notes[i].kind == kind && strcmp(s->notes[i].id, id) == 0)
            return; /* the database says it once, too */
    if (s->n_notes < NOTES_MAX && text_copy(n->id, sizeof(n->id), id)) {
        n->kind = kind;
        s->n_notes++;
    }
}

int pg_notify(struct store *s, char kind, const char *id, struct sp_error *err) {
    char payload[96];
    struct pg_args a = {0};
    (void)snprintf(payload, sizeof(payload), "%c%.80s", kind, id);
    pg_text(&a, payload);
    pg_note(s, kind, id);
    return pg_queue(s, "SELECT pg_notify('space', $1)", &a, err);
}

int pg_rows(const struct store_result *r) {
    return PQntuples(r->pg);
}

int pg_columns(const struct store_result *r) {
    return PQnfields(r->pg);
}

const char *pg_get(const struct store_result *r, int row, int col) {
    return PQgetisnull(r->pg, row, col) ? NULL : PQgetvalue(r->pg, row, col);
}

const char *pg_get_text(const struct store_result *r, int row, int col) {
    return PQgetvalue(r->pg, row, col); /* "" for null */
}

int64_t pg_get_int(const struct store_result *r, int row, int col) {
    const char *text = PQgetvalue(r->pg, row, col);
    bool negative = text[0] == '-';
    uint64_t v;
    if (!text_to_u64(text + negative, 0, INT64_MAX, &v))
        return 0;
    return negative ? -(int64_t)v : (int64_t)v;
}

bool pg_get_bool(const struct store_result *r, int row, int col) {
    return PQgetvalue(r->pg, row, col)[0] == 't';
}

unsigned char *pg_get_blob(const struct store_result *r, int row, int col, size_t *ret_len) {
    size_t len;
    unsigned char *copy, *bytes;
    const char *text = pg_get(r, row, col);
    if (!text)
        return NULL;
    bytes = PQunescapeBytea((const unsigned char *)text, &len);
    if (!bytes)
        abort();
    copy = malloc(len + 1);
    if (!copy)
        abort();
    memcpy(copy, bytes, len);
    copy[len] = '\0';
    PQfreemem(bytes);
    *ret_len = len;
    return copy;
}

bool pg_get_bytes(const struct store_result *r, int row, int col, void *dst, size_t len) {
    size_t have;
    _cleanup_free_ unsigned char *bytes = pg_get_blob(r, row, col, &have);
    if (!bytes || have != len)
        return false;
    memcpy(dst, bytes, len);
    return true;
}

int pg_corrupt(struct sp_error *err, const char *what) {
    return sp_error_set(err, SP_E_CORRUPT, "the database holds a %s that this version does not know", what);
}

/* ---- cursors ---- */

static bool cursor_split(const char *cursor, uint64_t *ret_us, const char **ret_id) {
    char digits[24];
    size_t n = strcspn(cursor, ".");
    if (cursor[n] != '.' || n == 0 || n >= sizeof(digits))
        return false;
    memcpy(digits, cursor, n);
    digits[n] = '\0';
    *ret_id = cursor + n + 1;
    size_t len = strlen(*ret_id);
    return text_to_u64(digits, 0, 1ull << 53, ret_us) && len > 0 && len < sizeof(((struct pg_cursor *)0)->id) &&
           strspn(*ret_id, "abcdefghijklmnopqrstuvwxyz0123456789_") == len;
}

bool store_cursor_is_valid(const char *cursor) {
    uint64_t us;
    const char *id;
    return cursor_split(cursor, &us, &id);
}

const char *store_cursor_format(char dst[STORE_CURSOR_SIZE], int64_t created_us, const char *id) {
    (void)text_printf(dst, STORE_CURSOR_SIZE, "%" PRId64 ".%s", created_us, id);
    return dst;
}

void pg_page(struct pg_args *a, const struct store_page *page, struct pg_cursor *mem) {
    uint64_t us;
    const char *id;
    if (page->cursor && *page->cursor && cursor_split(page->cursor, &us, &id)) {
        (void)text_copy(mem->id, sizeof(mem->id), id);
        pg_int(a, (int64_t)us);
        pg_text(a, mem->id);
    } else {
        pg_null(a);
        pg_null(a);
    }
}
