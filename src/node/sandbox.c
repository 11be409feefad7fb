/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of a sandbox. */
#include "node/sandbox.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "node/control_link.h"
#include "node/node.h"
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define RETRY_MS 1000u
#define MISSES_MAX 2u
#define ADOPT_MS 10000u /* for an adopted VM to say what it is */

static const char *const step_names[] = {
    [SB_NEW] = "new",           [SB_WAITING] = "waiting",     [SB_QUEUED] = "queued",
    [SB_STARTING] = "starting", [SB_COMING_UP] = "coming_up", [SB_RUNNING] = "running",
    [SB_STOPPING] = "stopping", [SB_FAILED] = "failed",       [SB_DELETED] = "deleted",
};

const char *sandbox_step_name(enum sandbox_step step) {
    return step_names[step];
}

bool sandbox_holds_slot(const struct sandbox *s) {
    return s->state == SB_STARTING || s->state == SB_COMING_UP;
}

bool sandbox_holds_host(const struct sandbox *s) {
    return s->state >= SB_WAITING && s->state <= SB_STOPPING;
}

enum local_state sandbox_local_state(const struct sandbox *s) {
    static const enum local_state states[] = {
        [SB_NEW] = LOCAL_COMING,        [SB_WAITING] = LOCAL_COMING,   [SB_QUEUED] = LOCAL_COMING,
        [SB_STARTING] = LOCAL_COMING,   [SB_COMING_UP] = LOCAL_COMING, [SB_RUNNING] = LOCAL_RUNNING,
        [SB_STOPPING] = LOCAL_STOPPING, [SB_FAILED] = LOCAL_FAILED,    [SB_DELETED] = LOCAL_DELETED,
    };
    return states[s->state];
}

static uint64_t now_ms(const struct sandbox *s) {
    return loop_now_ms(s->node->loop);
}

/* Says so to control soon. */
static void say(struct sandbox *s) {
    s->report.due = true;
    control_link_report_soon(s->node->control);
}

/* What a state may not hold is freed on the way into it. A vm_start that is under way stays known through STOPPING. */
static void set_state(struct sandbox *s, enum sandbox_step to) {
    bool had_slot = sandbox_holds_slot(s);
    bool is_coming = to <= SB_COMING_UP;
    if (to != SB_WAITING)
        template_cache_cancel(&s->waiter);
    if (to != SB_STARTING && to != SB_STOPPING)
        s->call = broker_call_forget(s->call);
    if (to != SB_COMING_UP && to != SB_RUNNING)
        s->link = vm_link_free(s->link);
    if (!is_coming && !(to == SB_STOPPING && s->after == SB_NEW))
        loop_timer_stop(s->deadline);
    loop_timer_stop(s->retry);
    if (to != SB_RUNNING) {
        s->ready = s->vm_ready = false;
        s->missed = 0;
    }
    log_event(LOG_L_DEBUG, "sandbox_step", "sandbox_id", s->id, "from", step_names[s->state], "to", step_names[to],
              NULL);
    s->state = to;
    s->since_ms = now_ms(s);
    if (had_slot != sandbox_holds_slot(s) || to == SB_QUEUED)
        node_slots_changed(s->node);
    say(s);
}

/* ---- life of the object ---- */

static void on_deadline(void *ctx) {
    struct sandbox *s = ctx;
    struct fault fault;
    fault_set(&fault, FAILURE_DEADLINE_EXCEEDED, "not running in time; it was %s for %" PRIu64 " ms",
              step_names[s->state], now_ms(s) - s->since_ms);
    sandbox_fail(s, &fault);
}

static void on_retry(void *ctx);
static void on_template(void *ctx, const struct fault *fault);

struct sandbox *sandbox_new(struct node *n, const char *id) {
    struct sandbox *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    *s = (struct sandbox){.node = n, .state = SB_NEW};
    (void)text_copy(s->id, sizeof(s->id), id);
    s->waiter.done = on_template;
    s->waiter.ctx = s;
    s->deadline = loop_timer_new(n->loop, on_deadline, s);
    s->retry = loop_timer_new(n->loop, on_retry, s);
    s->began_ms = s->since_ms = now_ms(s);
    node_table_add(n, s);
    return s;
}

