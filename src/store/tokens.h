/* SPDX-License-Identifier: Apache-2.0 */
/* Management tokens. Only their SHA-256 is ever here. */
#pragma once
#include "base/digest.h"
#include "base/random.h"
#include "store/store.h"
#include "store/tenants.h"

/* What a request may do: copied out of the row, no memory to free. */
struct auth {
    char tenant_id[ID_SIZE], token_id[ID_SIZE];
    uint32_t scopes;
    uint64_t requests_per_second, max_sessions_per_sandbox; /* the tenant's quotas */
};
/* SP_E_UNAUTHORIZED: unknown, expired or revoked. Notes the use, to within five minutes. */
int token_authenticate(struct store *s, const uint8_t hash[SHA256_SIZE], struct auth *ret, struct sp_error *err);

struct token {
    const char *id, *tenant_id, *name; /* name may be NULL */
    uint32_t scopes;
    bool is_revoked, is_expired;
    int64_t created_ms, created_us, expires_ms, rotated_ms, revoked_ms, last_used_ms; /* 0: never */
};
struct token_new_row {
    const char *id, *tenant_id, *name;
    const uint8_t *hash;
    uint32_t scopes;
    uint64_t expires_in_s; /* 0: never */
};
int token_insert(struct store *s, const struct token_new_row *t, struct sp_error *err);
/* Of the tenant; tenant_id NULL: of any. `lock` as in tenant_get. */
int token_get(struct store *s, const char *id, const char *tenant_id, bool lock, struct store_result **ret_res,
              struct token *ret, struct sp_error *err);
int token_list(struct store *s, const char *tenant_id, const struct store_page *page, struct store_result **ret_res,
               int *ret_n, struct sp_error *err);
void token_row(const struct store_result *res, int row, struct token *ret);
/* Neither revoked nor expired. */
int token_count_active(struct store *s, const char *tenant_id, uint64_t *ret, struct sp_error *err);
int token_rotate(struct store *s, const char *id, const uint8_t new_hash[SHA256_SIZE], uint64_t grace_s,
                 struct sp_error *err);
int token_revoke(struct store *s, const char *id, struct sp_error *err);
/* A token with this hash, for bootstrap: made when missing, left as it is otherwise. */
int token_ensure(struct store *s, const struct token_new_row *t, struct sp_error *err);
