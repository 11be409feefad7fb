/* SPDX-License-Identifier: Apache-2.0 */
/* What control is told of a sandbox (spec/internal-api.md, `observed`). */
#include "base/text.h"
#include "node/node.h"
#include "node/sandbox.h"
#include <string.h>

/* Why it failed is said at once; that nothing is left of it, after control wanted it deleted. */
static const char *report_state(const struct sandbox *s) {
    enum sandbox_step step = s->state == SB_STOPPING ? s->after : s->state;
    switch (step) {
    case SB_FAILED:
        return "failed";
    case SB_DELETED:
        return s->state == SB_DELETED ? "deleted" : NULL;
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
    if (!state || !generation) /* an adopted VM has not spoken yet, and control not either */
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

void sandbox_reported(struct sandbox *s, bool taken) {
    s->report.under_way = false;
    s->report.last_ms = loop_now_ms(s->node->loop);
    s->report.due = s->report.due || !taken;
}
