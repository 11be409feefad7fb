/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of sandboxes, as guarded changes over several tables. Every function runs inside a transaction of the caller
 * and leaves sandbox, operation, snapshots, sessions, the node's revision, outbox and notifications consistent.
 */
#pragma once
#include "model/plan.h"
#include "store/sandboxes.h"
#include "store/store.h"

struct sandbox_new_row {
    const char *id, *tenant_id, *operation_id;
    const char *template_id /* or NULL */, *template_name, *template_tag /* or NULL */, *digest;
    uint64_t vcpus, memory_mib;
    struct sandbox_description description;
    const char *env; /* JSON text */
    const char *hostname, *machine_id;
    const char *node_id; /* NULL: none yet */
    uint64_t timeout_s;
    /* From a snapshot; NULL: from the template. */
    const char *start_snapshot_id, *parent_sandbox_id;
    const char *fork_id; /* the operation that makes it as a child; NULL: none */
    uint64_t fork_index;
};
int lifecycle_create(struct store *s, const struct sandbox_new_row *n, struct sp_error *err);

/* What a verb is to do to a sandbox that is locked and has no operation. */
struct verb {
    const struct sandbox *sandbox;
    enum operation_kind kind;
    enum operation_reason reason;
    const char *operation_id; /* the new one's */
    uint64_t timeout_s;
    const char *start_id;             /* the snapshot a new VM starts from; NULL: none is started */
    const char *snapshot_id;          /* the snapshot to be made; NULL: none */
    enum snapshot_kind snapshot_kind; /* of it */
    enum snapshot_content snapshot_content;
    const char *snapshot_name /* or NULL */, *snapshot_metadata; /* of it; JSON text */
};
/* Records the intent. */
int lifecycle_begin(struct store *s, const struct verb *v, struct sp_error *err);
/* It is so already: an operation that has succeeded. */
int lifecycle_record_noop(struct store *s, const struct verb *v, struct sp_error *err);

/* b is locked. Makes it deleting, or deleted when no node holds anything; `operation_id` is the new operation's. */
int lifecycle_delete(struct store *s, const struct sandbox *b, const char *operation_id, enum operation_reason reason,
                     struct sp_error *err);

/* ---- what nodes report ---- */

struct observed_snapshot {
    const char *id;            /* NULL: none was named */
    enum snapshot_state state; /* ready or failed */
    uint64_t memory_bytes, disk_bytes, exclusive_bytes, stall_us;
    enum failure failure;
    const char *message;
};
struct observed {
    const char *id;
    uint64_t generation;
    struct observation what;
    const char *message;                              /* of a failure; may be "" */
    const char *accelerator, *kernel, *vmm, *timings; /* NULL: not said; timings: JSON text */
    const char *start_kind;                           /* NULL: not said */
    const char *operation_id;                         /* that it speaks of; NULL: of none */
    const char *operation_message, *operation_timings;
    struct observed_snapshot snapshot;
    int64_t active_ms; /* 0: not said */
    bool has_streams;
    uint64_t streams;
};
/* Locks the sandboxes of a report in the order of their ids and reads what is recorded.
 * SP_E_NOT_FOUND: it never registered. */
int lifecycle_lock_observed(struct store *s, const char *node_id, const char *const *ids, size_t n,
                            struct store_result **ret_res, struct sp_error *err);
enum observed_fit {
    OBSERVED_FITS,
    OBSERVED_UNKNOWN /* not this node's, or gone: it should be removed there */,
    OBSERVED_STALE /* another generation */
};
/* Applies one of them. *ret_poke: the node's desired list changed. */
int lifecycle_observe(struct store *s, const struct store_result *locked, const char *node_id, const struct observed *o,
                      enum observed_fit *ret_fit, bool *ret_poke, struct sp_error *err);
/* What had a VM on a node that was booted anew. */
int lifecycle_fail_all_of_node(struct store *s, const char *node_id, struct sp_error *err);

/* ---- the reconciler ---- */

/* Ids that need a look: taken from the outbox (*ret_ids, count) or found by the full pass. Rows hold one column. */
int lifecycle_take_outbox(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err);
int lifecycle_find_work(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err);
const char *lifecycle_work_id(const struct store_result *res, int row);
/* Whether lifecycle_reconcile() would do something now. Takes no lock, so that nobody who asks for something waits for a look
 * that mostly finds nothing to do. */
int lifecycle_is_due(struct store *s, const char *id, bool *ret_due, struct sp_error *err);
/* In a transaction: skips what another replica holds, plans with fresh rows, applies. *ret_verb: what was done. */
int lifecycle_reconcile(struct store *s, const char *id, enum plan_verb *ret_verb, struct sp_error *err);
