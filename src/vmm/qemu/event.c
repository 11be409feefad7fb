/* SPDX-License-Identifier: Apache-2.0 */
/* QEMU's words for run states, events and the APIC, read into the driver's own. Pure. */
#include "base/text.h"
#include "vmm/qemu/qemu.h"
#include <string.h>

static const struct {
    const char *name;
    enum vmm_status status;
} statuses[] = {
    {"running", VMM_STATUS_RUNNING},     {"paused", VMM_STATUS_STOPPED},      {"prelaunch", VMM_STATUS_STOPPED},
    {"postmigrate", VMM_STATUS_STOPPED}, {"save-vm", VMM_STATUS_STOPPED},     {"finish-migrate", VMM_STATUS_STOPPED},
    {"inmigrate", VMM_STATUS_INCOMING},  {"restore-vm", VMM_STATUS_INCOMING}, {"io-error", VMM_STATUS_STALLED},
};

enum vmm_status qemu_status_from_name(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(statuses); i++)
        if (strcmp(statuses[i].name, name) == 0)
            return statuses[i].status;
    return VMM_STATUS_OTHER;
}

static const struct {
    const char *name;
    enum vmm_event_kind kind;
    const char *detail; /* member of data shown to people */
} events[] = {
    {"SHUTDOWN", VMM_EVENT_SHUTDOWN, "reason"},
    {"RESET", VMM_EVENT_RESET, "reason"},
    {"STOP", VMM_EVENT_STOPPED, NULL},
    {"RESUME", VMM_EVENT_RESUMED, NULL},
    {"BLOCK_IO_ERROR", VMM_EVENT_IO_ERROR, "reason"},
    {"GUEST_PANICKED", VMM_EVENT_PANIC, "action"},
};

bool qemu_event_from_qmp(const struct qmp_event *event, struct vmm_event *ret) {
    const char *detail, *action;
    for (size_t i = 0; i < ARRAY_SIZE(events); i++) {
        if (strcmp(events[i].name, event->name) != 0)
            continue;
        detail = events[i].detail ? json_string_value(json_object_get(event->data, events[i].detail)) : NULL;
        action = json_string_value(json_object_get(event->data, "action"));
        *ret = (struct vmm_event){
            .kind = events[i].kind,
            .by_guest = json_is_true(json_object_get(event->data, "guest")),
            .no_space = json_is_true(json_object_get(event->data, "nospace")),
            .stopped = action && strcmp(action, "stop") == 0,
        };
        (void)text_escape(ret->detail, sizeof(ret->detail), detail ? detail : "", detail ? strlen(detail) : 0);
        return true;
    }
    return false;
}

static bool line_has(const char *line, size_t len, const char *word) {
    const char *at = strstr(line, word);
    return at && at < line + len;
}

bool qemu_lapic_timer_masked(const char *text, bool *ret) {
    const char *line = strstr(text, "LVTT\t"); /* not LVTTHMR, which comes before */
    size_t len;
    if (!line)
        return false;
    len = strcspn(line, "\r\n");
    /* In deadline mode (with KVM) the kernel relies on it and masks it whenever no timer is set. */
    *ret = line_has(line, len, "masked") && !line_has(line, len, "tsc-deadline");
    return true;
}