static void drop_want(struct sandbox *s) {
    json_decref((json_t *)(uintptr_t)s->want.manifest);
    json_decref((json_t *)(uintptr_t)s->want.env);
    s->want = (struct desired){0};
}

void sandbox_free(struct sandbox *s) {
    node_table_remove(s->node, s);
    template_cache_cancel(&s->waiter);
    broker_call_forget(s->call);
    vm_link_free(s->link);
    loop_timer_free(s->deadline);
    loop_timer_free(s->retry);
    json_decref(s->vm_timings);
    template_spec_done(&s->spec);
    drop_want(s);
    free(s);
}

/* ---- failing and stopping ---- */

static void ask_stop(struct sandbox *s);

static void stopped(struct sandbox *s) {
    switch (s->after) {
    case SB_NEW:
        s->generation = 0;
        if (s->fault.code == FAILURE_SNAPSHOT_BROKEN) /* only now does no VM of ours use it */
            template_cache_broken(s->node->templates, s->spec.key, s->started_ms);
        s->fault = (struct fault){0};
        set_state(s, SB_NEW);
        sandbox_start(s);
        break;
    case SB_FAILED:
    case SB_DELETED:
        log_event(LOG_L_INFO, "sandbox_gone", "sandbox_id", s->id, "state", step_names[s->after], NULL);
        set_state(s, s->after);
        break;
    default:
        assert(false);
    }
}

static void on_stop_answer(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct sandbox *s = ctx;
    (void)reply;
    s->call = NULL;
    if (!err) {
        stopped(s);
        return;
    }
    if (err->code != SP_E_UNAVAILABLE)
        log_error(LOG_L_ERROR, "vm_stop_failed", err, "vm_id", s->id, NULL);
    loop_timer_start(s->retry, RETRY_MS, 0);
}

/* Once no vm_start is under way: the broker then knows of everything there is to remove. */
static void ask_stop(struct sandbox *s) {
    if (s->call || !broker_client_is_up(s->node->broker))
        return;
    if (broker_call_start(s->node->broker, "vm_stop", json_pack("{s:s}", "id", s->id), on_stop_answer, s, &s->call,
                          NULL) < 0)
        loop_timer_start(s->retry, RETRY_MS, 0);
}

void sandbox_stop(struct sandbox *s, enum sandbox_step after) {
    bool is_stopping = s->state == SB_STOPPING;
    s->after = after;
    if (is_stopping) {
        say(s);
        return;
    }
    set_state(s, SB_STOPPING);
    ask_stop(s);
}

/* A broken snapshot is made anew, once for each sandbox that meets it. */
static bool may_rebuild(const struct sandbox *s, const struct fault *fault) {
    return fault->code == FAILURE_SNAPSHOT_BROKEN && !s->rebuilt && sandbox_holds_slot(s) && s->spec.key[0];
}

void sandbox_fail(struct sandbox *s, const struct fault *fault) {
    log_event(LOG_L_WARN, "sandbox_failed", "sandbox_id", s->id, "step", step_names[s->state], "code",
              failure_name(fault->code), "message", fault->message, NULL);
    if (may_rebuild(s, fault)) {
        s->rebuilt = true;
        s->fault = *fault;
        sandbox_stop(s, SB_NEW);
        return;
    }
    s->fault = *fault;
    if (!s->generation)
        s->generation = s->want.generation;
    if (s->state <= SB_QUEUED)
        set_state(s, SB_FAILED); /* nothing on the host yet */
    else
        sandbox_stop(s, SB_FAILED);
}

/* ---- the VM ---- */

static void take_timings(struct sandbox *s, const struct vm_status *status) {
    json_decref(s->vm_timings);
    s->vm_timings = json_incref(status->timings);
    (void)text_copy(s->accelerator, sizeof(s->accelerator), status->accelerator);
    (void)text_copy(s->kernel, sizeof(s->kernel), status->kernel);
}

