/* SPDX-License-Identifier: Apache-2.0 */
/* Placement, one pass of the reconciler, and the meaning of a node's report. */
#include "model/plan.h"
#include "base/text.h"
#include "model/transitions.h"
#include <string.h>

static uint64_t free_memory(const struct plan_node *n) {
    return n->memory_mib > n->used_memory_mib ? n->memory_mib - n->used_memory_mib : 0;
}

static bool has_room(const struct plan_node *n, uint64_t vcpus, uint64_t memory_mib) {
    return n->is_live && n->disk_mib > 0 && n->used_sandboxes < n->max_sandboxes && vcpus <= n->vcpus &&
           memory_mib <= free_memory(n);
}

static bool is_better(const struct plan_node *a, const struct plan_node *b) {
    if (free_memory(a) != free_memory(b))
        return free_memory(a) > free_memory(b);
    if (a->used_vcpus != b->used_vcpus)
        return a->used_vcpus < b->used_vcpus;
    return strcmp(a->id, b->id) < 0;
}

int plan_choose_node(const struct plan_node *nodes, size_t n, uint64_t vcpus, uint64_t memory_mib) {
    int best = -1;
    for (size_t i = 0; i < n; i++)
        if (has_room(&nodes[i], vcpus, memory_mib) && (best < 0 || is_better(&nodes[i], &nodes[best])))
            best = (int)i;
    return best;
}

static bool is_overdue(const struct plan_sandbox *s, int64_t now_ms) {
    return s->has_operation && s->operation != OPERATION_DELETE && s->deadline_ms != 0 && s->deadline_ms <= now_ms;
}

enum sandbox_state plan_after_failure(const struct plan_sandbox *s, bool vm_is_lost) {
    bool had_vm = s->from == SANDBOX_RUNNING || s->from == SANDBOX_PAUSED;
    switch (s->operation) {
    case OPERATION_PAUSE:
    case OPERATION_SUSPEND:
    case OPERATION_SNAPSHOT:
    case OPERATION_FORK:
    case OPERATION_WAKE:
        return had_vm && vm_is_lost ? SANDBOX_FAILED : s->from;
    case OPERATION_ROLLBACK: /* what ran before was ended first */
        return s->from == SANDBOX_SUSPENDED ? SANDBOX_SUSPENDED : SANDBOX_FAILED;
    case OPERATION_CREATE:
    case OPERATION_DELETE:
    case OPERATION_KIND_COUNT_:
        break;
    }
    return SANDBOX_FAILED;
}

static struct plan_action give_up(const struct plan_sandbox *s) {
    enum failure failure = s->has_node ? FAILURE_DEADLINE_EXCEEDED : FAILURE_NO_CAPACITY;
    enum sandbox_state state = plan_after_failure(s, false);
    if (state == SANDBOX_FAILED && s->state != SANDBOX_FAILED)
        return (struct plan_action){.verb = PLAN_FAIL, .failure = failure};
    return (struct plan_action){.verb = PLAN_GIVE_UP, .failure = failure, .state = state};
}

static struct plan_action plan_one(const struct plan_sandbox *s, struct plan_node *nodes, size_t n_nodes,
                                   int64_t now_ms) {
    int node;
    if (s->state == SANDBOX_DELETING && (!s->has_node || s->is_released))
        return (struct plan_action){.verb = PLAN_FINISH_DELETE};
    if (s->state != SANDBOX_DELETING && s->state != SANDBOX_DELETED && is_overdue(s, now_ms))
        return give_up(s);
    if (s->state == SANDBOX_CREATING && s->start_is_gone)
        return (struct plan_action){.verb = PLAN_FAIL, .failure = FAILURE_PARENT_GONE};
    if (s->has_operation && s->operation == OPERATION_FORK && s->is_settled && s->children_open == 0)
        return (struct plan_action){.verb = PLAN_FINISH_FORK,
                                    .failure = s->children_failed ? FAILURE_CHILDREN_FAILED : FAILURE_NONE};
    if (s->state != SANDBOX_CREATING || s->has_node)
        return (struct plan_action){.verb = PLAN_NOTHING};
    node = plan_choose_node(nodes, n_nodes, s->vcpus, s->memory_mib);
    if (node < 0)
        return (struct plan_action){.verb = PLAN_NOTHING};
    nodes[node].used_memory_mib += s->memory_mib;
    nodes[node].used_vcpus += s->vcpus;
    nodes[node].used_sandboxes++;
    return (struct plan_action){.verb = PLAN_ASSIGN, .node = node};
}

