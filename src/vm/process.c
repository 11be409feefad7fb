/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The VMM as a child process: its end and the reason of it, its last words, its events, and a VM that the host's disk
 * brought to a stand. The driver speaks with the VMM; here is decided what an answer, or none, means for the VM.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text.h"
#include "vm/vm.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STALL_RETRY_MS 1000 /* between two attempts to go on after a host disk error */
#define STALL_OVER_MS 500   /* without a new error: the disk works again */
#define CONT_MS 2000
#define CLOCK_MS 30000

/* --- its end ----------------------------------------------------------------------------------------------------------- */

bool vmm_reap(struct vm *vm) {
    pid_t r;
    if (vm->vmm_ended || vm->vmm_pid <= 0)
        return true;
    do
        r = waitpid(vm->vmm_pid, &vm->vmm_status, WNOHANG | __WALL);
    while (r < 0 && errno == EINTR);
    if (r == 0)
        return false;
    if (r < 0)
        vm->vmm_status = 0; /* not our child: nothing is known of it */
    vm->vmm_ended = true;
    vm->vmm_pidfd = close_fd(vm->vmm_pidfd);
    return true;
}

bool vmm_wait_end(struct vm *vm, struct deadline d) {
    while (!vmm_reap(vm)) {
        struct pollfd p = {.fd = vm->vmm_pidfd, .events = POLLIN};
        int r = poll(&p, 1, deadline_poll_ms(d));
        if (r == 0 || (r < 0 && errno != EINTR))
            return vmm_reap(vm);
    }
    return true;
}