static void became_running(struct sandbox *s) {
    char total[24];
    s->total_ms = now_ms(s) - s->began_ms;
    (void)text_printf(total, sizeof(total), "%" PRIu64, s->total_ms);
    set_state(s, SB_RUNNING);
    log_event(LOG_L_INFO, "sandbox_running", "sandbox_id", s->id, "ms", total, NULL);
}

static void update_ready(struct sandbox *s) {
    bool ready = s->state == SB_RUNNING && s->vm_ready && s->missed < MISSES_MAX;
    if (ready == s->ready)
        return;
    if (!ready)
        log_event(LOG_L_WARN, "sandbox_not_ready", "sandbox_id", s->id, "agent", s->missed ? "silent" : "answers",
                  NULL);
    s->ready = ready;
    say(s);
}

static void on_status(void *ctx, const struct vm_status *status) {
    struct sandbox *s = ctx;
    struct fault fault;
    if (status->phase == VM_PHASE_FAILED) {
        fault_set(&fault, status->failure, "%s", status->message);
        sandbox_fail(s, &fault);
        return;
    }
    s->generation = status->generation;
    if (status->phase != VM_PHASE_RUNNING)
        return;
    take_timings(s, status);
    if (s->state == SB_COMING_UP)
        became_running(s);
    s->vm_ready = status->ready;
    update_ready(s);
}

static void on_pong(void *ctx, bool alive) {
    struct sandbox *s = ctx;
    s->missed = alive ? 0 : s->missed + 1;
    update_ready(s);
}

void sandbox_ping(struct sandbox *s) {
    if (s->state == SB_RUNNING)
        vm_link_ping(s->link);
}

static void on_gone(void *ctx, const char *why) {
    struct fault fault;
    fault_set(&fault, FAILURE_VMM_KILLED, "%s", why);
    sandbox_fail(ctx, &fault);
}

/* There is a VM: what it says decides. */
static void follow_vm(struct sandbox *s) {
    static const struct vm_link_events events = {.on_status = on_status, .on_pong = on_pong, .on_gone = on_gone};
    struct sp_error err = {0};
    struct fault fault;
    set_state(s, SB_COMING_UP);
    if (vm_link_new(s->node->loop, s->node->settings->state_dir, s->id, &events, s, &s->link, &err) < 0) {
        fault_from_error(&fault, &err, FAILURE_INTERNAL);
        sandbox_fail(s, &fault);
    }
}

void sandbox_adopt(struct sandbox *s, bool alive) {
    log_event(LOG_L_INFO, "sandbox_adopted", "sandbox_id", s->id, "alive", alive ? "true" : "false", NULL);
    if (alive) {
        loop_timer_start(s->deadline, ADOPT_MS, 0);
        follow_vm(s);
    } else {
        fault_set(&s->fault, FAILURE_VMM_KILLED, "the VM had ended when the node came back");
        sandbox_stop(s, SB_FAILED);
    }
}

/* ---- the way up ---- */

static void ask_start(struct sandbox *s);

static void on_start_answer(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct sandbox *s = ctx;
    struct fault fault;
    (void)reply;
    s->call = NULL;
    if (s->state == SB_STOPPING) { /* it was given up meanwhile */
        ask_stop(s);
        return;
    }
    if (!err) {
        s->broker_ms = now_ms(s) - s->since_ms;
        follow_vm(s);
    } else if (err->code == SP_E_UNAVAILABLE) {
        loop_timer_start(s->retry, RETRY_MS, 0); /* or sandbox_broker_up(), whichever comes first */
    } else if (err->code == SP_E_CONFLICT && !s->rebuilt) {
        s->rebuilt = true; /* something of an earlier start is left, or its snapshot is being removed */
        sandbox_stop(s, SB_NEW);
    } else {
        fault_from_error(&fault, err, FAILURE_SNAPSHOT_BROKEN);
        sandbox_fail(s, &fault);
    }
}

