/* SPDX-License-Identifier: Apache-2.0 */
/* Placement, one pass of the reconciler, and the meaning of a node's report. */
#include "model/plan.h"
#include "base/text.h"
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
    return s->has_operation && s->operation == OPERATION_CREATE && s->deadline_ms != 0 && s->deadline_ms <= now_ms;
}

static struct plan_action plan_one(const struct plan_sandbox *s, struct plan_node *nodes, size_t n_nodes,
                                   int64_t now_ms) {
    int node;
    if (s->state == SANDBOX_DELETING && (!s->has_node || s->is_released))
        return (struct plan_action){.verb = PLAN_FINISH_DELETE};
    if ((s->state == SANDBOX_CREATING || s->state == SANDBOX_RUNNING) && is_overdue(s, now_ms))
        return (struct plan_action){.verb = PLAN_FAIL,
                                    .failure = s->has_node ? FAILURE_DEADLINE_EXCEEDED : FAILURE_NO_CAPACITY};
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
    static const char *const names[OBSERVED_COUNT_] = {[OBSERVED_CREATING] = "creating",
                                                       [OBSERVED_RUNNING] = "running",
                                                       [OBSERVED_FAILED] = "failed",
                                                       [OBSERVED_DELETED] = "deleted"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (enum observed_state)i;
            return true;
        }
    return false;
}

static bool is_alive(enum sandbox_state s) {
    return s == SANDBOX_CREATING || s == SANDBOX_RUNNING;
}

static void observe_running(const struct plan_sandbox *s, const struct observation *o, struct observe_effect *e) {
    bool creating = s->has_operation && s->operation == OPERATION_CREATE;
    e->state = SANDBOX_RUNNING;
    e->ready = o->ready;
    /* "Created" is only said once a command could be run. */
    if (creating)
        e->outcome = o->ready ? OUTCOME_SUCCEEDED : OUTCOME_STARTED;
}

static void observe_end(const struct plan_sandbox *s, enum failure failure, struct observe_effect *e) {
    e->state = SANDBOX_FAILED;
    e->ready = false;
    e->failure = failure;
    if (s->has_operation)
        e->outcome = OUTCOME_FAILED;
}

static void observe_deleted(const struct plan_sandbox *s, struct observe_effect *e) {
    e->release = !s->is_released;
    e->ready = false;
    if (s->state == SANDBOX_DELETING) {
        e->state = SANDBOX_DELETED;
        e->outcome = OUTCOME_SUCCEEDED;
    } else if (is_alive(s->state)) /* nobody asked for it: the node lost it */
        observe_end(s, FAILURE_VMM_KILLED, e);
}

struct observe_effect plan_observe(const struct plan_sandbox *s, bool ready, enum operation_state operation_state,
                                   const struct observation *o) {
    struct observe_effect e = {.state = s->state, .ready = ready};

    if (o->state == OBSERVED_DELETED)
        observe_deleted(s, &e);
    else if (!is_alive(s->state))
        ; /* a late report about something that is to go, or is gone */
    else if (o->state == OBSERVED_RUNNING)
        observe_running(s, o, &e);
    else if (o->state == OBSERVED_FAILED)
        observe_end(s, o->failure, &e);
    else if (s->state == SANDBOX_CREATING && s->has_operation)
        e.outcome = OUTCOME_STARTED;
    if (e.outcome == OUTCOME_STARTED && operation_state != OPERATION_PENDING)
        e.outcome = OUTCOME_NONE;
    e.changes = e.state != s->state || e.ready != ready || e.release || e.outcome != OUTCOME_NONE;
    return e;
}
