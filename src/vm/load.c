/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a VMM comes to its files and a guest into it. A VMM is started without them and held (vmm/driver.h); a clone and a
 * boot go on at once, a blank waits for `load` and is then the same as a clone. Here, before the files, space-vm drops to
 * its system call filter: no guest has run, and what it still needs of the VMM's process has been opened.
 */
#include "base/cleanup.h"
#include "base/text.h"
#include "vm/step.h"
#include <fcntl.h>

static void close_files(struct vm *vm) {
    vm->config.fd_memory = close_fd(vm->config.fd_memory);
    vm->config.fd_disk = close_fd(vm->config.fd_disk);
}

static bool start_held(struct vm *vm, enum vmm_purpose purpose, uint64_t *since) {
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
    if (!step_vmm(vm, vm->driver->start(&start, step_deadline(vm, SPAWN_MS), &vm->vmm, &err), &err,
                  VM_REASON_VMM_FAILED, "starting the VMM"))
        return false;
    /* The VMM has its own copies now; ours would keep the tap and the stub's socket alive after its death. */
    vm->config.fd_stub = close_fd(vm->config.fd_stub);
    vm->config.fd_tap = close_fd(vm->config.fd_tap);
    vm_timing(vm, "spawn_ms", since);
    if (!step_vmm(vm, vm->driver->wait_held(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED,
                  "waiting for the VMM"))
        return false;
    vm_timing(vm, "held_ms", since);
    track_open(vm);
    if (vm_confine(&err) >= 0)
        return true;
    vm_fail_error(vm, &err, VM_REASON_INTERNAL, "confining space-vm");
    return false;
}

static bool give_files(struct vm *vm, uint64_t *since) {
    const struct vm_config *c = &vm->config;
    struct sp_error err = {0};
    int r = vm->driver->give_files(vm->vmm, c->fd_memory, c->fd_disk, step_deadline(vm, QMP_MS), &err);
    close_files(vm);
    if (!step_vmm(vm, r, &err, VM_REASON_VMM_FAILED, "giving the VMM its files") ||
        !step_vmm(vm, vm->driver->wait_up(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED,
                  "waiting for the VMM"))
        return false;
    vm->up = true;
    vm_timing(vm, "qmp_ms", since);
    return true;
}

bool load_vmm(struct vm *vm, enum vmm_purpose purpose, uint64_t *since) {
    return start_held(vm, purpose, since) && give_files(vm, since);
}

bool load_is_read_only(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) == O_RDONLY;
}

/* Device state, cont, HELLO: the guest goes on and waits to be told who it is. */
static bool restore(struct vm *vm, uint64_t *since) {
    struct sp_error err = {0};
    if (!step_vmm(vm, vm->driver->load(vm->vmm, vm->config.fd_devices, step_deadline(vm, LOAD_MS), &err), &err,
                  VM_REASON_SNAPSHOT_BROKEN, "loading the device state"))
        return false;
    vm->config.fd_devices = close_fd(vm->config.fd_devices);
    vm_timing(vm, "load_ms", since);
    if (!step_vmm(vm, vm->driver->cont(vm->vmm, step_deadline(vm, QMP_MS), &err), &err, VM_REASON_VMM_FAILED, "cont"))
        return false;
    vm_timing(vm, "cont_ms", since);
    if (!step_hello(vm, step_deadline(vm, HELLO_MS))) {
        if (!step_is_over(vm))
            step_fail_silent(vm, "hello");
        return false;
    }
    vm_timing(vm, "hello_ms", since);
    return step_identify(vm, since);
}

void run_clone(struct vm *vm) {
    uint64_t since = vm->started_ns;
    if (!load_is_read_only(vm->config.fd_memory)) {
        vm_fail(vm, VM_REASON_INTERNAL, "the snapshot's memory is writable");
        return;
    }
    if (!start_held(vm, VMM_RESTORE, &since))
        return;
    vm_set_state(vm, VM_RESTORING);
    if (!give_files(vm, &since) || !restore(vm, &since))
        return;
    vm_timing(vm, "total_ms", &(uint64_t){vm->started_ns});
    vm_set_state(vm, VM_RUNNING);
}

void run_blank(struct vm *vm) {
    uint64_t since = vm->started_ns;
    if (start_held(vm, VMM_RESTORE, &since))
        vm_set_state(vm, VM_BLANK);
}

/* --- load -------------------------------------------------------------------------------------------------------------- */

/* The blank becomes a clone: its configuration is whole from here on. */
static bool take_load(struct vm *vm) {
    struct operation *o = &vm->operation;
    struct sp_error err = {0};
    if (!load_is_read_only(o->fds[0]))
        return operate_refuse(vm, "invalid", "the snapshot's memory is writable");
    if (vm_config_load(&vm->config, o->request.body, &err) < 0)
        return operate_refuse(vm, "invalid", "%s: %s", err.field, err.text);
    if (o->request.id[0])
        (void)text_copy(vm->config.id, sizeof(vm->config.id), o->request.id);
    vm->config.mode = VM_MODE_CLONE;
    vm->config.fd_memory = TAKE_FD(o->fds[0]);
    vm->config.fd_disk = TAKE_FD(o->fds[1]);
    vm->config.fd_devices = TAKE_FD(o->fds[2]);
    return true;
}

/* Run once, so that what a first command needs is in its own memory, and put to sleep. */
static bool exercise(struct vm *vm, uint64_t *since) {
    if (!step_warm(vm, since) || !operate_stand(vm, false, since))
        return false;
    vm_set_state(vm, VM_WARM);
    return true;
}

bool operate_load(struct vm *vm) {
    uint64_t start = clock_monotonic_ns(), since = start;
    bool warm = vm->operation.request.warm;
    if (!take_load(vm))
        return false;
    operate_answer(vm); /* the rest is told by status alone */
    vm->deadline = deadline_in_ms(vm->config.deadline_ms);
    vm->timings.n = 0;
    vm_set_state(vm, VM_RESTORING);
    if (!give_files(vm, &since) || !restore(vm, &since) || (warm && !exercise(vm, &since))) {
        if (!step_is_over(vm))
            vm_fail(vm, VM_REASON_GUEST_SILENT, "warming up: %s", vm->operation.message);
        return false;
    }
    vm_timing(vm, "total_ms", &start);
    if (warm)
        control_status_changed(vm); /* with all of its timings */
    else
        vm_set_state(vm, VM_RUNNING);
    return true;
}
