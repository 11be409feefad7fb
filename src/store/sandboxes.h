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
    const char *template_id;
    const char *lifecycle;                            /* JSON text */
    const char *start_snapshot_id, *last_snapshot_id; /* what it was started from; the last good one */
    const char *parent_sandbox_id, *parent_snapshot_id, *start_kind;
    uint64_t streams;
    int64_t created_ms, created_us, updated_ms, started_ms, deleted_ms, active_ms;
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
struct sandbox_description {
    const char *name;      /* NULL: none */
    const char *metadata;  /* JSON text */
    const char *lifecycle; /* JSON text; the seconds are what it says, 0: never */
    uint64_t idle_s, life_s, checkpoint_s;
};
/* Of a locked row; counts as use of the sandbox. */
int sandbox_describe(struct store *s, const char *id, const struct sandbox_description *d, struct sp_error *err);
/* Its environment, JSON text. */
int sandbox_env(struct store *s, const char *id, struct store_result **ret_res, const char **ret_env,
                struct sp_error *err);
/* A client changed something of it. */
int sandbox_touch(struct store *s, const char *id, struct sp_error *err);
