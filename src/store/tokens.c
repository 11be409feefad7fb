/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of management tokens. A lookup is by hash, so no comparison of secrets happens here or anywhere. */
#include "store/tokens.h"
#include "base/text.h"
#include "store/pg.h"

#define COLUMNS                                                                                                                   \
    "id, tenant_id, name, scopes, revoked_at IS NOT NULL, coalesce(expires_at <= now(), false), " PG_MS("created_at") ", " PG_US( \
        "created_at") ", " PG_MS("expires_at") ", " PG_MS("rotated_at") ", " PG_MS("revoked_at") ", " PG_MS("last_"               \
                                                                                                            "used_at")

static int touch(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    return pg_run(s,
                  "UPDATE tokens SET last_used_at = now() WHERE id = $1 "
                  "AND (last_used_at IS NULL OR last_used_at < now() - interval '5 minutes')",
                  &a, NULL, err);
}

int token_authenticate(struct store *s, const uint8_t hash[SHA256_SIZE], struct auth *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct auth auth = {0};
    struct pg_args a = {0};
    pg_bytes(&a, hash, SHA256_SIZE);
    int r =
        pg_run(s,
               "SELECT k.id, k.tenant_id, k.scopes, t.requests_per_second, "
               "k.last_used_at IS NULL OR k.last_used_at < now() - interval '5 minutes', t.max_sessions_per_sandbox "
               "FROM tokens k JOIN tenants t ON t.id = k.tenant_id "
               "WHERE (k.hash = $1 OR (k.previous_hash = $1 AND k.previous_until > now())) "
               "AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())",
               &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_UNAUTHORIZED, "the token is unknown, expired or revoked");
    if (!text_copy(auth.token_id, sizeof(auth.token_id), pg_get_text(res, 0, 0)) ||
        !text_copy(auth.tenant_id, sizeof(auth.tenant_id), pg_get_text(res, 0, 1)))
        return pg_corrupt(err, "token");
    auth.scopes = (uint32_t)pg_get_int(res, 0, 2);
    auth.requests_per_second = (uint64_t)pg_get_int(res, 0, 3);
    auth.max_sessions_per_sandbox = (uint64_t)pg_get_int(res, 0, 5);
    if (pg_get_bool(res, 0, 4))
        (void)touch(s, auth.token_id, NULL); /* coarse anyway; a failure shows in the next statement */
    *ret = auth;
    return 0;
}

static void add_row(struct pg_args *a, const struct token_new_row *t) {
    pg_text(a, t->id);
    pg_text(a, t->tenant_id);
    pg_text_or_null(a, t->name);
    pg_bytes(a, t->hash, SHA256_SIZE);
    pg_int(a, t->scopes);
    pg_int(a, (int64_t)t->expires_in_s);
}
#define INSERT                                                                                                         \
    "INSERT INTO tokens (id, tenant_id, name, hash, scopes, expires_at) "                                              \
    "VALUES ($1, $2, $3, $4, $5, CASE WHEN $6::bigint > 0 THEN now() + $6::bigint * interval '1 second' END)"

int token_insert(struct store *s, const struct token_new_row *t, struct sp_error *err) {
    struct pg_args a = {0};
    add_row(&a, t);
    return pg_run(s, INSERT, &a, NULL, err);
}

int token_ensure(struct store *s, const struct token_new_row *t, struct sp_error *err) {
    struct pg_args a = {0};
    add_row(&a, t);
    return pg_run(s, INSERT " ON CONFLICT (hash) DO NOTHING", &a, NULL, err);
}

void token_row(const struct store_result *res, int row, struct token *ret) {
    *ret = (struct token){
        .id = pg_get_text(res, row, 0),
        .tenant_id = pg_get_text(res, row, 1),
        .name = pg_get(res, row, 2),
        .scopes = (uint32_t)pg_get_int(res, row, 3),
        .is_revoked = pg_get_bool(res, row, 4),
        .is_expired = pg_get_bool(res, row, 5),
        .created_ms = pg_get_int(res, row, 6),
        .created_us = pg_get_int(res, row, 7),
        .expires_ms = pg_get_int(res, row, 8),
        .rotated_ms = pg_get_int(res, row, 9),
        .revoked_ms = pg_get_int(res, row, 10),
        .last_used_ms = pg_get_int(res, row, 11),
    };
}

int token_get(struct store *s, const char *id, const char *tenant_id, bool lock, struct store_result **ret_res,
              struct token *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, tenant_id);
    int r = pg_run(s,
                   lock ? "SELECT " COLUMNS " FROM tokens WHERE id = $1 AND ($2::text IS NULL OR tenant_id = $2) "
                          "FOR NO KEY UPDATE"
                        : "SELECT " COLUMNS " FROM tokens WHERE id = $1 AND ($2::text IS NULL OR tenant_id = $2)",
                   &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no token %s", id);
    token_row(res, 0, ret);
    *ret_res = TAKE_PTR(res);
    return 0;
}

int token_list(struct store *s, const char *tenant_id, const struct store_page *page, struct store_result **ret_res,
               int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    struct pg_cursor mem;
    pg_page(&a, page, &mem);
    pg_int(&a, page->limit);
    pg_text(&a, tenant_id);
    int r =
        pg_run(s,
               "SELECT " COLUMNS
               " FROM tokens WHERE tenant_id = $4 AND " PG_AFTER("created_at", "id", "$1",
                                                                 "$2") " ORDER BY created_at DESC, id DESC LIMIT $3",
               &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int token_count_active(struct store *s, const char *tenant_id, uint64_t *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, tenant_id);
    int r = pg_run(s,
                   "SELECT count(*) FROM tokens WHERE tenant_id = $1 AND revoked_at IS NULL "
                   "AND (expires_at IS NULL OR expires_at > now())",
                   &a, &res, err);
    if (r == 0)
        *ret = (uint64_t)pg_get_int(res, 0, 0);
    return r;
}

int token_rotate(struct store *s, const char *id, const uint8_t new_hash[SHA256_SIZE], uint64_t grace_s,
                 struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_bytes(&a, new_hash, SHA256_SIZE);
    pg_int(&a, (int64_t)grace_s);
    return pg_run(s,
                  "UPDATE tokens SET previous_hash = hash, previous_until = now() + $3::bigint * interval '1 second', "
                  "hash = $2, rotated_at = now() WHERE id = $1",
                  &a, NULL, err);
}

int token_revoke(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    return pg_run(s,
                  "UPDATE tokens SET revoked_at = coalesce(revoked_at, now()), previous_hash = NULL, "
                  "previous_until = NULL WHERE id = $1",
                  &a, NULL, err);
}
