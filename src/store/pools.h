/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of machines started ahead of need, and what nodes said of them last. */
#pragma once
#include "store/store.h"

struct pool {
    const char *id, *template_name, *template_tag /* or NULL */, *digest;
    uint64_t vcpus, memory_mib, size;
    const char *nodes; /* JSON text, as in the API */
    int64_t created_ms;
};
struct pool_new_row {
    const char *id, *template_id, *template_name, *template_tag, *digest;
    uint64_t vcpus, memory_mib, size;
};
/* SP_E_CONFLICT: there is one of this release and size. */
int pool_insert(struct store *s, const struct pool_new_row *n, struct sp_error *err);
/* id NULL: all. */
int pool_list(struct store *s, const char *id, struct store_result **ret_res, int *ret_n, struct sp_error *err);
void pool_row(const struct store_result *res, int row, struct pool *ret);
/* SP_E_NOT_FOUND */
int pool_resize(struct store *s, const char *id, uint64_t size, struct sp_error *err);
int pool_delete(struct store *s, const char *id, struct sp_error *err);

/* A tag was moved: pools that were made by it go with it, unless there is one of that release already. */
int pools_follow_tag(struct store *s, const char *owner, const char *name, const char *tag, struct sp_error *err);

struct pool_report {
    const char *pool_id;
    uint64_t warm, filling, target, hits, misses;
};
/* One of an unknown pool is passed over. */
int pool_report(struct store *s, const char *node_id, const struct pool_report *r, struct sp_error *err);