void plan(const struct plan_sandbox *sandboxes, size_t n, struct plan_node *nodes, size_t n_nodes, int64_t now_ms,
          struct plan_action *ret_actions) {
    for (size_t i = 0; i < n; i++)
        ret_actions[i] = plan_one(&sandboxes[i], nodes, n_nodes, now_ms);
}

/* ---- observations ---- */

bool observed_state_parse(const char *name, enum observed_state *ret) {
    static const char *const names[OBSERVED_COUNT_] = {
        [OBSERVED_CREATING] = "creating",   [OBSERVED_RUNNING] = "running", [OBSERVED_PAUSED] = "paused",
        [OBSERVED_SUSPENDED] = "suspended", [OBSERVED_FAILED] = "failed",   [OBSERVED_DELETED] = "deleted"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (enum observed_state)i;
            return true;
        }
    return false;
}

/* A VM is there, or is being made. */
static bool holds_vm(enum sandbox_state s) {
    return s == SANDBOX_CREATING || s == SANDBOX_RUNNING || s == SANDBOX_PAUSING || s == SANDBOX_PAUSED ||
           s == SANDBOX_SUSPENDING || s == SANDBOX_WAKING;
}

static bool runs(const struct plan_sandbox *s, enum operation_kind kind) {
    return s->has_operation && s->operation == kind;
}

/* The sandbox goes to `state` without its operation having reached its aim. */
static void fail_operation(enum sandbox_state state, enum failure failure, struct observe_effect *e) {
    e->state = state;
    e->ready = e->ready && state == SANDBOX_RUNNING;
    e->failure = failure;
    e->outcome = OUTCOME_FAILED;
}

/* The VM is gone. */
static void observe_end(const struct plan_sandbox *s, enum failure failure, struct observe_effect *e) {
    e->ready = false;
    e->failure = failure;
    e->state = s->has_operation ? plan_after_failure(s, true) : SANDBOX_FAILED;
    if (failure == FAILURE_SNAPSHOT_BROKEN || failure == FAILURE_SNAPSHOT_MISSING)
        e->state = SANDBOX_FAILED; /* suspended on nothing */
    if (s->has_operation)
        e->outcome = OUTCOME_FAILED;
}

static void observe_deleted(const struct plan_sandbox *s, struct observe_effect *e) {
    e->release = !s->is_released;
    if (s->state == SANDBOX_DELETING) {
        e->ready = false;
        e->state = SANDBOX_DELETED;
        e->outcome = OUTCOME_SUCCEEDED;
    } else if (s->state == SANDBOX_SUSPENDED)
        e->release = false;        /* it holds no VM anyway; its snapshot is another matter */
    else if (holds_vm(s->state)) { /* nobody asked for it: the node lost it */
        observe_end(s, FAILURE_VMM_KILLED, e);
        e->release = e->release && e->state == SANDBOX_FAILED;
    } else
        e->ready = false;
}

/* Where a report says that it is: false for one that says nothing about that. */
static bool reported_state(const struct observation *o, enum sandbox_state *ret) {
    static const enum sandbox_state map[OBSERVED_COUNT_] = {[OBSERVED_RUNNING] = SANDBOX_RUNNING,
                                                            [OBSERVED_PAUSED] = SANDBOX_PAUSED,
                                                            [OBSERVED_SUSPENDED] = SANDBOX_SUSPENDED};
    *ret = map[o->state];
    return o->state == OBSERVED_RUNNING || o->state == OBSERVED_PAUSED || o->state == OBSERVED_SUSPENDED;
}

