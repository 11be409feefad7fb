/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of a sandbox: its states and what they may hold, its end. */
#include "node/sandbox.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "node/control_link.h"
#include "node/node.h"
#include "node/sandbox_internal.h"
#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* One row a state: what it may hold, and what it is to the decision table. */
static const struct step_row {
    const char *name;
    enum local_state local;
    bool link, deadline, call; /* kept on the way into it */
    bool host;                 /* something is on the host, or about to be */
    bool busy;                 /* spares wait */
} rows[SB_STEP_COUNT_] = {
    [SB_NEW] = {"new", LOCAL_COMING, .deadline = true, .busy = true},
    [SB_LOOKING] = {"looking", LOCAL_BUSY},
    [SB_WAITING] = {"waiting", LOCAL_COMING, .deadline = true, .host = true, .busy = true},
    [SB_QUEUED] = {"queued", LOCAL_COMING, .deadline = true, .host = true, .busy = true},
    [SB_STARTING] = {"starting", LOCAL_COMING, true, true, true, true, true},
    [SB_COMING_UP] = {"coming_up", LOCAL_COMING, true, true, .host = true, .busy = true},
    [SB_RUNNING] = {"running", LOCAL_RUNNING, .link = true, .host = true},
    [SB_PAUSING] = {"pausing", LOCAL_BUSY, .link = true, .host = true, .busy = true},
    [SB_PAUSED] = {"paused", LOCAL_PAUSED, .link = true, .host = true},
    [SB_RESUMING] = {"resuming", LOCAL_BUSY, .link = true, .host = true, .busy = true},
    [SB_SUSPENDING] = {"suspending", LOCAL_BUSY, .link = true, .host = true, .busy = true},
    [SB_STOPPING] = {"stopping", LOCAL_STOPPING, .call = true, .host = true},
    [SB_SUSPENDED] = {"suspended", LOCAL_SUSPENDED},
    [SB_FAILED] = {"failed", LOCAL_FAILED},
    [SB_DELETED] = {"deleted", LOCAL_DELETED},
};

const char *sandbox_step_name(enum sandbox_step step) {
    return rows[step].name;
}

/* One out of a pool costs next to nothing and waits for nobody. */
bool sandbox_holds_slot(const struct sandbox *s) {
    return (s->state == SB_STARTING || s->state == SB_COMING_UP) && s->start_kind != START_WARM;
}

bool sandbox_holds_host(const struct sandbox *s) {
    return rows[s->state].host;
}

bool sandbox_is_busy(const struct sandbox *s) {
    return rows[s->state].busy || s->snapshot.state == JOB_MAKING;
}

enum local_state sandbox_local_state(const struct sandbox *s) {
    /* beside a snapshot nothing else begins */
    bool has_job = s->snapshot.state == JOB_MAKING || s->snapshot.state == JOB_REMOVING;
    bool stands = s->state == SB_RUNNING || s->state == SB_PAUSED || s->state == SB_SUSPENDED;
    return stands && has_job ? LOCAL_BUSY : rows[s->state].local;
}

uint64_t sandbox_now_ms(const struct sandbox *s) {
    return loop_now_ms(s->node->loop);
}

void sandbox_say(struct sandbox *s) {
    s->report.due = true;
    s->report.lazy = false;
    control_link_report_soon(s->node->control);
}

void sandbox_say_lazily(struct sandbox *s) {
    if (!s->report.due)
        s->report.lazy = true;
    control_link_report_later(s->node->control);
}

/* What a state may not hold is freed on the way into it. A call that is under way stays known through STOPPING. */
void sandbox_set_state(struct sandbox *s, enum sandbox_step to) {
    bool had_slot = sandbox_holds_slot(s), was_busy = sandbox_is_busy(s);
    const char *was = sandbox_report_state(s), *is;
    if (to != SB_WAITING) {
        template_cache_cancel(&s->waiter);
        snapshots_cancel(&s->parent);
    }
    if (!rows[to].call && to != SB_LOOKING)
        s->call = broker_call_forget(s->call);
    if (!rows[to].link) {
        s->link = vm_link_free(s->link);
        s->phase = VM_PHASE_UNKNOWN;
        s->vm_snapshot[0] = '\0';
        s->identifying = false;
    }
    if (!rows[to].deadline && !(to == SB_STOPPING && s->after == SB_NEW))
        loop_timer_stop(s->deadline);
    loop_timer_stop(s->retry);
    if (to != SB_RUNNING) {
        s->ready = s->vm_ready = false;
        s->missed = 0;
    }
    s->goes_back = s->goes_back && to == SB_RESUMING;
    log_event(LOG_L_DEBUG, "sandbox_step", "sandbox_id", s->id, "from", rows[s->state].name, "to", rows[to].name, NULL);
    s->state = to;
    s->since_ms = sandbox_now_ms(s);
    if (had_slot != sandbox_holds_slot(s) || to == SB_QUEUED)
        node_slots_changed(s->node);
    if (was_busy != sandbox_is_busy(s))
        node_activity_changed(s->node);
    is = sandbox_report_state(s);
    if (is && (!was || strcmp(was, is) != 0))
        sandbox_say(s);
}

