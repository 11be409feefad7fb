/* SPDX-License-Identifier: Apache-2.0 */
/* What control is told of a sandbox (spec/internal-api.md, `observed`). */
#include "base/clock.h"
#include "base/text.h"
#include "node/node.h"
#include "node/sandbox.h"
#include <string.h>
#include <time.h>

/* Why it failed is said at once; that nothing is left of it, after control wanted it deleted. What is on its way from one
 * state to another is where it was. */
const char *sandbox_report_state(const struct sandbox *s) {
    static const char *const names[SB_STEP_COUNT_] = {
        [SB_NEW] = "creating",       [SB_WAITING] = "creating",    [SB_QUEUED] = "creating", [SB_STARTING] = "creating",
        [SB_COMING_UP] = "creating", [SB_RUNNING] = "running",     [SB_PAUSING] = "running", [SB_PAUSED] = "paused",
        [SB_RESUMING] = "paused",    [SB_SUSPENDED] = "suspended", [SB_FAILED] = "failed",   [SB_DELETED] = "deleted",
    };
    if (s->state == SB_COMING_UP && s->adopted && s->phase == VM_PHASE_UNKNOWN)
        return NULL; /* it has not said what it is */
    if (s->state == SB_STOPPING)
        return s->after == SB_FAILED ? "failed" : NULL;
    if (s->goes_back)
        return NULL; /* what control is told with its failure is where it ends up */
    if (s->state == SB_SUSPENDING)
        return s->snapshot.was_running ? "running" : "paused";
    return names[s->state];
}

/* RFC 3339, to the millisecond. */
static json_t *report_time(uint64_t ns) {
    time_t seconds = (time_t)(ns / NSEC_PER_SEC);
    char text[48];
    struct tm tm;
    if (!gmtime_r(&seconds, &tm) || !strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm))
        return json_null();
    return json_sprintf("%s.%03uZ", text, (unsigned)(ns % NSEC_PER_SEC / NSEC_PER_MSEC));
}

static void put_ms(json_t *timings, const char *step, uint64_t ms) {
    (void)json_object_set_new(timings, step, json_integer((json_int_t)ms));
}

static json_t *report_timings(const struct sandbox *s) {
    json_t *timings = s->vm_timings ? json_copy(s->vm_timings) : json_object();
    if (!s->adopted) { /* else it was another run of the node that knew */
        put_ms(timings, "node_queue_ms", s->queue_ms);
        put_ms(timings, "template_ms", s->template_ms);
        put_ms(timings, "broker_ms", s->broker_ms);
        put_ms(timings, "node_total_ms", s->total_ms);
    }
    return timings;
}

static void add_vm(const struct sandbox *s, json_t *report) {
    (void)json_object_set_new(report, "accelerator", json_string(s->accelerator));
    (void)json_object_set_new(report, "kernel", json_string(s->kernel));
    if (s->vmm[0])
        (void)json_object_set_new(report, "vmm", json_string(s->vmm));
    (void)json_object_set_new(report, "timings", report_timings(s));
    (void)json_object_set_new(report, "streams", json_integer((json_int_t)s->streams));
    if (s->start_kind != START_NONE)
        (void)json_object_set_new(report, "start_kind", json_string(start_kind_name(s->start_kind)));
    if (s->active_ns)
        (void)json_object_set_new(report, "active_at", report_time(s->active_ns));
}

static json_t *report_fault(const struct fault *fault) {
    return json_pack("{s:s, s:s}", "code", failure_name(fault->code), "message", fault->message);
}

static void add_operation(const struct sandbox *s, json_t *report) {
    json_t *timings = s->operation.steps ? json_copy(s->operation.steps) : json_object();
    json_t *operation = json_pack("{s:s, s:o}", "id", s->operation.id, "timings", timings);
    put_ms(timings, "node_ms", s->operation.ms);
    if (operation && s->operation.fault.code != FAILURE_NONE)
        (void)json_object_set_new(operation, "error", report_fault(&s->operation.fault));
    (void)json_object_set_new(report, "operation", operation);
}

static void add_snapshot(const struct snapshot_job *job, json_t *report) {
    json_t *snapshot =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "id", job->id, "state",
                  job->state == JOB_READY ? "ready" : "failed", "memory_bytes", (json_int_t)job->memory_bytes,
                  "disk_bytes", (json_int_t)job->disk_bytes, "exclusive_bytes", (json_int_t)job->exclusive_bytes,
                  "stall_us", (json_int_t)job->stall_us);
    if (snapshot && job->state == JOB_FAILED)
        (void)json_object_set_new(snapshot, "error", report_fault(&job->fault));
    (void)json_object_set_new(report, "snapshot", snapshot);
}

/* Only where it stands still: on its way somewhere else it has not ended. */
static bool says_operation(const struct sandbox *s) {
    return s->operation.id[0] && (s->state == SB_RUNNING || s->state == SB_PAUSED || s->state == SB_SUSPENDED);
}

json_t *sandbox_report(const struct sandbox *s) {
    const char *state = sandbox_report_state(s);
    uint64_t generation = s->generation ? s->generation : s->want.generation;
    json_t *report;
    if (!state || !generation) /* an adopted VM has not spoken yet, and control not either */
        return NULL;
    report = json_pack("{s:s, s:I, s:s, s:b}", "id", s->id, "generation", (json_int_t)generation, "state", state,
                       "ready", (int)s->ready);
    if (!report)
        return NULL;
    if (s->state == SB_RUNNING || s->state == SB_PAUSED)
        add_vm(s, report);
    if (strcmp(state, "failed") == 0)
        (void)json_object_set_new(report, "error", report_fault(&s->fault));
    if (says_operation(s))
        add_operation(s, report);
    if ((s->snapshot.state == JOB_READY || s->snapshot.state == JOB_FAILED) && !s->snapshot.settled)
        add_snapshot(&s->snapshot, report);
    return report;
}

void sandbox_reported(struct sandbox *s, bool taken) {
    s->report.under_way = false;
    s->report.last_ms = loop_now_ms(s->node->loop);
    s->report.due = s->report.due || !taken;
}
