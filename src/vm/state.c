/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The VM's state and its reasons: the only place that changes vm->state. What a state may hold is enforced here: no
 * streams outside `running` (and the steps before it, where only our own calls exist), no VMM in `saved` and `failed`.
 */
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "vm/vm.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ACTIVITY_MS 1000

static const char *const state_names[] = {
    [VM_STARTING] = "starting", [VM_BLANK] = "blank",     [VM_RESTORING] = "restoring",     [VM_WARM] = "warm",
    [VM_BOOTING] = "booting",   [VM_PROBING] = "probing", [VM_IDENTIFYING] = "identifying", [VM_RUNNING] = "running",
    [VM_PAUSING] = "pausing",   [VM_PAUSED] = "paused",   [VM_SAVING] = "saving",           [VM_SAVED] = "saved",
    [VM_STOPPING] = "stopping", [VM_FAILED] = "failed",
};
static const char *const reason_names[] = {
    [VM_REASON_NONE] = "",
    [VM_REASON_VMM_FAILED] = "vmm_failed",
    [VM_REASON_VMM_KILLED] = "vmm_killed",
    [VM_REASON_GUEST_SILENT] = "guest_silent",
    [VM_REASON_GUEST_PROTOCOL] = "guest_protocol",
    [VM_REASON_HOST_DISK_FULL] = "host_disk_full",
    [VM_REASON_DEADLINE] = "deadline_exceeded",
    [VM_REASON_PROBE_FAILED] = "probe_failed",
    [VM_REASON_SNAPSHOT_BROKEN] = "snapshot_broken",
    [VM_REASON_INTERNAL] = "internal",
};

const char *vm_state_name(enum vm_state state) {
    return state_names[state];
}

const char *vm_reason_name(enum vm_reason reason) {
    return reason_names[reason];
}

int vm_init(struct vm *vm, struct sp_error *err) {
    vm->driver = &qemu_driver;
    vm->vmm_pidfd = vm->fd_signal = vm->track.fd_pagemap = vm->track.fd_mem = -1;
    vm->operation.fds[0] = vm->operation.fds[1] = vm->operation.fds[2] = -1;
    vm->started_ns = clock_monotonic_ns();
    vm->inbox = malloc(CHANNEL_MAX_FRAME * 2);
    for (size_t i = 0; i < VM_CONTROLS_MAX; i++)
        vm->controls[i].fd = -1;
    for (size_t i = 0; i < VM_CLIENTS_MAX; i++)
        vm->clients[i].fd = -1;
    if (!vm->inbox || channel_init(&vm->channel, CHANNEL_HOST, NULL) < 0 || call_init(&vm->call) < 0 ||
        call_init(&vm->ping) < 0)
        return sp_error_errno(err, ENOMEM, "space-vm", "start");
    return 0;
}

void vm_done(struct vm *vm) {
    client_close_all(vm);
    for (size_t i = 0; i < VM_CONTROLS_MAX; i++)
        vm->controls[i].fd = close_fd(vm->controls[i].fd);
    vmm_kill(vm);
    if (vm->vmm)
        vm->driver->free(vm->vmm);
    vm->vmm = NULL;
    request_done(&vm->operation.request);
    track_done(&vm->track);
    call_done(&vm->call);
    call_done(&vm->ping);
    channel_done(&vm->channel);
    free(vm->inbox);
    vm->inbox = NULL;
    vm->fd_signal = close_fd(vm->fd_signal);
    vm_config_done(&vm->config);
}

bool vm_is_ready(const struct vm *vm) {
    return vm->state == VM_RUNNING && vm->stall == STALL_NONE;
}

/* What the new state may not hold. */
static void vm_release(struct vm *vm) {
    switch (vm->state) {
    case VM_SAVED:
    case VM_FAILED:
        vmm_kill(vm);
        __attribute__((fallthrough));
    case VM_STOPPING:
        vm->stall = STALL_NONE;
        vm->quiet = vm->hold = false;
        call_cancel(vm, &vm->call);
        __attribute__((fallthrough));
    case VM_SAVING:
        client_close_all(vm);
        call_cancel(vm, &vm->ping);
        break;
    case VM_PAUSING:
    case VM_PAUSED:
    case VM_WARM:
        client_refuse_waiting(vm);
        break;
    case VM_STARTING:
    case VM_BLANK:
    case VM_RESTORING:
    case VM_BOOTING:
    case VM_PROBING:
    case VM_IDENTIFYING:
    case VM_RUNNING:
        break;
    }
}

