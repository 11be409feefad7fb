/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From nothing to a VM and to its end, as straight-line code. Between, one poll loop serves, and takes one lifecycle
 * request at a time (operate.c), which is straight-line again.
 */
#include "base/log.h"
#include "vm/step.h"

#define SHUTDOWN_MS 5000
#define SAVED_LINGER_MS 10000

/* The guest is asked first, then the VMM, then killed. */
static void stop(struct vm *vm) {
    bool polite = vm->state == VM_RUNNING && vm->stall == STALL_NONE && !vm->standing;
    struct deadline d = deadline_in_ms(SHUTDOWN_MS);
    vm_set_state(vm, VM_STOPPING);
    vm->stop_requested = false; /* it is being served; a second one is not waited for */
    if (polite) {
        call_begin(&vm->call, REC_SHUTDOWN);
        if (step_ask_quietly(vm, d))
            while (!vm->vmm_ended && !deadline_passed(d) && !vm->stop_requested)
                vm_turn(vm, &d);
    }
    if (!vm->vmm_ended && vm->up && vm->driver->quit(vm->vmm, deadline_in_ms(1000), NULL) >= 0)
        (void)vmm_wait_end(vm, deadline_in_ms(2000));
    vmm_kill(vm);
}

/* States in which a VM stays and may be asked for another. */
static bool is_lasting(enum vm_state state) {
    return state == VM_BLANK || state == VM_WARM || state == VM_RUNNING || state == VM_PAUSED;
}

int vm_run(struct vm *vm) {
    struct deadline linger;
    vm->deadline = deadline_in_ms(vm->config.deadline_ms);
    switch (vm->config.mode) {
    case VM_MODE_CLONE:
        run_clone(vm);
        break;
    case VM_MODE_TEMPLATE_BOOT:
        run_template_boot(vm);
        break;
    case VM_MODE_BLANK:
        run_blank(vm);
        break;
    case VM_MODE_BOOT:
        run_boot(vm);
        break;
    }
    while (!step_is_over(vm) && is_lasting(vm->state)) {
        if (vm->operation.request.kind != REQUEST_NONE)
            operate(vm);
        else
            vm_turn(vm, NULL);
    }
    linger = deadline_in_ms(SAVED_LINGER_MS);
    while (vm->state == VM_SAVED && !vm->stop_requested && !vm->saved_seen && !deadline_passed(linger))
        vm_turn(vm, &linger);
    while (vm->state == VM_FAILED && !vm->stop_requested) /* kept for its reason until vm_stop */
        vm_turn(vm, NULL);
    if (vm->state != VM_FAILED && vm->state != VM_SAVED)
        stop(vm);
    log_event(LOG_L_INFO, "vm_exit", "vm_id", vm->config.id, "state", vm_state_name(vm->state), NULL);
    return 0;
}
