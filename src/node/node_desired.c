/* SPDX-License-Identifier: Apache-2.0 */
/* What control wants, applied: one decision for each sandbox of its list, and of ours that are not in it. */
#include "base/log.h"
#include "node/control_link.h"
#include "node/node.h"
#include <assert.h>
#include <string.h>

static void act_start(struct node *n, struct sandbox *s, const struct desired *d) {
    if (!s)
        s = sandbox_new(n, d->id);
    sandbox_set_want(s, d);
    sandbox_start(s);
}

static void act_restart(struct sandbox *s, const struct desired *d) {
    assert(s && d);
    sandbox_set_want(s, d);
    s->began_ms = loop_now_ms(s->node->loop);
    s->rebuilt = s->cold_only = false;
    s->queue_ms = s->template_ms = s->broker_ms = s->total_ms = 0;
    sandbox_stop(s, SB_NEW);
}

static void act_delete(struct node *n, struct sandbox *s, const struct desired *d) {
    if (!s)
        s = sandbox_new(n, d->id);
    if (d)
        sandbox_set_want(s, d);
    sandbox_stop(s, SB_DELETED);
}

static void act_lost(struct node *n, const struct desired *d) {
    assert(d);
    struct sandbox *s = sandbox_new(n, d->id);
    sandbox_set_want(s, d);
    s->generation = d->generation;
    fault_set(&s->fault, FAILURE_VMM_KILLED, "the VM was gone when the node came back");
    sandbox_stop(s, SB_FAILED);
}

/* It is suspended, and was before this run of the node. */
static void act_rest(struct node *n, const struct desired *d) {
    assert(d);
    struct sandbox *s = sandbox_new(n, d->id);
    sandbox_set_want(s, d);
    s->generation = d->generation;
    sandbox_rest(s);
}

/* Its snapshot is whole, and what the VM did since the start was promised to nobody. */
static void act_put_back(struct sandbox *s, const struct desired *d) {
    assert(s && d);
    sandbox_set_want(s, d);
    s->generation = d->generation;
    sandbox_stop(s, SB_SUSPENDED);
}

static void act_look(struct node *n, const struct desired *d) {
    assert(d);
    struct sandbox *s = sandbox_new(n, d->id);
    sandbox_set_want(s, d);
    sandbox_look(s);
}

/* Not at once: the list may have been made before our last report arrived. */
static void act_say_again(struct node *n, struct sandbox *s) {
    assert(s);
    if (s->report.under_way || loop_now_ms(n->loop) - s->report.last_ms < NODE_SAY_AGAIN_MS)
        return;
    s->report.due = true;
    control_link_report_soon(n->control);
}

/* What is on its way out does not come back, but it may become unwanted for good. */
static void note_while_stopping(struct sandbox *s, const struct desired *d) {
    if ((!d || d->want == WANT_DELETED) && s->after != SB_DELETED)
        sandbox_stop(s, SB_DELETED);
    else if (d && d->want != WANT_DELETED && d->generation >= s->want.generation)
        sandbox_set_want(s, d);
}

static struct local local_of(const struct sandbox *s, const struct desired *d) {
    struct local local = {.state = LOCAL_NONE};
    if (!s)
        return local;
    local.state = sandbox_local_state(s);
    local.generation = s->generation;
    if (!d)
        return local;
    local.operation_failed =
        d->operation_id[0] && s->operation.fault.code != FAILURE_NONE && strcmp(s->operation.id, d->operation_id) == 0;
    local.snapshot_known =
        d->snapshot_id[0] && s->snapshot.state != JOB_NONE && strcmp(s->snapshot.id, d->snapshot_id) == 0;
    local.snapshot_unsettled = !s->snapshot.settled;
    return local;
}

/* Of one that is here, or is not to be. */
static void act_on(struct node *n, struct sandbox *s, const struct desired *d, enum reconcile_action action) {
    static void (*const moves[RECONCILE_ACTION_COUNT_])(struct sandbox * s) = {
        [RECONCILE_PAUSE] = sandbox_pause,        [RECONCILE_RESUME] = sandbox_resume,
        [RECONCILE_SUSPEND] = sandbox_suspend,    [RECONCILE_SNAPSHOT] = sandbox_snapshot,
        [RECONCILE_COPY] = sandbox_copy_snapshot,
    };
    if (action == RECONCILE_RESTART) {
        act_restart(s, d);
    } else if (action == RECONCILE_SAY_AGAIN) {
        sandbox_set_want(s, d);
        act_say_again(n, s);
    } else if (action == RECONCILE_FORGET) {
        sandbox_free(s);
    } else if (action == RECONCILE_NOTHING) {
        if (s && s->state == SB_STOPPING)
            note_while_stopping(s, d);
        else if (s && d)
            sandbox_set_want(s, d);
    } else {
        assert(s && d && moves[action]);
        sandbox_set_want(s, d);
        moves[action](s);
    }
}

void node_reconcile(struct node *n, struct sandbox *s, const struct desired *d) {
    const struct local local = local_of(s, d);
    enum reconcile_action action = reconcile(d, &local);
    if (action != RECONCILE_NOTHING)
        log_event(LOG_L_DEBUG, "reconcile", "sandbox_id", d ? d->id : s->id, "action", reconcile_action_name(action),
                  NULL);
    switch (action) {
    case RECONCILE_START:
        act_start(n, s, d);
        break;
    case RECONCILE_DELETE:
        act_delete(n, s, d);
        break;
    case RECONCILE_LOST:
        act_lost(n, d);
        break;
    case RECONCILE_REST:
        act_rest(n, d);
        break;
    case RECONCILE_PUT_BACK:
        act_put_back(s, d);
        break;
    case RECONCILE_LOOK:
        act_look(n, d);
        break;
    default:
        act_on(n, s, d, action);
    }
}

void node_reconcile_all(struct node *n) {
    if (!n->desired_known)
        return;
    for (struct sandbox *s = n->first, *next; s; s = next) {
        next = s->next;
        if (!desired_find(&n->desired, s->id))
            node_reconcile(n, s, NULL);
    }
    for (size_t i = 0; i < n->desired.n; i++)
        node_reconcile(n, node_find(n, n->desired.items[i].id), &n->desired.items[i]);
}

void node_apply_desired(struct node *n, struct desired_list *list) {
    desired_list_done(&n->desired);
    n->desired = *list;
    n->desired_known = true;
    snapshots_apply(n->snapshots, &n->desired);
    pools_apply(n->pools, &n->desired);
    node_reconcile_all(n);
}
