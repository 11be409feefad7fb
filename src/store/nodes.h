/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes: registration, capacity, placement under a lock, and the list of what a node should have. */
#pragma once
#include "model/plan.h"
#include "model/states.h"
#include "store/store.h"

struct node_capacity {
    uint64_t vcpus, memory_mib, disk_mib, max_sandboxes;
};
struct node_report {
    const char *id, *boot_id, *hostname, *version, *accelerator, *vmm, *kernels /* JSON text */, *gateway_url;
    struct node_capacity capacity;
};
/* In a transaction. *ret_rebooted: it was known under another boot id; the sandboxes that ran there have been failed. */
int node_register(struct store *s, const struct node_report *n, bool *ret_rebooted, struct sp_error *err);
/* Notes that it was heard of, to within a second. *ret_revision: of its desired list. SP_E_NOT_FOUND: it never registered. */
int node_touch(struct store *s, const char *id, uint64_t *ret_revision, struct sp_error *err);
/* In a transaction. */
int node_set_capacity(struct store *s, const char *id, const struct node_capacity *c, struct sp_error *err);
/* In a transaction: its desired list changed: a new revision, told when the transaction commits. */
int node_poke(struct store *s, const char *id, struct sp_error *err);

struct node {
    const char *id, *hostname, *version, *accelerator, *vmm, *kernels, *gateway_url;
    bool is_live;
    struct node_capacity capacity;
    uint64_t used_sandboxes, used_vcpus, used_memory_mib;
    int64_t registered_ms, last_seen_ms;
};
int node_list(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err);
void node_row(const struct store_result *res, int row, struct node *ret);

enum placement { PLACED, PLACE_NO_NODE /* none is live */, PLACE_NO_ROOM };
/* In a transaction: chooses a node for a sandbox of this size and locks it, so that the room is still there when the
 * transaction commits. Its revision is raised already. */
int node_place(struct store *s, uint64_t vcpus, uint64_t memory_mib, enum placement *ret, char ret_node_id[65],
               struct sp_error *err);

struct desired {
    const char *id;
    uint64_t generation;
    enum sandbox_state state;
    const char *operation_id, *operation_kind; /* NULL: none on its way */
    int64_t deadline_ms;
    const char *digest, *manifest, *env, *hostname, *machine_id; /* manifest may be NULL */
    uint64_t vcpus, memory_mib;
};
/* Everything that is assigned to the node and that it has not let go of. */
int node_desired(struct store *s, const char *id, struct store_result **ret_res, int *ret_n, struct sp_error *err);
int desired_row(const struct store_result *res, int row, struct desired *ret, struct sp_error *err);
