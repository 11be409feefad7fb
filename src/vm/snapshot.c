/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot of a running or paused VM, with the broker at the other end of the connection (spec/node-protocol.md §4):
 * memory is copied while the VM runs, then it stands still for what was written meanwhile and the device state, and
 * goes on. When that connection ends, or anything fails, before the last word, the VM is what it was.
 *
 * One of the disk alone copies nothing. What the guest holds of its files is in its memory, so the guest writes it out first:
 * once while it runs, and the little that came since while its commands stand still. Which pages were written stays noted
 * for the next one that holds memory.
 */
#include "base/cleanup.h"
#include "base/text.h"
#include "vm/step.h"
#include <string.h>

#define ROUNDS_MAX 4        /* of copying while it runs */
#define ROUND_ENOUGH 256    /* pages: fewer are worth no further round */
#define DEATH_MS 200        /* from memory that cannot be read to a process that can be reaped */
#define HANDSHAKE_MS 120000 /* the broker writes files back meanwhile */
#define SYNC_MS 60000       /* the guest its file system, while it runs */

struct job {
    int fd_memory, fd_devices;
    bool was_running;
    uint64_t pages;
    uint64_t stalled_since_ns, stall_us;
    uint64_t since;
};

/* A copy that failed. The memory of a VMM that has died reads as nothing, and its death says more. */
static bool failed(struct vm *vm, const struct sp_error *err) {
    if (err->code != SP_E_NO_SPACE && vmm_wait_end(vm, deadline_in_ms(DEATH_MS))) {
        vmm_fail_dead(vm);
        return false;
    }
    return operate_refuse(vm, err->code == SP_E_NO_SPACE ? "no_space" : "io", "%s", err->text);
}

static bool is_abandoned(const struct vm *vm) {
    return !control_is_there(vm, vm->operation.client);
}

/* Until the broker said so. */
static bool wait_for(struct vm *vm, const bool *flag) {
    struct deadline d = step_deadline(vm, HANDSHAKE_MS);
    while (!*flag && !step_is_over(vm) && !is_abandoned(vm) && !deadline_passed(d))
        vm_turn(vm, &d);
    if (step_is_over(vm))
        return false;
    if (!*flag)
        return operate_refuse(vm, "interrupted", "the connection of the snapshot ended");
    return true;
}

static void tell(struct vm *vm, const char *step, uint64_t pages) {
    control_tell(vm, vm->operation.client,
                 json_pack("{s:s, s:I, s:s, s:I}", "event", "snapshot", "seq", (json_int_t)vm->operation.request.seq,
                           "step", step, "pages", (json_int_t)pages));
}

/* While it runs, in rounds: each finds what was written during the one before. */
static bool copy_ahead(struct vm *vm, struct job *job, bool first) {
    for (int i = 0; i < ROUNDS_MAX; i++) {
        struct sp_error err = {0};
        uint64_t pages = 0;
        if (track_copy(vm, job->fd_memory, first && i == 0, &pages, &err) < 0)
            return failed(vm, &err);
        job->pages += pages;
        if (step_is_over(vm))
            return false;
        if (is_abandoned(vm))
            return operate_refuse(vm, "interrupted", "the connection of the snapshot ended");
        if (pages < ROUND_ENOUGH || !job->was_running)
            break;
    }
    return true;
}

/* Of one that holds the disk alone: the guest writes out what it has of it. */
static bool sync_ahead(struct vm *vm, struct job *job) {
    if (!job->was_running)
        return operate_refuse(vm, "conflict", "the VM is paused, and its guest cannot write out what it holds");
    call_begin(&vm->call, REC_SYNC);
    (void)record_put_u64(&vm->call.request, TAG_TIMEOUT_MS, SYNC_MS);
    if (step_ask_quietly(vm, step_deadline(vm, SYNC_MS + START_MS))) {
        vm_timing(vm, "sync_ms", &job->since);
        return true;
    }
    return step_is_over(vm) ? false : operate_refuse(vm, "guest_busy", "%s", vm->call.error.text);
}

static bool stand(struct vm *vm, struct job *job) {
    job->stalled_since_ns = job->since = clock_monotonic_ns();
    if (!job->was_running)
        return true;
    if (vm->operation.request.stop)
        vm_set_state(vm, VM_PAUSING);
    return operate_stand(vm, vm->operation.request.disk_alone, &job->since);
}

/* The broker clones the disk meanwhile. */
static bool hold_still(struct vm *vm, uint64_t pages) {
    tell(vm, "stopped", pages);
    return wait_for(vm, &vm->operation.may_go);
}

/* The device state, and the pages that were written last. What QEMU could not write is no reason to lose the VM. */
static bool save(struct vm *vm, struct job *job) {
    struct sp_error err = {0};
    uint64_t pages = 0;
    int r = vm->driver->save(vm->vmm, job->fd_devices, step_deadline(vm, SAVE_MS), &err);
    vmm_events_take(vm);
    if (r == -SP_E_VMM && !vmm_reap(vm))
        return operate_refuse(vm, "io", "the device state: %s", err.text);
    if (!step_vmm(vm, r, &err, VM_REASON_VMM_FAILED, "saving the device state"))
        return false;
    vm_timing(vm, "save_ms", &job->since);
    if (track_copy(vm, job->fd_memory, false, &pages, &err) < 0)
        return failed(vm, &err);
    job->pages += pages;
    vm_timing(vm, "copy_ms", &job->since);
    return hold_still(vm, pages);
}

/* Runs again what ran, also after a failure. */
static bool go_on(struct vm *vm, struct job *job) {
    if (step_is_over(vm) || !job->was_running)
        return !step_is_over(vm);
    if (vm->standing && !operate_go_on(vm, &job->since))
        return false;
    vm_set_state(vm, VM_RUNNING);
    return true;
}

static void finish(struct vm *vm, struct job *job) {
    job->stall_us = (clock_monotonic_ns() - job->stalled_since_ns) / 1000;
    vm->operation.result =
        json_pack("{s:I, s:I, s:I}", "pages", (json_int_t)job->pages, "ranges_file_bytes",
                  (json_int_t)job->pages * 4096, "stall_us", job->was_running ? (json_int_t)job->stall_us : 0);
}

static bool take_all(struct vm *vm, struct job *job) {
    if (!copy_ahead(vm, job, true))
        return false;
    vm_timing(vm, "ahead_ms", &job->since);
    tell(vm, "copied", job->pages);
    return wait_for(vm, &vm->operation.may_stop) && copy_ahead(vm, job, false) && stand(vm, job) && save(vm, job);
}

static bool take_disk(struct vm *vm, struct job *job) {
    if (!sync_ahead(vm, job))
        return false;
    tell(vm, "copied", 0);
    return wait_for(vm, &vm->operation.may_stop) && stand(vm, job) && hold_still(vm, 0);
}

bool operate_snapshot(struct vm *vm) {
    const struct operation *o = &vm->operation;
    struct job job = {.fd_memory = o->fds[0],
                      .fd_devices = o->fds[1],
                      .was_running = vm->state == VM_RUNNING,
                      .since = clock_monotonic_ns()};
    bool good = o->request.disk_alone ? take_disk(vm, &job) : take_all(vm, &job);
    if (!good) {
        (void)go_on(vm, &job);
        return false;
    }
    if (o->request.stop || !job.was_running) {
        finish(vm, &job);
        (void)text_copy(vm->snapshot, sizeof(vm->snapshot), o->request.snapshot);
        vm_set_state(vm, VM_PAUSED);
        control_status_changed(vm);
        return true;
    }
    good = go_on(vm, &job);
    finish(vm, &job);
    return good;
}
