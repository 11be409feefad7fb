/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ways in which a kernel boots. A template boot: RAM is the shared file itself; boot, program, probe, then a quiet
 * guest is saved and the VMM ends. A boot: a sandbox begins anew on the disk of a snapshot that holds nothing else; RAM is
 * a private view of an empty file, so that what its next snapshot has to hold is told as it is of a clone.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "vm/step.h"
#include <string.h>
#include <sys/wait.h>

#define SETTLE_MS 10000
#define SETTLE_PAUSE_MS 100
#define QUIESCE_MS 60000 /* a whole file system may have to be written */
#define SYNC_MS 50000    /* so long for that */
#define END_MS 10000
#define BOOT_MIN_MS 20000 /* watchdog of one attempt to boot: two fifths of the deadline, within these */
#define BOOT_MAX_MS 60000
#define BOOT_ATTEMPTS 3
#define PROBE_PAUSE_MS 250

/* The watchdog of one attempt. */
static struct deadline attempt_deadline(const struct vm *vm) {
    uint64_t ms = vm->config.deadline_ms * 2 / 5;
    return step_deadline(vm, ms < BOOT_MIN_MS ? BOOT_MIN_MS : ms > BOOT_MAX_MS ? BOOT_MAX_MS : ms);
}

/* Every clone inherits the timer this boot ended up with: worth another boot while there is plenty of time. */
static bool boot_is_good(struct vm *vm, uint64_t took_ns) {
    bool apic = true;
    (void)vm->driver->timer_is_apic(vm->vmm, step_deadline(vm, QMP_MS), &apic, NULL); /* unknown counts as good */
    return apic || clock_monotonic_ns() + 4 * took_ns > vm->deadline.at_ns;
}

/* A few attempts, by machine reset: an emulated machine on a busy host may hang in clock calibration, or give its APIC
 * timer up in it. */