/* What is left of the deadline is the VM's. */
static uint64_t left_ms(const struct sandbox *s) {
    uint64_t now = clock_realtime_ns();
    uint64_t fallback = s->node->settings->create_timeout_s * 1000, passed = now_ms(s) - s->began_ms;
    if (s->want.deadline_ns)
        return s->want.deadline_ns > now ? (s->want.deadline_ns - now) / NSEC_PER_MSEC : 0;
    return fallback > passed ? fallback - passed : 0;
}

static void ask_start(struct sandbox *s) {
    struct sp_error err = {0};
    struct fault fault;
    uint64_t left = left_ms(s);
    json_t *fields;
    if (s->call || !broker_client_is_up(s->node->broker))
        return;
    if (vm_request_clone(&s->node->base, &s->want, s->spec.key, left ? left : 1, &fields, &err) < 0) {
        fault_from_error(&fault, &err, FAILURE_INTERNAL);
        sandbox_fail(s, &fault);
    } else if (broker_call_start(s->node->broker, "vm_start", fields, on_start_answer, s, &s->call, NULL) < 0) {
        loop_timer_start(s->retry, RETRY_MS, 0);
    }
}

void sandbox_take_slot(struct sandbox *s) {
    s->queue_ms += now_ms(s) - s->since_ms;
    set_state(s, SB_STARTING);
    s->started_ms = now_ms(s);
    s->generation = s->want.generation;
    ask_start(s);
}

static void on_retry(void *ctx) {
    struct sandbox *s = ctx;
    if (s->state == SB_STARTING)
        ask_start(s);
    else if (s->state == SB_STOPPING)
        ask_stop(s);
}

static void enqueue(struct sandbox *s) {
    s->order = s->node->next_order++;
    set_state(s, SB_QUEUED);
}

static void on_template(void *ctx, const struct fault *fault) {
    struct sandbox *s = ctx;
    s->template_ms += now_ms(s) - s->since_ms;
    if (fault)
        sandbox_fail(s, fault);
    else
        enqueue(s);
}

static void want_template(struct sandbox *s) {
    struct node *n = s->node;
    template_spec_done(&s->spec);
    template_spec_init(&s->spec, &s->want, &n->facts, n->accelerator);
    set_state(s, SB_WAITING);
    if (template_cache_want(n->templates, &s->spec, &s->waiter) > 0)
        enqueue(s);
}

void sandbox_set_want(struct sandbox *s, const struct desired *d) {
    bool is_first = !s->want.id[0];
    json_incref((json_t *)(uintptr_t)d->manifest);
    json_incref((json_t *)(uintptr_t)d->env);
    drop_want(s);
    s->want = *d;
    if (is_first && s->state == SB_COMING_UP) /* adopted on its way up */
        loop_timer_start(s->deadline, left_ms(s), 0);
    if (s->state == SB_FAILED && !s->generation)
        s->generation = d->generation;
    if (is_first)
        say(s);
}

void sandbox_start(struct sandbox *s) {
    struct fault fault = {0};
    uint64_t left;
    if (s->state == SB_FAILED) { /* another generation of one that had failed */
        s->rebuilt = false;
        s->began_ms = now_ms(s);
        s->queue_ms = s->template_ms = s->broker_ms = s->total_ms = 0;
        set_state(s, SB_NEW);
    }
    assert(s->state == SB_NEW);
    left = left_ms(s);
    if (s->want.problem[0])
        fault_set(&fault, FAILURE_INTERNAL, "what control wants is malformed: %s", s->want.problem);
    else if (!left)
        fault_set(&fault, FAILURE_DEADLINE_EXCEEDED, "its deadline had passed before the node began");
    else
        fault.code = node_admit(s->node, s, fault.message, sizeof(fault.message));
    if (fault.code != FAILURE_NONE) {
        sandbox_fail(s, &fault);
        return;
    }
    loop_timer_start(s->deadline, left, 0);
    say(s);
    want_template(s);
}

void sandbox_broker_up(struct sandbox *s, enum sandbox_listed listed) {
    if (s->state == SB_STARTING && !s->call && listed == LISTED_ALIVE)
        follow_vm(s);
    else if (s->state == SB_STARTING)
        ask_start(s);
    else if (s->state == SB_STOPPING)
        ask_stop(s);
}
