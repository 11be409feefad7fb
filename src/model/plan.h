/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the control plane decides, as pure functions of (desired, observed, capacity, time): where a sandbox goes, what a
 * pass of the reconciler does, and what a node's report changes. No I/O, no clock, no memory of its own: the same input
 * gives the same answer on every replica, and the store applies it under guards.
 */
#pragma once
#include "model/states.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct plan_node {
    const char *id;
    bool is_live;                                         /* heard of within node_lost_ms */
    uint64_t vcpus, memory_mib, disk_mib, max_sandboxes;  /* capacity */
    uint64_t used_vcpus, used_memory_mib, used_sandboxes; /* of sandboxes assigned and not yet released */
};

/* The node for a sandbox of this size: one that is live and has room for its memory and one sandbox more, disk left, and
 * as many vCPUs as it wants (vCPUs are shared, so they are not summed). Most free memory first, then fewest vCPUs
 * in use, then the id, so that replicas agree. -1: none. */
int plan_choose_node(const struct plan_node *nodes, size_t n, uint64_t vcpus, uint64_t memory_mib);

struct plan_sandbox {
    enum sandbox_state state;
    bool has_node;    /* assigned */
    bool is_released; /* its node said that it holds nothing of it any more */
    uint64_t vcpus, memory_mib;
    bool has_operation; /* one that is not final */
    enum operation_kind operation;
    enum sandbox_state from; /* the state the operation found */
    int64_t deadline_ms;     /* of the operation; 0: none */
    bool start_is_gone;      /* the snapshot it waits to be started from cannot come about any more */
    /* Of a fork: */
    bool is_settled; /* its snapshot is there, or it needs none */
    uint64_t children_open, children_failed;
};

/* Where an operation that failed leaves the sandbox. `vm_is_lost`: what ran when it began, or was started by it, is gone. */
enum sandbox_state plan_after_failure(const struct plan_sandbox *s, bool vm_is_lost);

enum plan_verb {
    PLAN_NOTHING,
    PLAN_ASSIGN,        /* to node `node` */
    PLAN_FAIL,          /* operation and sandbox, with `failure` */
    PLAN_GIVE_UP,       /* the operation, with `failure`; the sandbox goes to `state` */
    PLAN_FINISH_DELETE, /* nothing holds it: deleted */
    PLAN_FINISH_FORK,   /* every child's create is final; `failure` when one failed */
};
struct plan_action {
    enum plan_verb verb;
    int node;                 /* index, PLAN_ASSIGN */
    enum failure failure;     /* PLAN_FAIL, PLAN_GIVE_UP, PLAN_FINISH_FORK */
    enum sandbox_state state; /* PLAN_GIVE_UP */
};
/* One action for each sandbox, in order; the nodes' used sums are raised by the assignments made. */
void plan(const struct plan_sandbox *sandboxes, size_t n, struct plan_node *nodes, size_t n_nodes, int64_t now_ms,
          struct plan_action *ret_actions);

/* ---- observations ---- */

enum observed_state {
    OBSERVED_CREATING,
    OBSERVED_RUNNING,
    OBSERVED_PAUSED,
    OBSERVED_SUSPENDED,
    OBSERVED_FAILED,
    OBSERVED_DELETED,
    OBSERVED_COUNT_
};
bool observed_state_parse(const char *name, enum observed_state *ret);

struct observation {
    enum observed_state state;
    bool ready;
    enum failure failure; /* OBSERVED_FAILED */
    /* Of the operation on its way, and of the snapshot it makes, this report included. */
    bool operation_failed;
    enum failure operation_failure;
    bool has_snapshot; /* it makes one */
    enum snapshot_state snapshot;
    enum failure snapshot_failure;
};
enum outcome { OUTCOME_NONE, OUTCOME_STARTED, OUTCOME_SUCCEEDED, OUTCOME_FAILED };
struct observe_effect {
    enum sandbox_state state; /* the new one; may be the old */
    bool ready;
    bool release;         /* the node holds nothing of it any more */
    enum outcome outcome; /* of the operation that is on its way */
    enum failure failure; /* of the operation, and of the sandbox when it becomes failed */
    bool changes;         /* anything at all differs */
};
/* `ready` and `has_operation` as they are recorded. Reports that make no sense in the state change nothing. */
struct observe_effect plan_observe(const struct plan_sandbox *s, bool ready, enum operation_state operation_state,
                                   const struct observation *o);
