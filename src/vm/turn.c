/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The poll loop of space-vm, one round at a time: collects the descriptors that matter now, waits, and hands each to its
 * file. Also where death is noticed: of the VMM by its pidfd, and of a connection that ends before the process does.
 */
#include "base/log.h"
#include "vm/vm.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define TICK_MS 100  /* resolution of our own timers, only while one is pending */
#define MUTE_MS 1000 /* a VMM that closed a connection must be dead by then */

struct round {
    struct pollfd fds[VM_POLL_MAX];
    void (*handlers[VM_POLL_MAX])(struct vm *vm, void *arg, short revents);
    void *args[VM_POLL_MAX];
    nfds_t n;
};

static void watch(struct round *round, int fd, short events, void (*handler)(struct vm *, void *, short), void *arg) {
    if (fd < 0)
        return;
    assert(round->n < VM_POLL_MAX);
    round->fds[round->n] = (struct pollfd){.fd = fd, .events = events};
    round->handlers[round->n] = handler;
    round->args[round->n] = arg;
    round->n++;
}

/* --- handlers ----------------------------------------------------------------------------------------------------------------- */

static void on_vmm_end(struct vm *vm, void *arg, short revents) {
    (void)arg;
    (void)revents;
    (void)vmm_reap(vm); /* judged at the end of the round */
}

static void on_vmm_control(struct vm *vm, void *arg, short revents) {
    struct sp_error err = {0};
    int r = vm->driver->pump(vm->vmm, &err);
    (void)arg;
    (void)revents;
    vmm_events_take(vm);
    if (r == -SP_E_GONE) {
        vm->control_closed = true;
        if (!vm->vmm_mute.at_ns)
            vm->vmm_mute = deadline_in_ms(MUTE_MS);
    } else if (r < 0) {
        vm_fail_error(vm, &err, VM_REASON_VMM_FAILED, "VMM control connection");
    }
}

static void on_guest(struct vm *vm, void *arg, short revents) {
    (void)arg;
    if (revents & POLLOUT)
        bridge_flush(vm);
    if (bridge_wants_input(vm))
        bridge_readable(vm);
    else if (revents & (POLLHUP | POLLERR))
        bridge_closed(vm); /* with input still waiting for room: there never will be */
    bridge_flush(vm);
}

static void on_console(struct vm *vm, void *arg, short revents) {
    (void)arg;
    (void)revents;
    console_read(vm);
}

static void on_log(struct vm *vm, void *arg, short revents) {
    (void)arg;
    (void)revents;
    vmm_log_read(vm);
}

static void on_signal(struct vm *vm, void *arg, short revents) {
    struct signalfd_siginfo info;
    (void)arg;
    (void)revents;
    if (read(vm->fd_signal, &info, sizeof(info)) == (ssize_t)sizeof(info))
        vm->stop_requested = true;
}

static void on_control_listener(struct vm *vm, void *arg, short revents) {
    (void)arg;
    (void)revents;
    control_accept(vm);
}

static void on_guest_listener(struct vm *vm, void *arg, short revents) {
    (void)arg;
    (void)revents;
    client_accept(vm);
}

static void on_control(struct vm *vm, void *arg, short revents) {
    struct control *c = arg;
    if (c->fd >= 0)
        control_ready(vm, c, revents);
}

static void on_client(struct vm *vm, void *arg, short revents) {
    struct client *c = arg;
    if (c->state != CLIENT_FREE)
        client_ready(vm, c, revents);
}

/* --- the round ------------------------------------------------------------------------------------------------------------------ */

static void collect_vmm(struct vm *vm, struct round *round) {
    short guest = bridge_wants_room(vm) ? POLLOUT : 0;
    if (!vm->vmm_ended)
        watch(round, vm->vmm_pidfd, POLLIN, on_vmm_end, NULL);
    if (!vm->vmm || vm->vmm_ended)
        return;
    if (vm->up && !vm->control_closed)
        watch(round, vm->vmm->fd_control, POLLIN, on_vmm_control, NULL);
    if (bridge_wants_input(vm))
        guest |= POLLIN;
    if (!vm->guest_closed)
        watch(round, vm->vmm->fd_guest, guest, on_guest, NULL);
    if (!vm->console_closed)
        watch(round, vm->vmm->fd_console, POLLIN, on_console, NULL);
    if (!vm->log_closed)
        watch(round, vm->vmm->fd_log, POLLIN, on_log, NULL);
}

static void collect(struct vm *vm, struct round *round) {
    round->n = 0;
    watch(round, vm->fd_signal, POLLIN, on_signal, NULL);
    watch(round, vm->config.fd_control, POLLIN, on_control_listener, NULL);
    watch(round, vm->config.fd_guest, POLLIN, on_guest_listener, NULL);
    collect_vmm(vm, round);
    for (size_t i = 0; i < VM_CONTROLS_MAX; i++)
        if (vm->controls[i].fd >= 0)
            watch(round, vm->controls[i].fd, control_poll_events(&vm->controls[i]), on_control, &vm->controls[i]);
    for (size_t i = 0; i < VM_CLIENTS_MAX; i++) {
        struct client *c = &vm->clients[(vm->next_client + i) % VM_CLIENTS_MAX];
        if (c->state != CLIENT_FREE)
            watch(round, c->fd, client_poll_events(vm, c), on_client, c);
    }
    vm->next_client = (vm->next_client + 1) % VM_CLIENTS_MAX;
}

static bool has_timer(const struct vm *vm) {
    if (call_is_pending(&vm->call) || call_is_pending(&vm->ping) || vm->vmm_mute.at_ns || vm->stall != STALL_NONE ||
        vm->activity.untold)
        return true;
    for (size_t i = 0; i < VM_CLIENTS_MAX; i++)
        if (client_has_timer(&vm->clients[i]))
            return true;
    return false;
}

static int wait_ms(const struct vm *vm, const struct deadline *d) {
    int own = has_timer(vm) ? TICK_MS : -1;
    int theirs = d ? deadline_poll_ms(*d) : -1;
    if (own < 0 || theirs < 0)
        return own < 0 ? theirs : own;
    return own < theirs ? own : theirs;
}

static void tick(struct vm *vm) {
    if (vm->vmm_mute.at_ns && !vm->vmm_ended && deadline_passed(vm->vmm_mute) && !vmm_reap(vm)) {
        log_event(LOG_L_ERROR, "vmm_mute", "vm_id", vm->config.id, NULL);
        vm_fail(vm, VM_REASON_VMM_FAILED, "the VMM closed a connection and did not end");
    }
    vmm_stall_tick(vm);
    call_tick(vm, &vm->call);
    call_tick(vm, &vm->ping);
    control_ping_tick(vm);
    vm_activity_tick(vm);
    for (size_t i = 0; i < VM_CLIENTS_MAX; i++)
        if (vm->clients[i].state != CLIENT_FREE)
            client_tick(vm, &vm->clients[i]);
    bridge_flush(vm);
}

/* Where an end is expected it is no failure. */
static void judge(struct vm *vm) {
    if (vm->vmm_ended && vm->state != VM_FAILED && vm->state != VM_SAVED && vm->state != VM_STOPPING &&
        vm->state != VM_SAVING)
        vmm_fail_dead(vm);
}

void vm_turn(struct vm *vm, const struct deadline *d) {
    static struct round round;
    int n;
    collect(vm, &round);
    n = poll(round.fds, round.n, wait_ms(vm, d));
    for (nfds_t i = 0; n > 0 && i < round.n; i++)
        if (round.fds[i].revents)
            round.handlers[i](vm, round.args[i], round.fds[i].revents);
    tick(vm);
    judge(vm);
}
