/* SPDX-License-Identifier: Apache-2.0 */
/* The VM of a sandbox as it shows itself on control.sock: adoption, status, pings, its end. */
#include "base/log.h"
#include "base/text.h"
#include "node/control_link.h"
#include "node/node.h"
#include "node/sandbox_internal.h"
#include <inttypes.h>
#include <string.h>

#define MISSES_MAX 2u
#define ADOPT_MS 10000u /* for an adopted VM to say what it is */

static void update_ready(struct sandbox *s) {
    bool ready = s->state == SB_RUNNING && s->vm_ready && s->missed < MISSES_MAX;
    if (ready == s->ready)
        return;
    if (!ready)
        log_event(LOG_L_WARN, "sandbox_not_ready", "sandbox_id", s->id, "agent", s->missed ? "silent" : "answers",
                  NULL);
    s->ready = ready;
    sandbox_say(s);
}

static void log_running(const struct sandbox *s) {
    char total[24];
    (void)text_printf(total, sizeof(total), "%" PRIu64, s->total_ms);
    log_event(LOG_L_INFO, "sandbox_running", "sandbox_id", s->id, "ms", total, "start", start_kind_name(s->start_kind),
              NULL);
}

static void became_running(struct sandbox *s) {
    bool is_start = s->state == SB_COMING_UP;
    if (is_start)
        s->total_ms = s->adopted ? 0 : sandbox_now_ms(s) - s->began_ms;
    sandbox_set_state(s, SB_RUNNING);
    s->vm_ready = s->says_ready;
    update_ready(s);
    if (is_start) {
        sandbox_start_done(s);
        log_running(s);
    }
    /* What came in the meantime (an adopted one may be wanted otherwise) is decided now. */
    if (s->want.id[0] && s->want.want != WANT_RUNNING)
        node_reconcile_soon(s->node);
}

static void became_paused(struct sandbox *s) {
    sandbox_set_state(s, SB_PAUSED);
    if (s->want.id[0] && s->want.want != WANT_PAUSED)
        node_reconcile_soon(s->node);
}

/* Between two activities: what the VM does by itself is followed. */
static void look_at_rest(struct sandbox *s) {
    if (s->snapshot.state == JOB_MAKING)
        return;
    if (s->state == SB_RUNNING && s->phase == VM_PHASE_PAUSED)
        became_paused(s);
    else if (s->state == SB_PAUSED && s->phase == VM_PHASE_RUNNING)
        became_running(s);
}

void sandbox_look_at_vm(struct sandbox *s) {
    switch (s->state) {
    case SB_COMING_UP:
        if (s->phase == VM_PHASE_RUNNING)
            became_running(s);
        else if (s->phase == VM_PHASE_PAUSED && s->adopted)
            became_paused(s);
        else if (s->phase == VM_PHASE_WARM && s->want.id[0] && !s->identifying)
            sandbox_send_identify(s);
        break;
    case SB_PAUSING:
    case SB_RESUMING:
        sandbox_lifecycle_step(s);
        break;
    case SB_RUNNING:
    case SB_PAUSED:
        look_at_rest(s);
        break;
    default:
        break;
    }
}

static void take_activity(struct sandbox *s, const struct vm_status *status) {
    bool changed = s->streams != status->streams || s->active_ns != status->active_ns;
    s->streams = status->streams;
    s->active_ns = status->active_ns;
    if (changed)
        sandbox_say_lazily(s);
}

static void take_status(struct sandbox *s, const struct vm_status *status) {
    s->phase = status->phase;
    s->says_ready = status->ready;
    if (status->generation)
        s->generation = status->generation;
    (void)text_copy(s->vm_snapshot, sizeof(s->vm_snapshot), status->snapshot);
    if (status->phase != VM_PHASE_RUNNING && status->phase != VM_PHASE_PAUSED)
        return;
    json_decref(s->vm_timings);
    s->vm_timings = json_incref(status->timings);
    (void)text_copy(s->accelerator, sizeof(s->accelerator), status->accelerator);
    (void)text_copy(s->kernel, sizeof(s->kernel), status->kernel);
    (void)text_copy(s->vmm, sizeof(s->vmm), status->vmm);
    take_activity(s, status);
}

static void on_status(void *ctx, const struct vm_status *status) {
    struct sandbox *s = ctx;
    struct fault fault;
    if (status->phase == VM_PHASE_FAILED) {
        fault_set(&fault, status->failure, "%s", status->message);
        sandbox_fail(s, &fault);
        return;
    }
    take_status(s, status);
    sandbox_look_at_vm(s);
    if (s->state == SB_RUNNING && s->phase == VM_PHASE_RUNNING) {
        s->vm_ready = status->ready;
        update_ready(s);
    }
}

static void on_pong(void *ctx, bool alive) {
    struct sandbox *s = ctx;
    if (s->state != SB_RUNNING || s->phase != VM_PHASE_RUNNING)
        return;
    s->missed = alive ? 0 : s->missed + 1;
    update_ready(s);
}

static void on_done(void *ctx, const struct vm_done *done) {
    sandbox_on_done(ctx, done);
}

static void on_gone(void *ctx, const char *why) {
    struct fault fault;
    fault_set(&fault, FAILURE_VMM_KILLED, "%s", why);
    sandbox_fail(ctx, &fault);
}

const struct vm_link_events sandbox_link_events = {.on_status = on_status,
                                                   .on_pong = on_pong,
                                                   .on_done = on_done,
                                                   .on_gone = on_gone};

void sandbox_ping(struct sandbox *s) {
    if (s->state == SB_RUNNING)
        vm_link_ping(s->link);
}

void sandbox_follow_vm(struct sandbox *s) {
    struct sp_error err = {0};
    struct fault fault;
    sandbox_set_state(s, SB_COMING_UP);
    if (s->link) {
        sandbox_look_at_vm(s);
    } else if (vm_link_new(s->node->loop, s->node->settings->state_dir, s->id, &sandbox_link_events, s, &s->link,
                           &err) < 0) {
        fault_from_error(&fault, &err);
        sandbox_fail(s, &fault);
    }
}

void sandbox_adopt(struct sandbox *s, bool alive) {
    log_event(LOG_L_INFO, "sandbox_adopted", "sandbox_id", s->id, "alive", alive ? "true" : "false", NULL);
    s->adopted = true;
    if (alive) {
        loop_timer_start(s->deadline, ADOPT_MS, 0);
        sandbox_follow_vm(s);
    } else {
        fault_set(&s->fault, FAILURE_VMM_KILLED, "the VM had ended when the node came back");
        sandbox_stop(s, SB_FAILED);
    }
}