/* ---- life of the object ---- */

static void on_deadline(void *ctx) {
    struct sandbox *s = ctx;
    struct fault fault;
    if (s->state == SB_PAUSING || s->state == SB_RESUMING) {
        sandbox_lifecycle_expired(s);
        return;
    }
    fault_set(&fault, FAILURE_DEADLINE_EXCEEDED, "not running in time; it was %s for %" PRIu64 " ms",
              rows[s->state].name, sandbox_now_ms(s) - s->since_ms);
    sandbox_fail(s, &fault);
}

static void on_retry(void *ctx);

struct sandbox *sandbox_new(struct node *n, const char *id) {
    struct sandbox *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    *s = (struct sandbox){.node = n, .state = SB_NEW};
    (void)text_copy(s->id, sizeof(s->id), id);
    s->deadline = loop_timer_new(n->loop, on_deadline, s);
    s->retry = loop_timer_new(n->loop, on_retry, s);
    s->began_ms = s->since_ms = sandbox_now_ms(s);
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
    snapshots_cancel(&s->parent);
    broker_call_forget(s->call);
    vm_link_free(s->link);
    loop_timer_free(s->deadline);
    loop_timer_free(s->retry);
    sandbox_job_free(&s->snapshot);
    json_decref(s->vm_timings);
    json_decref(s->operation.steps);
    template_spec_done(&s->spec);
    drop_want(s);
    free(s);
}

uint64_t sandbox_left_ms(const struct sandbox *s) {
    uint64_t now = clock_realtime_ns();
    uint64_t fallback = s->node->settings->create_timeout_s * 1000, passed = sandbox_now_ms(s) - s->began_ms;
    if (s->want.deadline_ns)
        return s->want.deadline_ns > now ? (s->want.deadline_ns - now) / NSEC_PER_MSEC : 0;
    return fallback > passed ? fallback - passed : 0;
}

void sandbox_set_want(struct sandbox *s, const struct desired *d) {
    bool is_first = !s->want.id[0];
    json_incref((json_t *)(uintptr_t)d->manifest);
    json_incref((json_t *)(uintptr_t)d->env);
    drop_want(s);
    s->want = *d;
    if (strcmp(s->operation.id, d->operation_id) != 0)
        s->operation.id[0] = '\0';
    if (is_first && s->state == SB_COMING_UP) { /* adopted on its way up */
        loop_timer_start(s->deadline, sandbox_left_ms(s), 0);
        sandbox_look_at_vm(s);
    }
    if ((s->state == SB_FAILED || s->state == SB_SUSPENDED) && !s->generation)
        s->generation = d->generation;
    if (is_first)
        sandbox_say(s);
}

void sandbox_end_operation(struct sandbox *s, const struct fault *fault) {
    (void)text_copy(s->operation.id, sizeof(s->operation.id), s->want.operation_id);
    s->operation.fault = fault ? *fault : (struct fault){0};
    s->operation.ms = sandbox_now_ms(s) - s->since_ms;
    json_decref(s->operation.steps);
    s->operation.steps = NULL;
    if (fault)
        log_event(LOG_L_WARN, "operation_failed", "sandbox_id", s->id, "step", rows[s->state].name, "operation_id",
                  s->want.operation_id, "code", failure_name(fault->code), "message", fault->message, NULL);
    sandbox_say(s);
}

/* ---- failing and stopping ---- */

