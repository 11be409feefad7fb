/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lifecycle requests, one at a time: pause, resume, identify; load and snapshot have files of their own. Whatever fails
 * while the machine stands still ends with it running again, or in `failed` with the reason: never half-way.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text.h"
#include "vm/step.h"
#include <stdarg.h>
#include <string.h>

#define OPERATION_MS 120000

/* --- the answer ------------------------------------------------------------------------------------------------------- */

bool operate_refuse(struct vm *vm, const char *code, const char *fmt, ...) {
    struct operation *o = &vm->operation;
    va_list ap;
    if (o->code)
        return false;
    o->code = code;
    va_start(ap, fmt);
    (void)vsnprintf(o->message, sizeof(o->message), fmt, ap);
    va_end(ap);
    return false;
}

void operate_answer(struct vm *vm) {
    struct operation *o = &vm->operation;
    const char *code = vm->state == VM_FAILED ? vm_reason_name(vm->reason) : o->code;
    const char *message = vm->state == VM_FAILED ? vm->message : o->message;
    json_t *done;
    if (o->answered)
        return;
    o->answered = true;
    done = json_pack("{s:s, s:I, s:b, s:o}", "event", "done", "seq", (json_int_t)o->request.seq, "ok", code == NULL,
                     "timings", vm_timings_json(&o->timings));
    if (code)
        (void)json_object_set_new(done, "error", json_pack("{s:s, s:s}", "code", code, "message", message));
    else if (o->result)
        (void)json_object_update(done, o->result);
    if (code)
        log_event(LOG_L_WARN, "operation_refused", "vm_id", vm->config.id, "code", code, "message", message, NULL);
    control_tell(vm, o->client, done);
}

/* --- to a stand and back ------------------------------------------------------------------------------------------------- */

/* An IDENTITY ends the silence. A host disk that is full meanwhile is waited for: the machine is told to go on from time
 * to time (process.c). */
static bool wake_guest(struct vm *vm, const char *step) {
    struct deadline d = step_deadline(vm, IDENTITY_MS);
    call_begin_identity(vm, &vm->call);
    call_send(vm, &vm->call, d);
    bridge_release(vm);
    while (call_is_pending(&vm->call) && !step_is_over(vm)) {
        if (vm->stall != STALL_NONE)
            vm->call.deadline = deadline_in_ms(IDENTITY_MS);
        vm_turn(vm, NULL);
    }
    call_cancel(vm, &vm->call);
    if (step_is_over(vm))
        return false;
    if (vm->call.state != CALL_DONE || vm->call.answer_type != REC_IDENTIFIED) {
        vm_fail_error(vm, &vm->call.error, VM_REASON_GUEST_SILENT, step);
        return false;
    }
    vm->quiet = false;
    return true;
}

/* Commands freeze, the rest of the file system is written out when that is asked for, then silence. One that does not come leaves the guest in between; an IDENTITY gets it out of there. */
static bool quiet_guest(struct vm *vm, bool sync) {
    struct sp_error err;
    vm->quiet = true;
    call_begin(&vm->call, REC_QUIESCE);
    (void)record_put_u64(&vm->call.request, TAG_FLAGS, QUIESCE_KEEP | (sync ? QUIESCE_SYNC : 0));
    vm->call.holds = true;
    if (step_ask_quietly(vm, step_deadline(vm, FREEZE_MS)) && vm->call.answer_type == REC_QUIESCED)
        return true;
    if (step_is_over(vm))
        return false;
    err = vm->call.error;
    (void)operate_refuse(vm, "guest_busy", "%s", err.text);
    if (err.code == SP_E_GUEST) { /* it said no and goes on by itself */
        bridge_release(vm);
        vm->quiet = false;
        return false;
    }
    (void)wake_guest(vm, "commands that did not freeze");
    return false;
}

