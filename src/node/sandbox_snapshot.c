/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The snapshot control wants of a sandbox: made by the broker while the VM runs or stands still, copied when there is no VM,
 * or only looked for when there is nothing here any more. Its outcome is said until control has taken note.
 */
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "node/control_link.h"
#include "node/node.h"
#include "node/sandbox_internal.h"
#include <string.h>

#define STEPS_MAX 24u

static bool is_making(const struct snapshot_job *job) {
    return job->state == JOB_MAKING || job->state == JOB_REMOVING;
}

static void set_job(struct sandbox *s, enum job_state to) {
    bool was_busy = sandbox_is_busy(s);
    struct snapshot_job *job = &s->snapshot;
    job->call = broker_call_forget(job->call);
    if (job->retry)
        loop_timer_stop(job->retry);
    job->state = to;
    if (was_busy != sandbox_is_busy(s))
        node_activity_changed(s->node);
}

void sandbox_job_free(struct snapshot_job *job) {
    broker_call_forget(job->call);
    job->retry = loop_timer_free(job->retry);
}

void sandbox_job_give_up(struct sandbox *s, const struct fault *why) {
    if (!is_making(&s->snapshot))
        return;
    s->snapshot.fault = *why;
    set_job(s, JOB_FAILED);
    snapshots_failed(s->node->snapshots, s->snapshot.id, why);
}

/* ---- the end ---- */

static void take_sizes(struct snapshot_job *job, const json_t *reply) {
    struct {
        const char *key;
        uint64_t *value;
    } const numbers[] = {{"memory_bytes", &job->memory_bytes},
                         {"disk_bytes", &job->disk_bytes},
                         {"exclusive_bytes", &job->exclusive_bytes},
                         {"stall_us", &job->stall_us}};
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        (void)json_get_opt_u64(reply, "", numbers[i].key, 0, INT64_MAX, 0, numbers[i].value, NULL);
}

/* Where the broker spent the time: timings_us, under names of ours. */
static json_t *copy_steps(const json_t *reply) {
    json_t *steps = json_object(), *us;
    const char *step;
    char name[48];
    json_object_foreach (json_object_get(reply, "timings_us"), step, us)
        if (json_is_integer(us) && step[strspn(step, "abcdefghijklmnopqrstuvwxyz0123456789_")] == '\0' &&
            text_printf(name, sizeof(name), "broker_%s_ms", step) && json_object_size(steps) < STEPS_MAX)
            (void)json_object_set_new(steps, name, json_real((double)json_integer_value(us) / 1000));
    return steps;
}

static void ready(struct sandbox *s, const json_t *reply) {
    struct snapshot_job *job = &s->snapshot;
    take_sizes(job, reply);
    if (s->want.operation_id[0] && strcmp(s->want.snapshot_id, job->id) == 0) {
        sandbox_end_operation(s, NULL);
        s->operation.ms = sandbox_now_ms(s) - job->began_ms;
        s->operation.steps = copy_steps(reply);
    }
    set_job(s, JOB_READY);
    log_event(LOG_L_INFO, "snapshot_ready", "sandbox_id", s->id, "snapshot", job->id, NULL);
    snapshots_ready(s->node->snapshots, job->id);
    if (s->state == SB_SUSPENDING) {
        sandbox_stop(s, SB_SUSPENDED);
        return;
    }
    sandbox_say(s);
    if (s->state == SB_LOOKING)
        sandbox_set_state(s, SB_SUSPENDED);
    node_reconcile_soon(s->node);
}

/* A suspend that failed: it is what it was before, or is made so. */
static void back(struct sandbox *s) {
    bool was_running = s->snapshot.was_running;
    if (s->phase == VM_PHASE_RUNNING) {
        sandbox_set_state(s, SB_RUNNING);
        s->vm_ready = s->ready = true; /* until its next status says otherwise */
    } else if (was_running) {
        s->goes_back = true;
        sandbox_resume(s);
    } else {
        sandbox_set_state(s, SB_PAUSED);
    }
}

static void failed(struct sandbox *s, const struct fault *why) {
    struct snapshot_job *job = &s->snapshot;
    struct fault fault = *why;
    job->fault = fault;
    set_job(s, JOB_FAILED);
    log_event(LOG_L_WARN, "snapshot_failed", "sandbox_id", s->id, "snapshot", job->id, "code", failure_name(fault.code),
              "message", fault.message, NULL);
    snapshots_failed(s->node->snapshots, job->id, &fault);
    sandbox_end_operation(s, &fault);
    if (s->state == SB_SUSPENDING)
        back(s);
    node_reconcile_soon(s->node);
}

/* ---- making ---- */

static void ask_job(struct sandbox *s);

static void on_job_retry(void *ctx) {
    ask_job(ctx);
}

/* The broker is away, or has no room: true when that was all. */
static bool put_off(struct sandbox *s, const struct sp_error *err) {
    s->snapshot.call = NULL;
    if (!err || err->code != SP_E_UNAVAILABLE)
        return false;
    loop_timer_start(s->snapshot.retry, SANDBOX_RETRY_MS, 0);
    return true;
}

static void fail_with(struct sandbox *s, const struct sp_error *err) {
    struct fault fault;
    fault_from_error(&fault, err);
    failed(s, &fault);
}

