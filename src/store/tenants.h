/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants, their quotas and what they use. */
#pragma once
#include "store/store.h"

struct quotas {
    uint64_t max_sandboxes, max_vcpus, max_memory_mib, max_sessions_per_sandbox, requests_per_second;
};
struct tenant {
    const char *id, *name; /* borrow from the result */
    struct quotas quotas;
    uint64_t sandboxes;         /* neither deleted nor being deleted */
    uint64_t vcpus, memory_mib; /* of those that have not failed either */
    int64_t created_ms, created_us;
};

/* SP_E_CONFLICT: the name is taken. */
int tenant_insert(struct store *s, const char *id, const char *name, const struct quotas *q, struct sp_error *err);
/* `lock` keeps others from changing it or creating sandboxes of it until the transaction ends. SP_E_NOT_FOUND. */
int tenant_get(struct store *s, const char *id, bool lock, struct store_result **ret_res, struct tenant *ret,
               struct sp_error *err);
int tenant_list(struct store *s, const struct store_page *page, struct store_result **ret_res, int *ret_n,
                struct sp_error *err);
void tenant_row(const struct store_result *res, int row, struct tenant *ret);
int tenant_update(struct store *s, const char *id, const char *name, const struct quotas *q, struct sp_error *err);
/* With everything of it; the caller has seen that no sandbox is left. */
int tenant_delete(struct store *s, const char *id, struct sp_error *err);
/* The tenant of this name, made when it is missing. */
int tenant_ensure(struct store *s, const char *name, char ret_id[32], struct sp_error *err);
/* The table's defaults. */
struct quotas quotas_default(void);
