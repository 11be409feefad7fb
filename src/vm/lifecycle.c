/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From nothing to a running (or saved) VM and to its end, as straight-line code: each step has a deadline, a timing and
 * one reason when it fails. Waiting for the guest turns the poll loop, so control clients are served and the VMM's death
 * is noticed meanwhile. A step that returns false has failed the VM, or was interrupted by a stop request.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "vm/vm.h"
#include <string.h>
#include <sys/wait.h>

/* Bounds of single steps; the whole has the configuration's deadline as well. */
#define SPAWN_MS 15000
#define QMP_MS 30000
#define LOAD_MS 30000
#define HELLO_MS 20000    /* a restored agent */
#define IDENTITY_MS 30000 /* hooks of the image run in it */
#define START_MS 30000
#define SETTLE_MS 10000
#define SETTLE_PAUSE_MS 100
#define QUIESCE_MS 60000 /* a whole file system may have to be written */
#define SAVE_MS 30000
#define END_MS 10000
#define SHUTDOWN_MS 5000
#define BOOT_MIN_MS 20000 /* watchdog of one attempt to boot: two fifths of the deadline, within these */
#define BOOT_MAX_MS 60000
#define BOOT_ATTEMPTS 3
#define PROBE_PAUSE_MS 250
#define WARM_MS 5000
#define WARM_RUNS 3
#define SAVED_LINGER_MS 10000

static struct deadline step_deadline(const struct vm *vm, uint64_t ms) {
    struct deadline d = deadline_in_ms(ms);
    return d.at_ns < vm->deadline.at_ns ? d : vm->deadline;
}

static bool is_over(const struct vm *vm) {
    return vm->state == VM_FAILED || vm->stop_requested;
}

/* Silence of the guest: the step's own reason, unless the time for everything is up. */
static void fail_silent(struct vm *vm, const char *step) {
    if (deadline_passed(vm->deadline))
        vm_fail(vm, VM_REASON_DEADLINE, "%s: not done within %llu ms", step,
                (unsigned long long)vm->config.deadline_ms);
    else
        vm_fail(vm, VM_REASON_GUEST_SILENT, "%s: the guest does not answer", step);
}

/* --- the VMM ----------------------------------------------------------------------------------------------------------- */

