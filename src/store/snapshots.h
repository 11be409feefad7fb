/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of snapshots: reading, describing, what nodes say of them, removal. They are made by lifecycle_begin(). */
#pragma once
#include "store/lifecycle.h"

struct snapshot { /* pointers borrow from the result; NULL where the row has null */
    const char *id, *sandbox_id, *node_id, *name, *parent_id;
    enum snapshot_kind kind;
    enum snapshot_content content;
    enum snapshot_state state;
    uint64_t generation;
    bool has_sizes; /* memory, disk, exclusive, stall */
    int64_t memory_bytes, disk_bytes, exclusive_bytes, stall_us;
    const char *template_id, *template_name, *template_tag, *digest, *manifest;
    uint64_t vcpus, memory_mib;
    const char *error_code, *error_message, *metadata /* JSON text */, *operation_id;
    int64_t created_ms, created_us, ready_ms;
};
int snapshot_row(const struct store_result *res, int row, struct snapshot *ret, struct sp_error *err);
/* `lock` keeps others from starting from it or removing it until the transaction ends. SP_E_NOT_FOUND. */
int snapshot_get(struct store *s, const char *id, const char *tenant_id, bool lock, struct store_result **ret_res,
                 struct snapshot *ret, struct sp_error *err);
struct snapshot_filter {
    const char *tenant_id;
    const char *sandbox_id, *kind, *state; /* NULL: all */
};
int snapshot_list(struct store *s, const struct snapshot_filter *f, const struct store_page *page,
                  struct store_result **ret_res, int *ret_n, struct sp_error *err);
int snapshot_describe(struct store *s, const char *id, const char *name, const char *metadata, struct sp_error *err);
int snapshot_count(struct store *s, const char *tenant_id, uint64_t *ret, struct sp_error *err);
/* Is it of this sandbox's line: its own, or an ancestor's from before the line parted? */
int snapshot_is_of_line(struct store *s, const char *id, const char *sandbox_id, bool *ret, struct sp_error *err);
/* Something is to be started from it: the sweep keeps away. */
int snapshot_use(struct store *s, const char *id, struct sp_error *err);

/* A sandbox that needs it: *ret_why says in words how, NULL when none does. It is locked. */
int snapshot_in_use(struct store *s, const struct snapshot *x, struct store_result **ret_res, const char **ret_why,
                    struct sp_error *err);
/* It is locked and not in use: its node is told to remove it, and nothing counts on it any more. */
int snapshot_begin_delete(struct store *s, const struct snapshot *x, struct sp_error *err);

/* ---- nodes ---- */

/* In the transaction of a report, the sandbox being locked: a snapshot that is ready. Other news of it are its operation's. */
int snapshot_settle(struct store *s, const char *node_id, const char *sandbox_id, const struct observed_snapshot *x,
                    struct sp_error *err);
/* Those of ids[] that need not be reported any more; a JSON array of ids. */
int snapshots_settled(struct store *s, const char *const *ids, size_t n, struct store_result **ret_res,
                      const char **ret_json, struct sp_error *err);
/* The node has removed them. */
int snapshots_removed(struct store *s, const char *node_id, const char *const *ids, size_t n, struct sp_error *err);
/* Those of ids[] that this node should not have; a JSON array of ids. */
int snapshots_unknown(struct store *s, const char *node_id, const char *const *ids, size_t n,
                      struct store_result **ret_res, const char **ret_json, struct sp_error *err);

/* In a transaction: the platform's own that nobody needs any more, failed ones past their time, and what a tenant that is
 * gone has left. *ret_n: how many are to be removed now. */
int snapshots_sweep(struct store *s, uint64_t *ret_n, struct sp_error *err);
