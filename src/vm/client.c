/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections on guest.sock: `CONNECT <port>\n`, then a byte stream into the guest (spec/guest-protocol.md §1). Each
 * side's slowness is the other's: the socket is read only as far as the guest gave credit, and the guest gets credit
 * back only for what the socket took, so a connection holds at most one window. Ends: end of file ↔ SHUTDOWN, abrupt
 * close ↔ RESET. Nothing here waits.
 */
#include "base/cleanup.h"
#include "base/text.h"
#include "vm/vm.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define LINE_MAX_BYTES 32 /* "CONNECT 4294967295\n" */
#define LINE_MS 5000      /* to send it */
#define OPEN_MS 10000     /* for the guest to accept */
#define FLUSH_MS 5000     /* to take what was left */
#define CHUNK 16384

static void client_release(struct client *c) {
    c->fd = close_fd(c->fd);
    buf_done(&c->out);
    *c = (struct client){.fd = -1};
}

/* The one place that changes a client's state. */
static void client_set_state(struct client *c, enum client_state state) {
    c->state = state;
    switch (state) {
    case CLIENT_FREE:
        client_release(c);
        break;
    case CLIENT_LINE:
        c->deadline = deadline_in_ms(LINE_MS);
        break;
    case CLIENT_OPENING:
        c->deadline = deadline_in_ms(OPEN_MS);
        break;
    case CLIENT_OPEN:
        c->deadline = (struct deadline){0};
        break;
    case CLIENT_FLUSHING:
        c->id = 0; /* the stream is gone */
        c->deadline = deadline_in_ms(FLUSH_MS);
        break;
    }
}

/* Gives up the stream, if there is one, and the connection. */
static void client_drop(struct vm *vm, struct client *c) {
    if (c->id)
        channel_reset(&vm->channel, c->id, CHANNEL_CANCELLED);
    client_set_state(c, CLIENT_FREE);
}

static void client_refuse(struct client *c, const char *code, const char *text) {
    char line[128];
    if (text_printf(line, sizeof(line), "ERR %s %s\n", code, text))
        (void)send(c->fd, line, strlen(line), MSG_DONTWAIT | MSG_NOSIGNAL);
    client_set_state(c, CLIENT_FREE);
}

void client_close_all(struct vm *vm) {
    for (size_t i = 0; i < VM_CLIENTS_MAX; i++)
        if (vm->clients[i].state != CLIENT_FREE)
            client_drop(vm, &vm->clients[i]);
}

void client_refuse_waiting(struct vm *vm) {
    for (size_t i = 0; i < VM_CLIENTS_MAX; i++)
        if (vm->clients[i].state == CLIENT_LINE)
            client_refuse(&vm->clients[i], "not_running", vm_state_name(vm->state));
}

unsigned client_streams(const struct vm *vm) {
    unsigned n = 0;
    for (size_t i = 0; i < VM_CLIENTS_MAX; i++)
        n += vm->clients[i].id != 0;
    return n;
}