void vm_set_state(struct vm *vm, enum vm_state state) {
    if (vm->state == state || vm->state == VM_FAILED)
        return;
    vm->state = state;
    vm_release(vm);
    if (state == VM_FAILED)
        log_event(LOG_L_ERROR, "vm_failed", "vm_id", vm->config.id, "code", vm_reason_name(vm->reason), "message",
                  vm->message, NULL);
    else
        log_event(LOG_L_INFO, "vm_state", "vm_id", vm->config.id, "state", vm_state_name(state), NULL);
    control_status_changed(vm);
}

void vm_fail(struct vm *vm, enum vm_reason reason, const char *fmt, ...) {
    va_list ap;
    if (vm->state == VM_FAILED)
        return;
    vm->reason = reason;
    va_start(ap, fmt);
    (void)vsnprintf(vm->message, sizeof(vm->message), fmt, ap);
    va_end(ap);
    vm_set_state(vm, VM_FAILED);
}

void vm_fail_error(struct vm *vm, const struct sp_error *err, enum vm_reason otherwise, const char *step) {
    char text[200];
    enum vm_reason reason = otherwise;
    if (err->code == SP_E_NO_SPACE)
        reason = VM_REASON_HOST_DISK_FULL;
    else if (err->code == SP_E_PROTOCOL || err->code == SP_E_GUEST)
        reason = VM_REASON_GUEST_PROTOCOL;
    vm_fail(vm, reason, "%s: %s", step, sp_error_format(err, text, sizeof(text)));
}

void vm_timing(struct vm *vm, const char *step, uint64_t *since_ns) {
    uint64_t now = clock_monotonic_ns();
    bool operates = vm->operation.request.kind != REQUEST_NONE && !vm->operation.answered;
    struct timings *t = operates ? &vm->operation.timings : &vm->timings;
    if (t->n < VM_TIMINGS_MAX) {
        t->list[t->n].step = step;
        t->list[t->n++].us = (now - *since_ns) / 1000;
    }
    *since_ns = now;
}

json_t *vm_timings_json(const struct timings *timings) {
    json_t *json = json_object();
    for (size_t i = 0; i < timings->n; i++) {
        uint64_t eighths = (timings->list[i].us + 62) / 125; /* of a millisecond: that prints short */
        (void)json_object_set_new(json, timings->list[i].step, json_real((double)eighths / 8));
    }
    return json;
}

void vm_activity_tick(struct vm *vm) {
    struct activity *a = &vm->activity;
    unsigned streams = client_streams(vm);
    if (streams != a->streams || a->opened != a->opened_seen) {
        a->streams = streams;
        a->opened_seen = a->opened;
        a->active_realtime_ns = clock_realtime_ns();
        a->untold = true;
    }
    if (!a->untold || !deadline_passed(a->next))
        return;
    a->untold = false;
    a->next = deadline_in_ms(ACTIVITY_MS);
    control_status_changed(vm);
}

char *vm_status_json(const struct vm *vm) {
    _cleanup_json_ json_t *status = NULL;
    char vmm[sizeof(vm->config.qemu_version) + 8];

    (void)text_printf(vmm, sizeof(vmm), "qemu %s", vm->config.qemu_version);
    status = json_pack("{s:s, s:s, s:s, s:s, s:b, s:I, s:i, s:s, s:s, s:s, s:I, s:I, s:o}", "event", "status", "id",
                       vm->config.id, "mode", vm_mode_name(vm->config.mode), "state", vm_state_name(vm->state), "ready",
                       (int)vm_is_ready(vm), "generation", (json_int_t)vm->config.generation, "vmm_pid",
                       (int)(vm->vmm_ended ? 0 : vm->vmm_pid), "accelerator", vm->config.accelerator, "kernel",
                       vm->config.kernel, "vmm", vmm, "streams", (json_int_t)vm->activity.streams, "active_realtime_ns",
                       (json_int_t)vm->activity.active_realtime_ns, "timings", vm_timings_json(&vm->timings));
    if (vm->snapshot[0])
        (void)json_object_set_new(status, "snapshot", json_string(vm->snapshot));
    if (vm->reason != VM_REASON_NONE)
        (void)json_object_set_new(status, "error",
                                  json_pack("{s:s, s:s}", "code", vm_reason_name(vm->reason), "message", vm->message));
    if (vm->stall != STALL_NONE)
        (void)json_object_set_new(status, "stalled", json_string(vm_reason_name(VM_REASON_HOST_DISK_FULL)));
    return json_print(status);
}
