/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of sandboxes: reading, listing, changing what the owner may change. Their life is in lifecycle.h. */
#pragma once
#include "base/random.h"
#include "model/states.h"
#include "store/operations.h"
#include "store/store.h"

struct sandbox { /* pointers borrow from the result; NULL where the row has null */
    const char *id, *tenant_id, *name;
    enum sandbox_state state;
    bool ready; /* reported, and the node was heard of within node_lost_ms */
    const char *template_name, *template_tag, *digest;
    uint64_t vcpus, memory_mib, generation;
    const char *metadata; /* JSON text */
    const char *node_id, *gateway_url;
    bool is_released; /* its node holds nothing of it */
    const char *operation_id, *delete_operation_id;
    const char *error_code, *error_message;
    const char *accelerator, *kernel, *vmm, *timings; /* timings: JSON text */
    int64_t created_ms, created_us, updated_ms, started_ms, deleted_ms;
};
int sandbox_row(const struct store_result *res, int row, struct sandbox *ret, struct sp_error *err);

/* tenant_id NULL: of any. `lock` keeps others from changing it until the transaction ends. SP_E_NOT_FOUND. */
int sandbox_get(struct store *s, const char *id, const char *tenant_id, bool lock, struct store_result **ret_res,
                struct sandbox *ret, struct sp_error *err);
/* An operation and its sandbox in one read. */
int sandbox_get_by_operation(struct store *s, const char *operation_id, const char *tenant_id,
                             struct store_result **ret_res, struct operation *ret_operation, struct sandbox *ret,
                             struct sp_error *err);
struct sandbox_filter {
    const char *tenant_id;
    const char *state, *name; /* NULL: all (deleted ones only when asked for) */
    const char *metadata;     /* JSON object text that must be contained, or NULL */
};
int sandbox_list(struct store *s, const struct sandbox_filter *f, const struct store_page *page,
                 struct store_result **ret_res, int *ret_n, struct sp_error *err);
/* Sets name (NULL: none) and metadata of a locked row. */
int sandbox_describe(struct store *s, const char *id, const char *name, const char *metadata, struct sp_error *err);