/* The node gave the operation up, or its snapshot did not come about: the state reported with it is where the sandbox is. */
static bool observe_given_up(const struct plan_sandbox *s, const struct observation *o, struct observe_effect *e) {
    bool snapshot_failed = o->has_snapshot && o->snapshot == SNAPSHOT_FAILED;
    enum failure failure = o->operation_failed ? o->operation_failure : o->snapshot_failure;
    enum sandbox_state state = plan_after_failure(s, false), said;
    if (!s->has_operation || s->operation == OPERATION_DELETE || !(o->operation_failed || snapshot_failed))
        return false;
    if (s->operation != OPERATION_SNAPSHOT && s->operation != OPERATION_FORK && reported_state(o, &said) &&
        sandbox_move_is_allowed(s->state, said))
        state = said;
    if (s->operation == OPERATION_CREATE || state == SANDBOX_WAKING)
        state = SANDBOX_FAILED;
    fail_operation(state, failure, e);
    if (state == SANDBOX_RUNNING && o->state == OBSERVED_RUNNING)
        e->ready = o->ready; /* it was not while it was on its way */
    return true;
}

static void observe_running(const struct plan_sandbox *s, const struct observation *o, struct observe_effect *e) {
    switch (s->state) {
    case SANDBOX_CREATING:
    case SANDBOX_RUNNING:
        e->state = SANDBOX_RUNNING;
        e->ready = o->ready;
        /* "Created" is only said once a command could be run. */
        if (runs(s, OPERATION_CREATE))
            e->outcome = o->ready ? OUTCOME_SUCCEEDED : OUTCOME_STARTED;
        break;
    case SANDBOX_WAKING:
        if (o->ready) {
            e->state = SANDBOX_RUNNING;
            e->ready = true;
            e->outcome = OUTCOME_SUCCEEDED;
        }
        break;
    default: /* said before the node had heard of the operation */
        break;
    }
}

static void observe_paused(const struct plan_sandbox *s, struct observe_effect *e) {
    if (s->state == SANDBOX_PAUSING) {
        e->state = SANDBOX_PAUSED;
        e->outcome = OUTCOME_SUCCEEDED;
    } else if (s->state == SANDBOX_RUNNING) /* stopped by its node, for a full disk */
        e->ready = false;
}

static void observe_suspended(const struct plan_sandbox *s, const struct observation *o, struct observe_effect *e) {
    if (s->state == SANDBOX_SUSPENDING && o->has_snapshot && o->snapshot == SNAPSHOT_READY) {
        e->state = SANDBOX_SUSPENDED;
        e->outcome = OUTCOME_SUCCEEDED;
    }
}

/* What the state alone says, for operations that end with a state. */
static void observe_state(const struct plan_sandbox *s, const struct observation *o, struct observe_effect *e) {
    switch (o->state) {
    case OBSERVED_CREATING:
        if (s->has_operation && (s->state == SANDBOX_CREATING || s->state == SANDBOX_WAKING))
            e->outcome = OUTCOME_STARTED;
        break;
    case OBSERVED_RUNNING:
        observe_running(s, o, e);
        break;
    case OBSERVED_PAUSED:
        observe_paused(s, e);
        break;
    case OBSERVED_SUSPENDED:
        observe_suspended(s, o, e);
        break;
    case OBSERVED_FAILED:
    case OBSERVED_DELETED:
    case OBSERVED_COUNT_:
        break;
    }
}

struct observe_effect plan_observe(const struct plan_sandbox *s, bool ready, enum operation_state operation_state,
                                   const struct observation *o) {
    struct observe_effect e = {.state = s->state, .ready = ready};

    if (o->state == OBSERVED_DELETED)
        observe_deleted(s, &e);
    else if (s->state == SANDBOX_DELETING || s->state == SANDBOX_DELETED)
        ; /* a late report about something that is to go, or is gone */
    else if (o->state == OBSERVED_FAILED && holds_vm(s->state))
        observe_end(s, o->failure, &e);
    else if (!observe_given_up(s, o, &e)) {
        if (holds_vm(s->state))
            observe_state(s, o, &e);
        if (runs(s, OPERATION_SNAPSHOT) && o->has_snapshot && o->snapshot == SNAPSHOT_READY)
            e.outcome = OUTCOME_SUCCEEDED;
    }
    if (e.outcome == OUTCOME_STARTED && operation_state != OPERATION_PENDING)
        e.outcome = OUTCOME_NONE;
    e.changes = e.state != s->state || e.ready != ready || e.release || e.outcome != OUTCOME_NONE;
    return e;
}
