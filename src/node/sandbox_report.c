/* SPDX-License-Identifier: Apache-2.0 */
/* What control is told of a sandbox (spec/internal-api.md, `observed`). */
#include "base/text.h"
#include "node/node.h"
#include "node/sandbox.h"
#include <string.h>

/* A failed sandbox is reported twice: why, at once; and that nothing of it is left, when that is so. */
static const char *report_state(const struct sandbox *s) {
    switch (s->state) {
    case SB_STOPPING:
        if (s->after == SB_FAILED)
            return s->report.failed_is_known ? NULL : "failed";
        return s->after == SB_NEW ? "creating" : NULL;
    case SB_FAILED:
        return s->report.failed_is_known ? "deleted" : "failed";
    case SB_DELETED:
        return "deleted";
    case SB_RUNNING:
        return "running";
    default:
        return "creating";
    }
}

static void put_ms(json_t *timings, const char *step, uint64_t ms) {
    (void)json_object_set_new(timings, step, json_integer((json_int_t)ms));
}

static json_t *report_timings(const struct sandbox *s) {
    json_t *timings = s->vm_timings ? json_copy(s->vm_timings) : json_object();
    if (s->total_ms) { /* not of an adopted one: it was another run of the node that knew */
        put_ms(timings, "node_queue_ms", s->queue_ms);
        put_ms(timings, "template_ms", s->template_ms);
        put_ms(timings, "broker_ms", s->broker_ms);
        put_ms(timings, "node_total_ms", s->total_ms);
    }
    return timings;
}

static void add_running(const struct sandbox *s, json_t *report) {
    char vmm[48];
    (void)text_printf(vmm, sizeof(vmm), "qemu %s", s->node->facts.qemu_version);
    (void)json_object_set_new(report, "accelerator", json_string(s->accelerator));
    (void)json_object_set_new(report, "kernel", json_string(s->kernel));
    (void)json_object_set_new(report, "vmm", json_string(vmm));
    (void)json_object_set_new(report, "timings", report_timings(s));
}

json_t *sandbox_report(const struct sandbox *s) {
    const char *state = report_state(s);
    uint64_t generation = s->generation ? s->generation : s->want.generation;
    json_t *report;
    if (!state)
        return NULL;
    report = json_pack("{s:s, s:I, s:s, s:b}", "id", s->id, "generation", (json_int_t)generation, "state", state,
                       "ready", (int)s->ready);
    if (report && s->state == SB_RUNNING)
        add_running(s, report);
    if (report && strcmp(state, "failed") == 0)
        (void)json_object_set_new(report, "error",
                                  json_pack("{s:s, s:s}", "code", failure_name(s->fault.code), "message",
                                            s->fault.message));
    return report;
}

void sandbox_reported(struct sandbox *s, enum sandbox_step said, bool taken) {
    bool said_failure = said == SB_FAILED || (said == SB_STOPPING && s->after == SB_FAILED);
    s->report.under_way = false;
    s->report.last_ms = loop_now_ms(s->node->loop);
    if (!taken) {
        s->report.due = true;
    } else if (said_failure && !s->report.failed_is_known) {
        s->report.failed_is_known = true;
        s->report.due = s->report.due || s->state == SB_FAILED; /* next: that nothing is left */
    }
}