static void on_removed(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct sandbox *s = ctx;
    (void)reply;
    if (put_off(s, err))
        return;
    if (err) {
        fail_with(s, err);
        return;
    }
    set_job(s, JOB_MAKING);
    ask_job(s);
}

/* It was there already, and the VM has run on since: it is not the state that is to be kept. */
static bool is_outdated(const struct sandbox *s, const json_t *reply) {
    return s->snapshot.stop && json_is_true(json_object_get(reply, "existed")) &&
           strcmp(s->vm_snapshot, s->snapshot.id) != 0;
}

static void on_made(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct sandbox *s = ctx;
    if (put_off(s, err))
        return;
    if (err) {
        fail_with(s, err);
    } else if (is_outdated(s, reply)) {
        log_event(LOG_L_WARN, "snapshot_outdated", "sandbox_id", s->id, "snapshot", s->snapshot.id, NULL);
        set_job(s, JOB_REMOVING);
        ask_job(s);
    } else {
        ready(s, reply);
    }
}

static json_t *manifest_of(struct sandbox *s) {
    struct node *n = s->node;
    if (!s->spec.key[0]) /* an adopted one */
        template_spec_init(&s->spec, &s->want, &n->facts, n->accelerator);
    return vm_request_sandbox_manifest(&n->base, &s->spec, &s->want);
}

static void ask_job(struct sandbox *s) {
    struct broker_client *broker = s->node->broker;
    struct snapshot_job *job = &s->snapshot;
    int r;
    if (job->call || !broker_client_is_up(broker))
        return;
    if (job->state == JOB_REMOVING)
        r = broker_call_start(broker, "snapshot_remove", json_pack("{s:s}", "snapshot", job->id), on_removed, s,
                              &job->call, NULL);
    else if (s->state == SB_SUSPENDED)
        r = broker_call_start(broker, "snapshot_copy",
                              json_pack("{s:s, s:s, s:o}", "snapshot", s->want.start_snapshot, "to", job->id,
                                        "manifest", manifest_of(s)),
                              on_made, s, &job->call, NULL);
    else
        r = broker_call_start(broker, "vm_snapshot",
                              json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", s->id, "snapshot", job->id, "then",
                                        job->stop ? "stop" : "resume", "content", job->is_disk ? "disk" : "full",
                                        "manifest", manifest_of(s)),
                              on_made, s, &job->call, NULL);
    if (r < 0)
        loop_timer_start(job->retry, SANDBOX_RETRY_MS, 0);
}

static void new_job(struct sandbox *s) {
    struct snapshot_job *job = &s->snapshot;
    struct loop_timer *retry = job->retry ? job->retry : loop_timer_new(s->node->loop, on_job_retry, s);
    set_job(s, JOB_NONE);
    *job = (struct snapshot_job){.retry = retry, .began_ms = sandbox_now_ms(s), .is_disk = s->want.snapshot_is_disk};
    (void)text_copy(job->id, sizeof(job->id), s->want.snapshot_id);
}

void sandbox_snapshot(struct sandbox *s) {
    new_job(s);
    set_job(s, JOB_MAKING);
    ask_job(s);
}

void sandbox_suspend(struct sandbox *s) {
    new_job(s);
    s->snapshot.stop = true;
    s->snapshot.was_running = s->state == SB_RUNNING;
    sandbox_set_state(s, SB_SUSPENDING);
    set_job(s, JOB_MAKING);
    ask_job(s);
}

/* Out of what it would be woken from. */
void sandbox_copy_snapshot(struct sandbox *s) {
    struct fault fault;
    new_job(s);
    if (s->want.start_snapshot[0]) {
        set_job(s, JOB_MAKING);
        ask_job(s);
        return;
    }
    fault_set(&fault, FAILURE_SNAPSHOT_MISSING, "there is nothing to copy: no snapshot is named to start from");
    failed(s, &fault);
}

void sandbox_job_on_broker_up(struct sandbox *s) {
    if (is_making(&s->snapshot))
        ask_job(s);
}

/* ---- looking ---- */

static void on_looked(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct sandbox *s = ctx;
    struct fault fault;
    s->call = NULL;
    if (s->state == SB_STOPPING) {
        sandbox_ask_stop(s);
    } else if (err && err->code == SP_E_UNAVAILABLE) {
        loop_timer_start(s->retry, SANDBOX_RETRY_MS, 0);
    } else if (err) {
        fault_set(&fault, FAILURE_VMM_KILLED, "the VM was gone when the node came back, before it was suspended");
        s->snapshot.fault = fault;
        set_job(s, JOB_FAILED);
        sandbox_fail(s, &fault);
    } else {
        ready(s, reply);
    }
}

void sandbox_look_retry(struct sandbox *s) {
    if (s->call || !broker_client_is_up(s->node->broker))
        return;
    if (broker_call_start(s->node->broker, "snapshot_stat", json_pack("{s:s}", "snapshot", s->snapshot.id), on_looked,
                          s, &s->call, NULL) < 0)
        loop_timer_start(s->retry, SANDBOX_RETRY_MS, 0);
}

void sandbox_look(struct sandbox *s) {
    new_job(s);
    s->generation = s->want.generation;
    sandbox_set_state(s, SB_LOOKING);
    sandbox_look_retry(s);
}

void sandbox_rest(struct sandbox *s) {
    sandbox_set_state(s, SB_SUSPENDED);
    node_reconcile_soon(s->node);
}