static bool boot(struct vm *vm, uint64_t *since) {
    struct sp_error err = {0};
    vm_set_state(vm, VM_BOOTING);
    for (int attempt = 1;; attempt++) {
        bool answered = step_hello(vm, attempt_deadline(vm));
        if (step_is_over(vm))
            return false;
        if (answered && (attempt == BOOT_ATTEMPTS || boot_is_good(vm, clock_monotonic_ns() - *since)))
            break;
        if (!answered && (attempt == BOOT_ATTEMPTS || deadline_passed(vm->deadline))) {
            step_fail_silent(vm, "boot");
            return false;
        }
        log_event(LOG_L_WARN, "boot_retried", "vm_id", vm->config.id, "reason", answered ? "timer" : "silent", NULL);
        if (!step_vmm(vm, vm->driver->reset(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED,
                      "reset"))
            return false;
        vm_timing(vm, "boot_lost_ms", since);
    }
    vm_timing(vm, "boot_ms", since);
    return true;
}

static void begin_start_command(struct vm *vm) {
    call_begin(&vm->call, REC_ATTACH);
    (void)record_put_string(&vm->call.request, TAG_PROCESS_ID, "template-start");
    (void)record_put_u64(&vm->call.request, TAG_MAY_START, 1);
    step_put_command(&vm->call.request, &vm->config.start);
    (void)record_put_u64(&vm->call.request, TAG_ON_DISCONNECT, DISCONNECT_KEEP);
}

/* The template's program, left running in the image; that it started is all that is asked here, the probe asks more. */
static bool start_command(struct vm *vm, uint64_t *since) {
    if (!vm->config.start.argv)
        return true;
    begin_start_command(vm);
    if (!step_ask(vm, REC_STARTED, step_deadline(vm, START_MS), "start command"))
        return false;
    vm_timing(vm, "start_ms", since);
    return true;
}

/* timeout_ms bounds one run of the probe and all of them together. */
static bool probe(struct vm *vm, uint64_t *since) {
    struct deadline over = deadline_in_ms(vm->config.probe.timeout_ms);
    uint64_t code = 0;
    if (!vm->config.probe.argv)
        return true;
    while (step_run(vm, &vm->config.probe, "probe", &code)) {
        struct deadline pause = deadline_in_ms(PROBE_PAUSE_MS);
        if (code == 0) {
            vm_timing(vm, "probe_ms", since);
            return true;
        }
        while (!deadline_passed(pause) && !step_is_over(vm))
            vm_turn(vm, &pause);
        if (!step_is_over(vm) && (deadline_passed(over) || deadline_passed(vm->deadline)))
            vm_fail(vm, VM_REASON_PROBE_FAILED, "the readiness probe still exits with %llu", (unsigned long long)code);
        if (step_is_over(vm))
            break;
    }
    return false;
}

/* A kernel picks its final clock a second or two after boot. Saved before that, every clone would do it again; a guest
 * that takes longer is saved as it is. */
static bool settle(struct vm *vm, uint64_t *since) {
    struct deadline enough = step_deadline(vm, SETTLE_MS);
    while (!deadline_passed(enough)) {
        struct deadline pause = deadline_in_ms(SETTLE_PAUSE_MS);
        char clocksource[64];
        call_begin(&vm->call, REC_PING);
        (void)record_put_u64(&vm->call.request, TAG_FLAGS, PING_FULL);
        if (!step_ask(vm, REC_PONG, step_deadline(vm, START_MS), "settle"))
            return false;
        struct record rec = call_answer(&vm->call);
        if (record_get_string(&rec, TAG_CLOCKSOURCE, clocksource, sizeof(clocksource)) <= 0 ||
            strcmp(clocksource, "tsc-early") != 0)
            break;
        while (!deadline_passed(pause) && !step_is_over(vm))
            vm_turn(vm, &pause);
        if (step_is_over(vm))
            return false;
    }
    vm_timing(vm, "settle_ms", since);
    return true;
}

/* Quiet guest, stopped machine, device state; RAM is in its file already. Then the VMM ends by itself, which flushes. */
static bool save(struct vm *vm, uint64_t *since) {
    struct sp_error err = {0};
    vm_set_state(vm, VM_SAVING);
    call_begin(&vm->call, REC_QUIESCE);
    (void)record_put_u64(&vm->call.request, TAG_FLAGS, QUIESCE_SYNC);
    (void)record_put_u64(&vm->call.request, TAG_TIMEOUT_MS, SYNC_MS);
    if (!step_ask(vm, REC_QUIESCED, step_deadline(vm, QUIESCE_MS), "quiesce"))
        return false;
    bridge_disconnect(vm);
    vm_timing(vm, "quiesce_ms", since);
    if (!step_vmm(vm, vm->driver->stop(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED, "stop"))
        return false;
    vm_timing(vm, "stop_ms", since);
    if (!step_vmm(vm, vm->driver->save(vm->vmm, vm->config.fd_devices, step_deadline(vm, SAVE_MS), &err), &err,
                  VM_REASON_VMM_FAILED, "saving the device state"))
        return false;
    vm->config.fd_devices = close_fd(vm->config.fd_devices);
    vm_timing(vm, "save_ms", since);
    if (!step_vmm(vm, vm->driver->quit(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED, "quit"))
        return false;
    if (!vmm_wait_end(vm, step_deadline(vm, END_MS)) || !WIFEXITED(vm->vmm_status) ||
        WEXITSTATUS(vm->vmm_status) != 0) {
        vm_fail(vm, VM_REASON_VMM_FAILED, "the VMM did not end cleanly after the save: %s", vm->log.last);
        return false;
    }
    vm_timing(vm, "quit_ms", since);
    return true;
}

void run_template_boot(struct vm *vm) {
    uint64_t since = vm->started_ns;
    if (!load_vmm(vm, VMM_BOOT, &since) || !boot(vm, &since) || !step_identify(vm, &since))
        return;
    vm_set_state(vm, VM_PROBING);
    if (!start_command(vm, &since) || !probe(vm, &since) || !step_warm(vm, &since) || !settle(vm, &since) ||
        !save(vm, &since))
        return;
    vm_timing(vm, "total_ms", &(uint64_t){vm->started_ns});
    vm_set_state(vm, VM_SAVED);
}

/* --- a boot of a sandbox -------------------------------------------------------------------------------------------------- */

/* The template's program again, when it can be started: what the sandbox has made of its files is its own affair, and no
 * reason to keep it from them. */
static bool restart_command(struct vm *vm, uint64_t *since) {
    if (!vm->config.start.argv)
        return true;
    begin_start_command(vm);
    if (step_ask_quietly(vm, step_deadline(vm, START_MS)))
        vm_timing(vm, "start_ms", since);
    else if (!step_is_over(vm))
        log_event(LOG_L_WARN, "start_command_failed", "vm_id", vm->config.id, "reason", vm->call.error.text, NULL);
    return !step_is_over(vm);
}

void run_boot(struct vm *vm) {
    uint64_t since = vm->started_ns;
    if (!load_is_read_only(vm->config.fd_memory)) {
        vm_fail(vm, VM_REASON_INTERNAL, "the memory to boot in is writable");
        return;
    }
    if (!load_vmm(vm, VMM_BOOT_PRIVATE, &since) || !boot(vm, &since) || !step_identify(vm, &since) ||
        !restart_command(vm, &since))
        return;
    vm_timing(vm, "total_ms", &(uint64_t){vm->started_ns});
    vm_set_state(vm, VM_RUNNING);
}