/* Judges a driver call. When the VMM died of it, its death says more than the call's error. */
static bool vmm_step(struct vm *vm, int r, const struct sp_error *err, enum vm_reason otherwise, const char *step) {
    if (vm->vmm)
        vmm_events_take(vm);
    if (r >= 0)
        return !is_over(vm);
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

static bool vmm_start(struct vm *vm, enum vmm_purpose purpose, uint64_t *since) {
    const struct vm_config *c = &vm->config;
    struct sp_error err = {0};
    struct vmm_start start = {
        .machine =
            {
                .id = c->id,
                .binary = c->qemu,
                .version = c->qemu_version,
                .accelerator = c->accelerator,
                .cpu_model = c->cpu_model,
                .vm_dir = c->vm_dir,
                .vcpus = c->vcpus,
                .memory_mib = c->memory_mib,
                .acpi = c->acpi,
                .tsc_khz = c->tsc_khz,
            },
        .purpose = purpose,
        .fd_stub = c->fd_stub,
        .fd_tap = c->fd_tap,
    };
    if (!vmm_step(vm, vm->driver->start(&start, step_deadline(vm, SPAWN_MS), &vm->vmm, &err), &err,
                  VM_REASON_VMM_FAILED, "starting the VMM"))
        return false;
    /* The VMM has its own copies now; ours would keep the tap and the stub's socket alive after its death. */
    vm->config.fd_stub = close_fd(vm->config.fd_stub);
    vm->config.fd_tap = close_fd(vm->config.fd_tap);
    vm_timing(vm, "spawn_ms", since);
    if (!vmm_step(vm, vm->driver->wait_up(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED,
                  "waiting for the VMM"))
        return false;
    vm_timing(vm, "qmp_ms", since);
    return true;
}

/* --- the guest ------------------------------------------------------------------------------------------------------------ */

static bool guest_hello(struct vm *vm, struct deadline d) {
    bridge_connect(vm);
    while (!vm->connected && !is_over(vm) && !deadline_passed(d))
        vm_turn(vm, &d);
    return vm->connected && !is_over(vm);
}

/* Sends what call_begin() started and waits for the answer; false leaves the reason to the caller, see ask(). */
static bool ask_quietly(struct vm *vm, struct deadline d) {
    call_send(vm, &vm->call, d);
    while (call_is_pending(&vm->call) && !is_over(vm))
        vm_turn(vm, &d);
    call_cancel(vm, &vm->call);
    return vm->call.state == CALL_DONE && !is_over(vm);
}

static bool ask(struct vm *vm, uint16_t want, struct deadline d, const char *step) {
    if (ask_quietly(vm, d)) {
        if (vm->call.answer_type == want)
            return true;
        vm_fail(vm, VM_REASON_GUEST_PROTOCOL, "%s: the agent answered with record %u", step, vm->call.answer_type);
    } else if (!is_over(vm)) {
        if (vm->call.error.code == SP_E_TIMEOUT)
            fail_silent(vm, step);
        else
            vm_fail_error(vm, &vm->call.error, VM_REASON_GUEST_PROTOCOL, step);
    }
    return false;
}

static bool guest_identify(struct vm *vm, uint64_t *since) {
    bool ok;
    vm_set_state(vm, VM_IDENTIFYING);
    call_begin_identity(vm, &vm->call);
    ok = ask(vm, REC_IDENTIFIED, step_deadline(vm, IDENTITY_MS), "identity");
    if (ok)
        vm_timing(vm, "identity_ms", since);
    return ok;
}

/* --- clone ------------------------------------------------------------------------------------------------------------------- */

static void run_clone(struct vm *vm) {
    uint64_t since = vm->started_ns;
    struct sp_error err = {0};
    if (!vmm_start(vm, VMM_RESTORE, &since))
        return;
    vm_set_state(vm, VM_RESTORING);
    if (!vmm_step(vm, vm->driver->load(vm->vmm, vm->config.fd_devices, step_deadline(vm, LOAD_MS), &err), &err,
                  VM_REASON_SNAPSHOT_BROKEN, "loading the device state"))
        return;
    vm->config.fd_devices = close_fd(vm->config.fd_devices);
    vm_timing(vm, "load_ms", &since);
    if (!vmm_step(vm, vm->driver->cont(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED, "cont"))
        return;
    vm_timing(vm, "cont_ms", &since);
    if (!guest_hello(vm, step_deadline(vm, HELLO_MS))) {
        if (!is_over(vm))
            fail_silent(vm, "hello");
        return;
    }
    vm_timing(vm, "hello_ms", &since);
    if (!guest_identify(vm, &since))
        return;
    vm_timing(vm, "total_ms", &(uint64_t){vm->started_ns});
    vm_set_state(vm, VM_RUNNING);
}

/* --- template boot --------------------------------------------------------------------------------------------------------------- */

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
        bool answered = guest_hello(vm, attempt_deadline(vm));
        if (is_over(vm))
            return false;
        if (answered && (attempt == BOOT_ATTEMPTS || boot_is_good(vm, clock_monotonic_ns() - *since)))
            break;
        if (!answered && (attempt == BOOT_ATTEMPTS || deadline_passed(vm->deadline))) {
            fail_silent(vm, "boot");
            return false;
        }
        log_event(LOG_L_WARN, "boot_retried", "vm_id", vm->config.id, "reason", answered ? "timer" : "silent", NULL);
        if (!vmm_step(vm, vm->driver->reset(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED,
                      "reset"))
            return false;
        vm_timing(vm, "boot_lost_ms", since);
    }
    vm_timing(vm, "boot_ms", since);
    return true;
}

static void put_strings(struct buf *b, enum record_tag tag, char **strings) {
    for (; *strings; strings++)
        (void)record_put_string(b, tag, *strings);
}

static void put_command(struct buf *b, const struct vm_command *c) {
    put_strings(b, TAG_ARGV, c->argv);
    put_strings(b, TAG_ENV, c->env);
    (void)record_put_string(b, TAG_USER, c->user);
    (void)record_put_string(b, TAG_CWD, c->cwd);
}

/* The template's program, left running in the image; that it started is all that is asked here, the probe asks more. */
static bool start_command(struct vm *vm, uint64_t *since) {
    const struct vm_command *c = &vm->config.start;
    if (!c->argv)
        return true;
    call_begin(&vm->call, REC_ATTACH);
    (void)record_put_string(&vm->call.request, TAG_PROCESS_ID, "template-start");
    (void)record_put_u64(&vm->call.request, TAG_MAY_START, 1);
    put_command(&vm->call.request, c);
    (void)record_put_u64(&vm->call.request, TAG_ON_DISCONNECT, DISCONNECT_KEEP);
    if (!ask(vm, REC_STARTED, step_deadline(vm, START_MS), "start command"))
        return false;
    vm_timing(vm, "start_ms", since);
    return true;
}

/* Runs a command to its end, output dropped. */
static bool run_once(struct vm *vm, const struct vm_command *c, const char *what, uint64_t *ret_code) {
    call_begin(&vm->call, REC_PROBE);
    put_command(&vm->call.request, c);
    (void)record_put_u64(&vm->call.request, TAG_TIMEOUT_MS, c->timeout_ms);
    if (!ask(vm, REC_EXITED, step_deadline(vm, c->timeout_ms + START_MS), what))
        return false;
    struct record rec = call_answer(&vm->call);
    *ret_code = record_get_u64_or(&rec, TAG_SIGNAL, 0) ? 255 : record_get_u64_or(&rec, TAG_EXIT_CODE, 255);
    return true;
}

/* timeout_ms bounds one run of the probe and all of them together. */
static bool probe(struct vm *vm, uint64_t *since) {
    struct deadline over = deadline_in_ms(vm->config.probe.timeout_ms);
    uint64_t code = 0;
    if (!vm->config.probe.argv)
        return true;
    while (run_once(vm, &vm->config.probe, "probe", &code)) {
        struct deadline pause = deadline_in_ms(PROBE_PAUSE_MS);
        if (code == 0) {
            vm_timing(vm, "probe_ms", since);
            return true;
        }
        while (!deadline_passed(pause) && !is_over(vm))
            vm_turn(vm, &pause);
        if (!is_over(vm) && (deadline_passed(over) || deadline_passed(vm->deadline)))
            vm_fail(vm, VM_REASON_PROBE_FAILED, "the readiness probe still exits with %llu", (unsigned long long)code);
        if (is_over(vm))
            break;
    }
    return false;
}

/* The first command of a clone is quick when the image holds the shell, the loader and the C library in its page cache. A
 * template without a shell answers 127, which is as good. */
static bool warm(struct vm *vm, uint64_t *since) {
    char *argv[] = {(char[]){"/bin/sh"}, (char[]){"-c"}, (char[]){"/bin/echo; exec /bin/true"}, NULL}, *env[] = {NULL};
    const struct vm_command c = {
        .argv = argv, .env = env, .user = (char[]){"root"}, .cwd = (char[]){"/"}, .timeout_ms = WARM_MS};
    uint64_t code;
    for (int i = 0; i < WARM_RUNS; i++)
        if (!run_once(vm, &c, "warm", &code))
            return false;
    vm_timing(vm, "warm_ms", since);
    return true;
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
        if (!ask(vm, REC_PONG, step_deadline(vm, START_MS), "settle"))
            return false;
        struct record rec = call_answer(&vm->call);
        if (record_get_string(&rec, TAG_CLOCKSOURCE, clocksource, sizeof(clocksource)) <= 0 ||
            strcmp(clocksource, "tsc-early") != 0)
            break;
        while (!deadline_passed(pause) && !is_over(vm))
            vm_turn(vm, &pause);
        if (is_over(vm))
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
    if (!ask(vm, REC_QUIESCED, step_deadline(vm, QUIESCE_MS), "quiesce"))
        return false;
    bridge_disconnect(vm);
    vm_timing(vm, "quiesce_ms", since);
    if (!vmm_step(vm, vm->driver->stop(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED, "stop"))
        return false;
    vm_timing(vm, "stop_ms", since);
    if (!vmm_step(vm, vm->driver->save(vm->vmm, vm->config.fd_devices, step_deadline(vm, SAVE_MS), &err), &err,
                  VM_REASON_VMM_FAILED, "saving the device state"))
        return false;
    vm->config.fd_devices = close_fd(vm->config.fd_devices);
    vm_timing(vm, "save_ms", since);
    if (!vmm_step(vm, vm->driver->quit(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED, "quit"))
        return false;
    if (!vmm_wait_end(vm, step_deadline(vm, END_MS)) || !WIFEXITED(vm->vmm_status) ||
        WEXITSTATUS(vm->vmm_status) != 0) {
        vm_fail(vm, VM_REASON_VMM_FAILED, "the VMM did not end cleanly after the save: %s", vm->log.last);
        return false;
    }
    vm_timing(vm, "quit_ms", since);
    return true;
}

static void run_template_boot(struct vm *vm) {
    uint64_t since = vm->started_ns;
    if (!vmm_start(vm, VMM_BOOT, &since) || !boot(vm, &since) || !guest_identify(vm, &since))
        return;
    vm_set_state(vm, VM_PROBING);
    if (!start_command(vm, &since) || !probe(vm, &since) || !warm(vm, &since) || !settle(vm, &since) ||
        !save(vm, &since))
        return;
    vm_timing(vm, "total_ms", &(uint64_t){vm->started_ns});
    vm_set_state(vm, VM_SAVED);
}

/* --- the end ------------------------------------------------------------------------------------------------------------------------ */

/* The guest is asked first, then the VMM, then killed. */
static void stop(struct vm *vm) {
    bool polite = vm->state == VM_RUNNING && vm->stall == STALL_NONE;
    struct deadline d = deadline_in_ms(SHUTDOWN_MS);
    vm_set_state(vm, VM_STOPPING);
    vm->stop_requested = false; /* it is being served; a second one is not waited for */
    if (polite) {
        call_begin(&vm->call, REC_SHUTDOWN);
        if (ask_quietly(vm, d))
            while (!vm->vmm_ended && !deadline_passed(d) && !vm->stop_requested)
                vm_turn(vm, &d);
    }
    if (!vm->vmm_ended && vm->vmm && vm->driver->quit(vm->vmm, deadline_in_ms(1000), NULL) >= 0)
        (void)vmm_wait_end(vm, deadline_in_ms(2000));
    vmm_kill(vm);
}

int vm_run(struct vm *vm) {
    struct deadline linger;
    vm->deadline = deadline_in_ms(vm->config.deadline_ms);
    if (vm->config.mode == VM_MODE_CLONE)
        run_clone(vm);
    else
        run_template_boot(vm);
    while (!is_over(vm) && vm->state == VM_RUNNING)
        vm_turn(vm, NULL);
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
