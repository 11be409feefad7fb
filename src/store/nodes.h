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
/* In a transaction: notes that it was heard of, to within a second. */
int node_heard(struct store *s, const char *id, struct sp_error *err);
/* In a transaction. */
int node_set_capacity(struct store *s, const char *id, const struct node_capacity *c, struct sp_error *err);
/* In a transaction: its desired list changed: a new revision, told when the transaction commits. */
int node_poke(struct store *s, const char *id, struct sp_error *err);

struct node {
    const char *id, *hostname, *version, *accelerator, *vmm, *kernels, *gateway_url;
    bool is_live;
    struct node_capacity capacity;
    uint64_t used_sandboxes, used_vcpus, used_memory_mib; /* of those with a VM */
    uint64_t listed;                                      /* suspended ones included */
    bool has_garbage;
    uint64_t garbage_snapshots, garbage_bytes, warm, filling, target;
    int64_t registered_ms, last_seen_ms;
};
int node_list(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err);
void node_row(const struct store_result *res, int row, struct node *ret);

enum placement { PLACED, PLACE_NO_NODE /* none is live */, PLACE_NO_ROOM };
/* In a transaction: chooses a node for a sandbox of this size and locks it, so that the room is still there when the
 * transaction commits. Its revision is raised already. */
int node_place(struct store *s, uint64_t vcpus, uint64_t memory_mib, enum placement *ret, char ret_node_id[65],
               struct sp_error *err);

/* In a transaction: locks this node and sees whether it has room for `count` more of this size. */
int node_take_room(struct store *s, const char *id, uint64_t count, uint64_t vcpus, uint64_t memory_mib,
                   bool *ret_taken, struct sp_error *err);

struct desired {
    const char *id;
    uint64_t generation;
    enum sandbox_state state;
    const char *operation_id, *operation_kind; /* NULL: none on its way */
    int64_t deadline_ms;
    const char *digest, *manifest, *env, *hostname, *machine_id; /* manifest may be NULL */
    uint64_t vcpus, memory_mib;
    const char *start_id;                    /* what the operation on its way starts, or copies, from; NULL: nothing */
    const char *snapshot_id, *snapshot_kind; /* what it makes; NULL: nothing */
    const char *start_content, *snapshot_content; /* of these two; NULL likewise, or when it is gone */
};
struct desired_list {
    int n; /* rows */
    uint64_t revision;
    const char *gone,
        *pools; /* JSON arrays: ids of snapshots to be removed; pools as in the internal API. NULL: empty */
};
/* Everything that is assigned to the node and that it has not let go of. Notes that it was heard of. SP_E_NOT_FOUND: it never
 * registered. */
int node_desired(struct store *s, const char *id, struct store_result **ret_res, struct desired_list *ret,
                 struct sp_error *err);
int node_set_garbage(struct store *s, const char *id, uint64_t snapshots, uint64_t bytes, struct sp_error *err);
/* All nodes: what they keep for everyone has changed. */
int node_poke_all(struct store *s, struct sp_error *err);
int desired_row(const struct store_result *res, int row, struct desired *ret, struct sp_error *err);