bool operate_stand(struct vm *vm, bool sync, uint64_t *since) {
    struct sp_error err = {0};
    if (!quiet_guest(vm, sync))
        return false;
    vm_timing(vm, "quiesce_ms", since);
    if (!step_vmm(vm, vm->driver->stop(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED, "stop"))
        return false;
    vm->standing = true;
    vmm_stall_clear(vm);
    vm_timing(vm, "stop_ms", since);
    return true;
}

bool operate_go_on(struct vm *vm, uint64_t *since) {
    struct sp_error err = {0};
    vm->standing = false;
    if (!step_vmm(vm, vm->driver->cont(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED, "cont"))
        return false;
    vm->snapshot[0] = '\0';
    vm_timing(vm, "cont_ms", since);
    if (!wake_guest(vm, "identity"))
        return false;
    vm_timing(vm, "identity_ms", since);
    return true;
}

/* --- requests ------------------------------------------------------------------------------------------------------------- */

static bool operate_pause(struct vm *vm) {
    uint64_t since = clock_monotonic_ns();
    if (vm->state == VM_PAUSED)
        return true;
    vm_set_state(vm, VM_PAUSING);
    if (operate_stand(vm, false, &since)) {
        vm_set_state(vm, VM_PAUSED);
        return true;
    }
    if (!step_is_over(vm))
        vm_set_state(vm, VM_RUNNING);
    return false;
}

static bool operate_resume(struct vm *vm) {
    uint64_t since = clock_monotonic_ns();
    if (vm->state == VM_RUNNING)
        return true;
    if (!operate_go_on(vm, &since))
        return false;
    vm_set_state(vm, VM_RUNNING);
    return true;
}

static bool operate_identify(struct vm *vm) {
    const struct request *r = &vm->operation.request;
    uint64_t since = clock_monotonic_ns();
    struct sp_error err = {0};
    if (vm_config_identity(&vm->config, r->body, &err) < 0)
        return operate_refuse(vm, "invalid", "%s: %s", err.field, err.text);
    (void)text_copy(vm->config.id, sizeof(vm->config.id), r->id);
    vm->config.generation = r->generation;
    if (r->session_retention_ms > 0)
        vm->config.session_retention_ms = r->session_retention_ms;
    if (!operate_go_on(vm, &since))
        return false;
    vm_set_state(vm, VM_RUNNING);
    return true;
}

static bool operate_committed(struct vm *vm) {
    track_committed(vm);
    return true;
}

#define IN(state) (1u << (state))
static const struct {
    enum request_kind kind;
    unsigned states;
    bool moves; /* needs a machine that no host disk has stopped */
    bool (*run)(struct vm *vm);
} operations[] = {
    {REQUEST_PAUSE, IN(VM_RUNNING) | IN(VM_PAUSED), true, operate_pause},
    {REQUEST_RESUME, IN(VM_RUNNING) | IN(VM_PAUSED), false, operate_resume},
    {REQUEST_IDENTIFY, IN(VM_WARM), false, operate_identify},
    {REQUEST_LOAD, IN(VM_BLANK), false, operate_load},
    {REQUEST_SNAPSHOT, IN(VM_RUNNING) | IN(VM_PAUSED), true, operate_snapshot},
    {REQUEST_SNAPSHOT_COMMITTED, IN(VM_RUNNING) | IN(VM_PAUSED), false, operate_committed},
};

static void run(struct vm *vm) {
    for (size_t i = 0; i < ARRAY_SIZE(operations); i++) {
        if (operations[i].kind != vm->operation.request.kind)
            continue;
        if (!(operations[i].states & IN(vm->state)))
            (void)operate_refuse(vm, "conflict", "the VM is %s", vm_state_name(vm->state));
        else if (operations[i].moves && vm->stall != STALL_NONE)
            (void)operate_refuse(vm, vm_reason_name(VM_REASON_HOST_DISK_FULL), "the host's disk refused a write");
        else if (!operations[i].run(vm))
            (void)operate_refuse(vm, "interrupted", "the VM is told to end");
        return;
    }
}

void operate(struct vm *vm) {
    struct operation *o = &vm->operation;
    vm->deadline = deadline_in_ms(OPERATION_MS);
    run(vm);
    /* Before the answer: whoever gets it takes the files over, and nobody else may be able to write to them. */
    for (size_t i = 0; i < REQUEST_FDS_MAX; i++)
        o->fds[i] = close_fd(o->fds[i]);
    operate_answer(vm);
    json_decref(o->result);
    request_done(&o->request);
    *o = (struct operation){.fds = {-1, -1, -1}};
}
