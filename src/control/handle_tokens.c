/* SPDX-License-Identifier: Apache-2.0 */
/* Management tokens. Nobody gives, rotates or revokes what reaches further than the token in hand. */
#include "base/text.h"
#include "control/handlers.h"
#include "control/render.h"
#include "model/limits.h"
#include <string.h>

#define DEFAULT_GRACE_S 3600

static bool is_admin(const struct request *rq) {
    return (rq->auth.scopes & SCOPE_ADMIN) != 0;
}

static int answer_secret(struct request *rq, const char *id, const char *secret, int status) {
    _cleanup_result_ struct store_result *res = NULL;
    struct token t;
    int r = token_get(rq->db, id, NULL, false, &res, &t, &rq->err);
    if (r < 0)
        return r;
    json_t *o = json_object();
    put_new(o, "token", render_token(&t));
    put_text(o, "secret", secret);
    (void)text_copy(rq->object_id, sizeof(rq->object_id), id);
    rq->answer = o;
    rq->status = status;
    return 0;
}

static int check_reach(struct request *rq, uint32_t scopes, const char *field) {
    if (scopes_allow(rq->auth.scopes, scopes))
        return 0;
    return request_problem(rq, PROBLEM_FORBIDDEN, field, "the token in hand lacks a scope of the other one");
}

/* The tenant, locked, so that the count of its tokens stays right. */
static int check_tenant(struct request *rq, const char *tenant_id) {
    _cleanup_result_ struct store_result *res = NULL;
    struct tenant t;
    uint64_t n = 0;
    if (strcmp(tenant_id, rq->auth.tenant_id) != 0 && !is_admin(rq))
        return request_problem(rq, PROBLEM_FORBIDDEN, "tenant_id", "a token of another tenant needs scope admin");
    int r = tenant_get(rq->db, tenant_id, true, &res, &t, &rq->err);
    if (r == 0)
        r = token_count_active(rq->db, tenant_id, &n, &rq->err);
    if (r < 0 || n < LIMIT_VALUE(tokens_per_tenant))
        return r;
    return request_problem(rq, PROBLEM_QUOTA_EXCEEDED, "tokens_per_tenant", "the tenant has %d tokens already",
                           (int)LIMIT_VALUE(tokens_per_tenant));
}

int handle_token_create(struct request *rq) {
    const char *tenant_id = body_text(rq->body, "tenant_id");
    char id[ID_SIZE], secret[TOKEN_SIZE];
    uint8_t hash[SHA256_SIZE];
    uint32_t scopes = 0;
    if (!tenant_id)
        tenant_id = rq->auth.tenant_id;
    int r = scopes_from_json(json_object_get(rq->body, "scopes"), "scopes", &scopes, &rq->err);
    if (r == 0)
        r = check_reach(rq, scopes, "scopes");
    if (r == 0)
        r = check_tenant(rq, tenant_id);
    if (r < 0)
        return r;
    id_new(id, ID_TOKEN);
    token_new(secret, TOKEN_MANAGEMENT);
    sha256_memory(secret, strlen(secret), hash);
    struct token_new_row n = {.id = id,
                              .tenant_id = tenant_id,
                              .name = body_text(rq->body, "name"),
                              .hash = hash,
                              .scopes = scopes,
                              .expires_in_s = body_uint(rq->body, "expires_in_s", 0)};
    r = token_insert(rq->db, &n, &rq->err);
    if (r == 0)
        r = answer_secret(rq, id, secret, 201);
    text_wipe(secret, sizeof(secret));
    return r;
}

int handle_token_list(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct store_page page = request_page(rq);
    char cursor[STORE_CURSOR_SIZE] = "";
    int n = 0;
    int r = token_list(rq->db, rq->auth.tenant_id, &page, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    for (int i = 0; i < n; i++) {
        struct token t;
        token_row(res, i, &t);
        (void)json_array_append_new(items, render_token(&t));
        if (i + 1 == (int)page.limit)
            (void)store_cursor_format(cursor, t.created_us, t.id);
    }
    rq->answer = render_page(items, cursor);
    rq->status = 200;
    return 0;
}

/* The token a path names, locked, and within reach. */
static int find_token(struct request *rq, struct store_result **ret_res, struct token *ret) {
    int r = token_get(rq->db, request_param(rq, "token_id"), is_admin(rq) ? NULL : rq->auth.tenant_id, true, ret_res,
                      ret, &rq->err);
    return r < 0 ? r : check_reach(rq, ret->scopes, "");
}

int handle_token_revoke(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct token t;
    int r = find_token(rq, &res, &t);
    if (r < 0)
        return r;
    (void)text_copy(rq->object_id, sizeof(rq->object_id), t.id);
    rq->status = 204;
    return token_revoke(rq->db, t.id, &rq->err);
}

int handle_token_rotate(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    char secret[TOKEN_SIZE];
    uint8_t hash[SHA256_SIZE];
    struct token t;
    int r = find_token(rq, &res, &t);
    if (r < 0)
        return r;
    if (t.is_revoked || t.is_expired)
        return request_problem(rq, PROBLEM_GONE, "", "the token is %s", t.is_revoked ? "revoked" : "expired");
    token_new(secret, TOKEN_MANAGEMENT);
    sha256_memory(secret, strlen(secret), hash);
    r = token_rotate(rq->db, t.id, hash, body_uint(rq->body, "grace_s", DEFAULT_GRACE_S), &rq->err);
    if (r == 0)
        r = answer_secret(rq, t.id, secret, 200);
    text_wipe(secret, sizeof(secret));
    return r;
}
