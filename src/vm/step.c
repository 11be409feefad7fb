/* SPDX-License-Identifier: Apache-2.0 */
/* Single steps of a VM's life (step.h): a question to the VMM or to the guest, bounded, and what its failure means. */
#include "vm/step.h"
#include "base/cleanup.h"
#include <string.h>
#include <sys/wait.h>

#define WARM_MS 5000
#define WARM_RUNS 3

struct deadline step_deadline(const struct vm *vm, uint64_t ms) {
    struct deadline d = deadline_in_ms(ms);
    return d.at_ns < vm->deadline.at_ns ? d : vm->deadline;
}

bool step_is_over(const struct vm *vm) {
    return vm->state == VM_FAILED || vm->stop_requested;
}

void step_fail_silent(struct vm *vm, const char *step) {
    if (deadline_passed(vm->deadline))
        vm_fail(vm, VM_REASON_DEADLINE, "%s: not done within %llu ms", step,
                (unsigned long long)vm->config.deadline_ms);
    else
        vm_fail(vm, VM_REASON_GUEST_SILENT, "%s: the guest does not answer", step);
}

void step_pause(struct vm *vm, uint64_t ms) {
    struct deadline d = deadline_in_ms(ms);
    while (!deadline_passed(d) && !step_is_over(vm))
        vm_turn(vm, &d);
}

/* --- the VMM ----------------------------------------------------------------------------------------------------------- */

bool step_vmm(struct vm *vm, int r, const struct sp_error *err, enum vm_reason otherwise, const char *step) {
    if (vm->vmm)
        vmm_events_take(vm);
    if (r >= 0)
        return !step_is_over(vm);
    if (err->code != SP_E_TIMEOUT && vmm_wait_end(vm, deadline_in_ms(1000))) {
        if (otherwise == VM_REASON_SNAPSHOT_BROKEN && WIFEXITED(vm->vmm_status)) {
            if (!vm->log_closed)
                vmm_log_read(vm);
            vm_fail(vm, otherwise, "%s: the VMM exited with %d: %s", step, WEXITSTATUS(vm->vmm_status), vm->log.last);
        } else {
            vmm_fail_dead(vm);
        }
        return false;
    }
    vm_fail_error(vm, err, otherwise, step);
    return false;
}

/* --- the guest ------------------------------------------------------------------------------------------------------------ */

bool step_hello(struct vm *vm, struct deadline d) {
    bridge_connect(vm);
    while (!vm->connected && !step_is_over(vm) && !deadline_passed(d))
        vm_turn(vm, &d);
    return vm->connected && !step_is_over(vm);
}

bool step_ask_quietly(struct vm *vm, struct deadline d) {
    call_send(vm, &vm->call, d);
    while (call_is_pending(&vm->call) && !step_is_over(vm))
        vm_turn(vm, &d);
    call_cancel(vm, &vm->call);
    return vm->call.state == CALL_DONE && !step_is_over(vm);
}

bool step_ask(struct vm *vm, uint16_t want, struct deadline d, const char *step) {
    if (step_ask_quietly(vm, d)) {
        if (vm->call.answer_type == want)
            return true;
        vm_fail(vm, VM_REASON_GUEST_PROTOCOL, "%s: the agent answered with record %u", step, vm->call.answer_type);
    } else if (!step_is_over(vm)) {
        if (vm->call.error.code == SP_E_TIMEOUT)
            step_fail_silent(vm, step);
        else
            vm_fail_error(vm, &vm->call.error, VM_REASON_GUEST_PROTOCOL, step);
    }
    return false;
}

bool step_identify(struct vm *vm, uint64_t *since) {
    bool ok;
    vm_set_state(vm, VM_IDENTIFYING);
    call_begin_identity(vm, &vm->call);
    ok = step_ask(vm, REC_IDENTIFIED, step_deadline(vm, IDENTITY_MS), "identity");
    if (ok)
        vm_timing(vm, "identity_ms", since);
    return ok;
}

static void put_strings(struct buf *b, enum record_tag tag, char **strings) {
    for (; *strings; strings++)
        (void)record_put_string(b, tag, *strings);
}

void step_put_command(struct buf *b, const struct vm_command *c) {
    put_strings(b, TAG_ARGV, c->argv);
    put_strings(b, TAG_ENV, c->env);
    (void)record_put_string(b, TAG_USER, c->user);
    (void)record_put_string(b, TAG_CWD, c->cwd);
}

bool step_run(struct vm *vm, const struct vm_command *c, const char *what, uint64_t *ret_code) {
    call_begin(&vm->call, REC_PROBE);
    step_put_command(&vm->call.request, c);
    (void)record_put_u64(&vm->call.request, TAG_TIMEOUT_MS, c->timeout_ms);
    if (!step_ask(vm, REC_EXITED, step_deadline(vm, c->timeout_ms + START_MS), what))
        return false;
    struct record rec = call_answer(&vm->call);
    *ret_code = record_get_u64_or(&rec, TAG_SIGNAL, 0) ? 255 : record_get_u64_or(&rec, TAG_EXIT_CODE, 255);
    return true;
}

bool step_warm(struct vm *vm, uint64_t *since) {
    char *argv[] = {(char[]){"/bin/sh"}, (char[]){"-c"}, (char[]){"/bin/echo; exec /bin/true"}, NULL}, *env[] = {NULL};
    const struct vm_command c = {
        .argv = argv, .env = env, .user = (char[]){"root"}, .cwd = (char[]){"/"}, .timeout_ms = WARM_MS};
    uint64_t code;
    for (int i = 0; i < WARM_RUNS; i++)
        if (!step_run(vm, &c, "warm", &code))
            return false;
    vm_timing(vm, "warm_ms", since);
    return true;
}