void client_accept(struct vm *vm) {
    for (int rounds = 0; rounds < 16; rounds++) {
        struct client *c = NULL;
        int fd = accept4(vm->config.fd_guest, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        for (size_t i = 0; i < VM_CLIENTS_MAX && !c; i++)
            if (vm->clients[i].state == CLIENT_FREE)
                c = &vm->clients[i];
        if (!c) {
            static const char full[] = "ERR too_many_streams no room for another connection\n";
            (void)send(fd, full, sizeof(full) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
            (void)close(fd);
            continue;
        }
        *c = (struct client){.user.kind = STREAM_OF_CLIENT, .fd = fd};
        buf_init(&c->out, CHANNEL_MAX_WINDOW + 64);
        client_set_state(c, CLIENT_LINE);
        if (vm->state != VM_RUNNING)
            client_refuse(c, "not_running", vm_state_name(vm->state));
    }
}

/* --- the CONNECT line ---------------------------------------------------------------------------------------------------- */

/* Takes the line and not a byte after it. 1 with *ret_port, 0 not whole yet, -1 refuse. */
static int client_line(struct client *c, uint32_t *ret_port) {
    static const char lead[] = "CONNECT ";
    char line[LINE_MAX_BYTES + 1];
    uint64_t port = 0;
    char *end;
    ssize_t n = recv(c->fd, line, LINE_MAX_BYTES, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return -1;
    end = memchr(line, '\n', (size_t)n);
    if (!end)
        return n < LINE_MAX_BYTES ? 0 : -1;
    *end = '\0';
    if (!text_starts_with(line, lead) || !text_to_u64(line + sizeof(lead) - 1, 1, UINT32_MAX, &port))
        return -1;
    (void)recv(c->fd, line, (size_t)(end - line) + 1, MSG_DONTWAIT);
    *ret_port = (uint32_t)port;
    return 1;
}

static void client_open(struct vm *vm, struct client *c) {
    int r;
    if (c->port == 0) {
        r = client_line(c, &c->port);
        if (r < 0)
            client_refuse(c, "invalid", "expected CONNECT <port>");
        if (r <= 0)
            return;
    }
    r = channel_open(&vm->channel, c->port, c, &c->id);
    if (r == 0)
        client_set_state(c, CLIENT_OPENING);
    else if (r != -EAGAIN) /* the channel's output is full: again next turn */
        client_refuse(c, r == -EMFILE ? "too_many_streams" : "not_running", "no stream");
}

/* --- bytes --------------------------------------------------------------------------------------------------------------------- */

/* Ends that are known to both sides: half close, then gone. */
static void client_settle(struct vm *vm, struct client *c) {
    if (c->out.len > 0)
        return;
    if (c->state == CLIENT_FLUSHING) {
        client_set_state(c, CLIENT_FREE);
        return;
    }
    if (c->guest_ended && !c->shut) {
        (void)shutdown(c->fd, SHUT_WR);
        c->shut = true;
    }
    if (c->guest_ended && c->client_ended)
        client_drop(vm, c);
}

/* Writes what the guest sent; what the socket took becomes credit. */
static void client_flush(struct vm *vm, struct client *c) {
    while (c->out.len > 0) {
        ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0) {
            client_drop(vm, c);
            return;
        }
        buf_consume(&c->out, (size_t)n);
        if (c->id && c->state == CLIENT_OPEN)
            channel_consume(&vm->channel, c->id, (size_t)n);
    }
    client_settle(vm, c);
}

static void client_data(struct vm *vm, struct client *c, struct view data) {
    if (c->out.len == 0) { /* straight through: no copy while the client keeps up */
        ssize_t n = send(c->fd, data.p, data.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            channel_consume(&vm->channel, c->id, (size_t)n);
            data.p += n;
            data.len -= (size_t)n;
        }
    }
    /* A failed send shows again in the next one; credit keeps the rest within a window. */
    if (data.len > 0 && buf_append(&c->out, data.p, data.len) < 0)
        client_drop(vm, c);
}

void client_event(struct vm *vm, struct client *c, const struct channel_event *ev) {
    char line[32];
    switch (ev->type) {
    case CHANNEL_EV_OPENED:
        (void)text_printf(line, sizeof(line), "OK %u\n", ev->id);
        if (send(c->fd, line, strlen(line), MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)strlen(line))
            client_drop(vm, c); /* the socket is empty so far: it fails only when the client is gone */
        else
            client_set_state(c, CLIENT_OPEN);
        vm->activity.opened++;
        break;
    case CHANNEL_EV_DATA:
        if (c->state == CLIENT_OPEN)
            client_data(vm, c, ev->data);
        break;
    case CHANNEL_EV_SHUTDOWN:
        c->guest_ended = true;
        if (ev->ended)
            client_set_state(c, CLIENT_FLUSHING);
        client_settle(vm, c);
        break;
    case CHANNEL_EV_RESET:
        c->id = 0;
        if (c->state == CLIENT_OPENING)
            client_refuse(c, ev->reason == CHANNEL_TOO_MANY ? "too_many_streams" : "refused", "by the guest");
        else
            client_set_state(c, CLIENT_FREE);
        break;
    case CHANNEL_EV_CREDIT:
    case CHANNEL_EV_CONNECTED:
    case CHANNEL_EV_OPEN:
    case CHANNEL_EV_LOST:
        break;
    }
}

/* Takes bytes from the client while the guest has room for them. An end of file with the whole connection gone (hung_up) is
 * no end the client meant: the guest must not take what came before for everything. */
static void client_read(struct vm *vm, struct client *c, bool hung_up) {
    uint8_t chunk[CHUNK];
    size_t room = channel_sendable(&vm->channel, c->id);
    ssize_t n;
    if (room == 0)
        return;
    n = recv(c->fd, chunk, room < sizeof(chunk) ? room : sizeof(chunk), MSG_DONTWAIT);
    if (n > 0) {
        (void)channel_send(&vm->channel, c->id, chunk, (size_t)n); /* fits: sendable said so */
    } else if (n < 0 ? errno != EAGAIN && errno != EINTR : hung_up && !c->shut) {
        client_drop(vm, c);
    } else if (n == 0) {
        c->client_ended = true;
        if (channel_shutdown(&vm->channel, c->id)) {
            client_set_state(c, CLIENT_FLUSHING);
            client_settle(vm, c);
        }
    }
}

/* --- the loop's questions ------------------------------------------------------------------------------------------------------------ */

short client_poll_events(const struct vm *vm, const struct client *c) {
    short events = c->out.len > 0 ? POLLOUT : 0;
    if (vm->quiet) /* what they have to say waits in their sockets */
        return events;
    if (c->state == CLIENT_LINE && c->port == 0)
        events |= POLLIN;
    if (c->state == CLIENT_OPEN && !c->client_ended && channel_sendable(&vm->channel, c->id) > 0)
        events |= POLLIN;
    return events;
}

void client_ready(struct vm *vm, struct client *c, short revents) {
    if (c->state == CLIENT_LINE) {
        if (!vm->quiet)
            client_open(vm, c);
        else if (revents & (POLLHUP | POLLERR))
            client_drop(vm, c);
        return;
    }
    if (revents & POLLOUT)
        client_flush(vm, c);
    if (c->state == CLIENT_OPEN && (revents & POLLIN) && !c->client_ended)
        client_read(vm, c, revents & POLLHUP);
    /* Closed for good by the client, and nothing of it that could be delivered now is left: abrupt. */
    if (c->state != CLIENT_FREE && (revents & (POLLHUP | POLLERR)) && !(revents & POLLIN))
        client_drop(vm, c);
}

bool client_has_timer(const struct client *c) {
    return c->state != CLIENT_FREE && c->deadline.at_ns != 0;
}

void client_tick(struct vm *vm, struct client *c) {
    if (c->state == CLIENT_LINE && c->port != 0 && !vm->quiet)
        client_open(vm, c);
    if (!client_has_timer(c) || !deadline_passed(c->deadline))
        return;
    if (c->state == CLIENT_LINE || c->state == CLIENT_OPENING) {
        if (c->id)
            channel_reset(&vm->channel, c->id, CHANNEL_CANCELLED);
        c->id = 0;
        client_refuse(c, "timeout", "too slow");
    } else {
        client_drop(vm, c);
    }
}
