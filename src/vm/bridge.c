/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest channel's descriptor: bytes between the VMM's socket and the channel engine, and its events to whom the
 * stream belongs. Everything the guest sends is hostile; the engine bounds and checks it, a violation fails the VM.
 */
#include "base/random.h"
#include "vm/vm.h"
#include <errno.h>
#include <sys/socket.h>

#define INBOX_SIZE ((size_t)CHANNEL_MAX_FRAME * 2)
#define READ_ROUNDS 4 /* so many buffers a turn, then the others */
#define MUTE_MS 1000  /* a VMM that closed the channel must be dead by then */

void bridge_connect(struct vm *vm) {
    uint64_t epoch = 0;
    while ((uint32_t)epoch == 0)
        random_bytes(&epoch, sizeof(epoch));
    vm->connected = vm->quiet = vm->hold = false;
    vm->unread.len = 0;
    /* The image was made at a frame boundary (QUIESCED), or the guest has just booted. */
    channel_connect(&vm->channel, epoch, vm->config.generation, false);
    bridge_flush(vm);
}

void bridge_disconnect(struct vm *vm) {
    client_close_all(vm);
    call_cancel(vm, &vm->ping);
    channel_disconnect(&vm->channel);
    vm->connected = false;
    vm->unread.len = 0;
}

void bridge_hold(struct vm *vm) {
    vm->hold = true;
    vm->hold_left = vm->channel.out.len;
}

void bridge_release(struct vm *vm) {
    vm->hold = false;
    bridge_flush(vm);
}

/* What may be written now. */
static size_t sendable(const struct vm *vm) {
    return vm->hold && vm->hold_left < vm->channel.out.len ? vm->hold_left : vm->channel.out.len;
}

void bridge_closed(struct vm *vm) {
    vm->guest_closed = true;
    if (!vm->vmm_mute.at_ns)
        vm->vmm_mute = deadline_in_ms(MUTE_MS);
}

static void bridge_event(struct vm *vm, const struct channel_event *ev) {
    struct stream_user *user = ev->user;
    if (ev->type == CHANNEL_EV_CONNECTED) {
        vm->connected = true;
        return;
    }
    if (!user)
        return;
    switch (user->kind) {
    case STREAM_OF_CLIENT:
        client_event(vm, (struct client *)user, ev);
        break;
    case STREAM_OF_CALL:
        call_event(vm, (struct agent_call *)user, ev);
        break;
    }
}

/* Runs the engine over what was read; what it cannot take now stays in `unread` until `out` has room. */
static void bridge_feed(struct vm *vm) {
    struct channel_event ev;
    int r = 0;
    while (vm->unread.len > 0 && (r = channel_next(&vm->channel, &vm->unread, &ev)) > 0)
        bridge_event(vm, &ev);
    if (r < 0)
        vm_fail(vm, VM_REASON_GUEST_PROTOCOL, "the guest broke the channel's framing");
}

bool bridge_wants_room(const struct vm *vm) {
    return sendable(vm) > 0;
}

bool bridge_wants_input(const struct vm *vm) {
    return !vm->guest_closed && vm->unread.len == 0 && channel_wants_input(&vm->channel);
}

void bridge_readable(struct vm *vm) {
    for (int rounds = 0; rounds < READ_ROUNDS && vm->state != VM_FAILED && bridge_wants_input(vm); rounds++) {
        ssize_t n = recv(vm->vmm->fd_guest, vm->inbox, INBOX_SIZE, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            bridge_closed(vm);
            return;
        }
        vm->unread = (struct view){.p = vm->inbox, .len = (size_t)n};
        bridge_feed(vm);
    }
}

void bridge_flush(struct vm *vm) {
    if (!vm->vmm || vm->guest_closed || vm->state == VM_FAILED)
        return;
    for (;;) {
        while (sendable(vm) > 0) {
            ssize_t n = send(vm->vmm->fd_guest, vm->channel.out.data, sendable(vm), MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n < 0 && (errno == EAGAIN || errno == EINTR))
                break;
            if (n < 0) {
                bridge_closed(vm);
                return;
            }
            channel_sent(&vm->channel, (size_t)n);
            if (vm->hold)
                vm->hold_left -= (size_t)n;
        }
        if (vm->unread.len == 0 || !channel_wants_input(&vm->channel))
            return;
        bridge_feed(vm); /* there is room again */
        if (sendable(vm) == 0)
            return;
    }
}