void vmm_kill(struct vm *vm) {
    if (vmm_reap(vm))
        return;
    if (syscall(SYS_pidfd_send_signal, vm->vmm_pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        log_event(LOG_L_ERROR, "vmm_kill_failed", "vm_id", vm->config.id, "error", strerror(errno), NULL);
    /* A killed process may take a moment to give its memory back; one stuck in the kernel is the broker's to find. */
    if (!vmm_wait_end(vm, deadline_in_ms(10000)))
        log_event(LOG_L_ERROR, "vmm_does_not_die", "vm_id", vm->config.id, NULL);
}

void vmm_fail_dead(struct vm *vm) {
    int status = vm->vmm_status;
    if (vm->vmm && !vm->log_closed)
        vmm_log_read(vm);
    if (vm->vmm && !vm->control_closed) {
        (void)vm->driver->pump(vm->vmm, NULL);
        vmm_events_take(vm);
    }
    if (WIFSIGNALED(status))
        vm_fail(vm, VM_REASON_VMM_KILLED, "the VMM was killed by signal %d (SIG%s)", WTERMSIG(status),
                sigabbrev_np(WTERMSIG(status)) ? sigabbrev_np(WTERMSIG(status)) : "?");
    else if (WEXITSTATUS(status) == 0 && vm->shutdown_detail[0])
        vm_fail(vm, VM_REASON_VMM_FAILED, "the machine ended by itself (%s)", vm->shutdown_detail);
    else
        vm_fail(vm, VM_REASON_VMM_FAILED, "the VMM exited with %d%s%s", WEXITSTATUS(status),
                vm->log.last[0] ? ": " : "", vm->log.last);
}

/* --- its words ----------------------------------------------------------------------------------------------------------- */

static void log_line(struct vm *vm) {
    struct vmm_log *l = &vm->log;
    if (l->partial_len == 0)
        return;
    (void)text_escape(l->last, sizeof(l->last), l->partial, l->partial_len);
    l->partial_len = 0;
    log_event(LOG_L_WARN, "vmm_output", "vm_id", vm->config.id, "line", l->last, NULL);
}

void vmm_log_read(struct vm *vm) {
    struct vmm_log *l = &vm->log;
    char chunk[1024];
    for (int rounds = 0; rounds < 8; rounds++) {
        ssize_t n = read(vm->vmm->fd_log, chunk, sizeof(chunk));
        if (n == 0)
            vm->log_closed = true;
        if (n <= 0)
            break;
        for (ssize_t i = 0; i < n; i++) {
            if (chunk[i] == '\n')
                log_line(vm);
            else if (l->partial_len < sizeof(l->partial)) /* the rest of a long line is dropped */
                l->partial[l->partial_len++] = chunk[i];
        }
    }
    if (vm->log_closed)
        log_line(vm);
}

/* --- its events -------------------------------------------------------------------------------------------------------------- */

static void stall_set(struct vm *vm, enum stall stall, uint64_t ms) {
    bool changed = (vm->stall == STALL_NONE) != (stall == STALL_NONE);
    if (changed)
        log_event(LOG_L_WARN, stall == STALL_NONE ? "vm_goes_on" : "vm_stalled", "vm_id", vm->config.id, NULL);
    vm->stall = stall;
    vm->stall_until = ms > 0 ? deadline_in_ms(ms) : (struct deadline){0};
    if (changed)
        control_status_changed(vm);
}

static void stall_begin(struct vm *vm, const struct vmm_event *ev) {
    if (vm->stall == STALL_NONE) /* one line a stall: a burst of requests fails together */
        log_event(LOG_L_ERROR, "vm_disk_error", "vm_id", vm->config.id, "reason", ev->detail, NULL);
    if (!ev->stopped || vm->standing) /* what was refused while it was stopped is tried again by cont */
        return;
    if (vm->state == VM_RUNNING || vm->state == VM_PAUSING || vm->state == VM_PAUSED)
        stall_set(vm, STALL_STANDING, STALL_RETRY_MS);
    else
        vm_fail(vm, VM_REASON_HOST_DISK_FULL, "the host's disk refused a write: %s", ev->detail);
}

void vmm_events_take(struct vm *vm) {
    struct vmm_event ev;
    while (vm->driver->next_event(vm->vmm, &ev)) {
        switch (ev.kind) {
        case VMM_EVENT_SHUTDOWN:
            (void)text_copy(vm->shutdown_detail, sizeof(vm->shutdown_detail), ev.detail[0] ? ev.detail : "shutdown");
            break;
        case VMM_EVENT_PANIC:
            (void)text_copy(vm->shutdown_detail, sizeof(vm->shutdown_detail), "guest panic");
            break;
        case VMM_EVENT_IO_ERROR:
            stall_begin(vm, &ev);
            break;
        case VMM_EVENT_RESUMED:
            if (vm->stall == STALL_STANDING)
                stall_set(vm, STALL_TRYING, STALL_OVER_MS);
            break;
        case VMM_EVENT_RESET:
        case VMM_EVENT_STOPPED:
            break;
        }
    }
}

/* The clock stood still with the VM: the same identity again sets it. */
static void stall_set_clock(struct vm *vm) {
    call_cancel(vm, &vm->call); /* of an earlier attempt, which a new error cut short */
    call_begin_identity(vm, &vm->call);
    call_send(vm, &vm->call, deadline_in_ms(CLOCK_MS));
    stall_set(vm, STALL_CLOCK, 0);
}

void vmm_stall_clear(struct vm *vm) {
    stall_set(vm, STALL_NONE, 0);
}

void vmm_stall_tick(struct vm *vm) {
    struct sp_error err = {0};
    if ((vm->state != VM_RUNNING && vm->state != VM_PAUSING && vm->state != VM_PAUSED) || vm->standing)
        return;
    switch (vm->stall) {
    case STALL_NONE:
        break;
    case STALL_STANDING:
        if (!deadline_passed(vm->stall_until))
            break;
        vm->stall_until = deadline_in_ms(STALL_RETRY_MS); /* should no RESUMED come */
        if (vm->driver->cont(vm->vmm, deadline_in_ms(CONT_MS), &err) < 0)
            vm_fail_error(vm, &err, VM_REASON_VMM_FAILED, "going on after a disk error");
        else
            vmm_events_take(vm);
        break;
    case STALL_TRYING:
        if (deadline_passed(vm->stall_until) && vm->operation.request.kind == REQUEST_NONE)
            stall_set_clock(vm);
        break;
    case STALL_CLOCK:
        if (call_is_pending(&vm->call))
            break;
        if (vm->call.state == CALL_DONE)
            stall_set(vm, STALL_NONE, 0);
        else
            vm_fail_error(vm, &vm->call.error, VM_REASON_GUEST_SILENT, "setting the clock after a disk error");
        break;
    }
}
