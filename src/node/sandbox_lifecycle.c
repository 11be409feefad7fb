/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Standing still and going on again. What counts is what the VM's status says; the answer to the request only tells why it
 * did not come to it. A request that a lost connection swallowed is sent again: both are no-ops where they are not needed.
 */
#include "base/log.h"
#include "node/node.h"
#include "node/sandbox_internal.h"

static bool is_pausing(const struct sandbox *s) {
    return s->state == SB_PAUSING;
}

static void ask(struct sandbox *s) {
    (void)vm_link_request(s->link, is_pausing(s) ? "pause" : "resume", NULL);
}

/* Where it was to be; a suspend that failed and goes on again has had its say already. */
static void arrive(struct sandbox *s) {
    enum sandbox_step to = is_pausing(s) ? SB_PAUSED : SB_RUNNING;
    if (s->want.operation_id[0] && !s->operation.id[0])
        sandbox_end_operation(s, NULL);
    vm_link_forget(s->link);
    sandbox_set_state(s, to);
    if (to == SB_RUNNING && s->phase == VM_PHASE_RUNNING)
        s->vm_ready = true;
    sandbox_say(s);
    node_reconcile_soon(s->node);
}

void sandbox_lifecycle_step(struct sandbox *s) {
    enum vm_phase aim = is_pausing(s) ? VM_PHASE_PAUSED : VM_PHASE_RUNNING;
    enum vm_phase before = is_pausing(s) ? VM_PHASE_RUNNING : VM_PHASE_PAUSED;
    if (s->phase == aim)
        arrive(s);
    else if (s->phase == before && !vm_link_is_busy(s->link))
        ask(s);
}

/* Not to be had: it stays what it is. */
static void give_up(struct sandbox *s, const struct fault *fault) {
    enum sandbox_step to = s->phase == VM_PHASE_PAUSED ? SB_PAUSED : SB_RUNNING;
    sandbox_end_operation(s, fault);
    vm_link_forget(s->link);
    sandbox_set_state(s, to);
    if (to == SB_RUNNING)
        s->vm_ready = s->ready = true; /* until its next status says otherwise */
    node_reconcile_soon(s->node);
}

void sandbox_lifecycle_expired(struct sandbox *s) {
    struct fault fault;
    fault_set(&fault, FAILURE_DEADLINE_EXCEEDED, "the VM did not %s in time", is_pausing(s) ? "pause" : "go on");
    give_up(s, &fault);
}

void sandbox_on_done(struct sandbox *s, const struct vm_done *done) {
    struct fault fault;
    if (!done || done->ok) /* the status says what there is */
        return;
    fault_set(&fault, done->failure, "%s", done->message);
    if (s->identifying && (s->state == SB_STARTING || s->state == SB_COMING_UP))
        sandbox_fail(s, &fault);
    else if (s->state == SB_PAUSING || s->state == SB_RESUMING)
        give_up(s, &fault);
}

void sandbox_pause(struct sandbox *s) {
    sandbox_set_state(s, SB_PAUSING);
    loop_timer_start(s->deadline, SANDBOX_LIFECYCLE_MS, 0);
    sandbox_lifecycle_step(s);
}

void sandbox_resume(struct sandbox *s) {
    sandbox_set_state(s, SB_RESUMING);
    loop_timer_start(s->deadline, SANDBOX_LIFECYCLE_MS, 0);
    sandbox_lifecycle_step(s);
}