static void stopped(struct sandbox *s) {
    switch (s->after) {
    case SB_NEW:
        s->generation = 0;
        if (s->fault.code == FAILURE_SNAPSHOT_BROKEN) /* only now does no VM of ours use it */
            template_cache_broken(s->node->templates, s->spec.key, s->started_ms);
        s->fault = (struct fault){0};
        sandbox_set_state(s, SB_NEW);
        sandbox_start(s);
        break;
    case SB_SUSPENDED:
    case SB_FAILED:
    case SB_DELETED:
        log_event(LOG_L_INFO, "sandbox_gone", "sandbox_id", s->id, "state", rows[s->after].name, NULL);
        if (s->after == SB_SUSPENDED && s->operation.fault.code == FAILURE_NONE) /* the end of the VM is part of it */
            s->operation.ms = sandbox_now_ms(s) - s->snapshot.began_ms;
        sandbox_set_state(s, s->after);
        node_reconcile_soon(s->node); /* it may be wanted otherwise by now */
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
    loop_timer_start(s->retry, SANDBOX_RETRY_MS, 0);
}

/* Once no start is under way: the broker then knows of everything there is to remove. */
void sandbox_ask_stop(struct sandbox *s) {
    if (s->call || !broker_client_is_up(s->node->broker))
        return;
    if (s->spare[0]) { /* whether it became ours or not, it goes */
        spares_discard(s->node->spares, s->spare);
        s->spare[0] = '\0';
    }
    if (broker_call_start(s->node->broker, "vm_stop", json_pack("{s:s}", "id", s->id), on_stop_answer, s, &s->call,
                          NULL) < 0)
        loop_timer_start(s->retry, SANDBOX_RETRY_MS, 0);
}

void sandbox_stop(struct sandbox *s, enum sandbox_step after) {
    bool is_stopping = s->state == SB_STOPPING;
    struct fault gone;
    if (after != SB_SUSPENDED) {
        fault_set(&gone, FAILURE_PARENT_GONE, "the sandbox ended before its snapshot was made");
        sandbox_job_give_up(s, after == SB_FAILED ? &s->fault : &gone);
    }
    s->after = after;
    if (is_stopping) {
        sandbox_say(s);
        return;
    }
    sandbox_set_state(s, SB_STOPPING);
    sandbox_ask_stop(s);
}

/* A template's broken snapshot is made anew, once for each sandbox that meets it. */
static bool may_rebuild(const struct sandbox *s, const struct fault *fault) {
    bool is_coming = s->state == SB_STARTING || s->state == SB_COMING_UP;
    return fault->code == FAILURE_SNAPSHOT_BROKEN && !s->rebuilt && is_coming && s->spec.key[0] &&
           !s->want.start_snapshot[0];
}

/* What a spare could not do, a VM of its own may; and a kernel that gave up its boot on a busy host may do it the next time. */
static bool may_go_cold(const struct sandbox *s, const struct fault *fault) {
    bool is_coming = s->state == SB_STARTING || s->state == SB_COMING_UP;
    bool may_be_luck = s->start_kind == START_WARM || s->start_kind == START_BLANK || s->start_kind == START_BOOT;
    return is_coming && may_be_luck && !s->cold_only && !s->adopted && fault->code != FAILURE_SNAPSHOT_BROKEN &&
           fault->code != FAILURE_DEADLINE_EXCEEDED;
}

/* A wake that found no room (or the like) leaves what it was to wake from. */
static bool may_stay_suspended(const struct sandbox *s, const struct fault *fault) {
    bool is_coming = s->state == SB_NEW || (s->state >= SB_WAITING && s->state <= SB_COMING_UP);
    return is_coming && s->want.start_snapshot[0] && strcmp(s->want.operation_kind, "wake") == 0 &&
           fault->code != FAILURE_SNAPSHOT_BROKEN && fault->code != FAILURE_SNAPSHOT_MISSING;
}

static void start_again(struct sandbox *s, const struct fault *fault) {
    s->fault = *fault;
    sandbox_stop(s, SB_NEW);
}

void sandbox_fail(struct sandbox *s, const struct fault *fault) {
    enum sandbox_step after = SB_FAILED;
    struct fault why = *fault;
    log_event(LOG_L_WARN, "sandbox_failed", "sandbox_id", s->id, "step", rows[s->state].name, "code",
              failure_name(fault->code), "message", fault->message, NULL);
    if (may_rebuild(s, fault)) {
        s->rebuilt = true;
        start_again(s, &why);
        return;
    }
    if (may_go_cold(s, fault)) {
        s->cold_only = true;
        start_again(s, &why);
        return;
    }
    if (may_stay_suspended(s, fault)) {
        after = SB_SUSPENDED;
        sandbox_end_operation(s, &why);
        why = (struct fault){0};
    }
    s->fault = why;
    if (!s->generation || after == SB_SUSPENDED)
        s->generation = s->want.generation;
    if (s->state == SB_NEW || s->state == SB_LOOKING || s->state == SB_WAITING || s->state == SB_QUEUED) {
        sandbox_set_state(s, after); /* nothing on the host yet */
        sandbox_job_give_up(s, &s->fault);
    } else {
        sandbox_stop(s, after);
    }
}

/* ---- the broker ---- */

static void on_retry(void *ctx) {
    struct sandbox *s = ctx;
    if (s->state == SB_STARTING)
        sandbox_start_retry(s);
    else if (s->state == SB_STOPPING)
        sandbox_ask_stop(s);
    else if (s->state == SB_LOOKING)
        sandbox_look_retry(s);
}

void sandbox_broker_up(struct sandbox *s, enum sandbox_listed listed) {
    if (s->state == SB_STARTING && !s->call)
        sandbox_start_on_broker_up(s, listed);
    else if (s->state == SB_STOPPING)
        sandbox_ask_stop(s);
    else if (s->state == SB_LOOKING)
        sandbox_look_retry(s);
    sandbox_job_on_broker_up(s);
}
