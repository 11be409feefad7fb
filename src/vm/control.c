/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.sock: the node's side of a VM. A client gets the status on connect and after every change; it may ask for a
 * ping of the agent, the console's tail, the end, and one lifecycle operation at a time (spec/node-protocol.md §3). What
 * could not be sent yet is remembered as a flag and sent as it is then, so nothing queues; whoever breaks the protocol,
 * or does not read its answers, is disconnected.
 */
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "vm/vm.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define PING_MS 5000

static void control_close(struct vm *vm, struct control *c, const char *why) {
    if (why)
        log_event(LOG_L_WARN, "control_closed", "vm_id", vm->config.id, "reason", why, NULL);
    vm->saved_seen = vm->saved_seen || c->saw_saved;
    c->fd = close_fd(c->fd);
    *c = (struct control){.fd = -1};
}

/* True when the message went; false when it has to wait or the client is gone. */
static bool control_send(struct vm *vm, struct control *c, const char *text) {
    ssize_t n = send(c->fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0)
        return true;
    if (errno == EPIPE || errno == ECONNRESET)
        c->wants_status = false; /* gone, but what it said before is still to be read: a last word may be `stop` */
    else if (errno != EAGAIN && errno != EINTR)
        control_close(vm, c, strerror(errno));
    return false;
}

/* An answer is not kept: whoever does not take it now is disconnected. */
static void control_answer(struct vm *vm, struct control *c, const char *text) {
    if (!control_send(vm, c, text) && c->fd >= 0 && errno == EAGAIN)
        control_close(vm, c, "does not read its answers");
}

static void control_flush(struct vm *vm, struct control *c) {
    _cleanup_free_ char *status = NULL;
    if (c->fd < 0 || !c->wants_status)
        return;
    status = vm_status_json(vm);
    if (control_send(vm, c, status)) {
        c->wants_status = false;
        c->saw_saved = c->saw_saved || vm->state == VM_SAVED;
    }
}

void control_status_changed(struct vm *vm) {
    for (size_t i = 0; i < VM_CONTROLS_MAX; i++)
        if (vm->controls[i].fd >= 0) {
            vm->controls[i].wants_status = true;
            control_flush(vm, &vm->controls[i]);
        }
}

static bool is_root(int fd) {
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t len = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == 0;
}

static struct control *control_find(struct vm *vm, uint64_t serial) {
    for (size_t i = 0; i < VM_CONTROLS_MAX; i++)
        if (vm->controls[i].fd >= 0 && vm->controls[i].serial == serial)
            return &vm->controls[i];
    return NULL;
}

bool control_is_there(const struct vm *vm, uint64_t serial) {
    for (size_t i = 0; i < VM_CONTROLS_MAX; i++)
        if (vm->controls[i].fd >= 0 && vm->controls[i].serial == serial)
            return true;
    return false;
}

void control_tell(struct vm *vm, uint64_t serial, json_t *event) {
    struct control *c = control_find(vm, serial);
    _cleanup_free_ char *text = json_print(event);
    json_decref(event);
    if (c)
        control_answer(vm, c, text);
}

void control_accept(struct vm *vm) {
    for (;;) {
        struct control *c = NULL;
        int fd = accept4(vm->config.fd_control, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        for (size_t i = 0; i < VM_CONTROLS_MAX && !c; i++)
            if (vm->controls[i].fd < 0)
                c = &vm->controls[i];
        if (!c) {
            log_event(LOG_L_WARN, "control_refused", "vm_id", vm->config.id, "reason", "too many connections", NULL);
            (void)close(fd);
            continue;
        }
        *c = (struct control){.fd = fd, .wants_status = true, .serial = ++vm->last_serial, .is_root = is_root(fd)};
        control_flush(vm, c);
    }
}

/* --- requests ----------------------------------------------------------------------------------------------------------- */

static void request_console(struct vm *vm, struct control *c) {
    char tail[VM_CONSOLE_REPLY], encoded[(VM_CONSOLE_REPLY + 2) / 3 * 4 + 1];
    size_t n = console_tail(&vm->console, tail, sizeof(tail));
    _cleanup_json_ json_t *reply = NULL;
    _cleanup_free_ char *text = NULL;
    (void)text_base64(encoded, tail, n);
    reply = json_pack("{s:s, s:s, s:I}", "event", "console", "data", encoded, "total", (json_int_t)vm->console.total);
    text = json_print(reply);
    control_answer(vm, c, text);
}

static void refuse(struct vm *vm, const struct control *c, const struct request *r, const char *code,
                   const char *text) {
    control_tell(vm, c->serial,
                 json_pack("{s:s, s:I, s:b, s:{s:s, s:s}}", "event", "done", "seq", (json_int_t)r->seq, "ok", 0,
                           "error", "code", code, "message", text));
}

/* Taken in here, carried out by operate() when the loop's round is over. */
static void request_operation(struct vm *vm, struct control *c, struct request *r, int fds[REQUEST_FDS_MAX]) {
    struct operation *o = &vm->operation;
    if (o->request.kind != REQUEST_NONE) {
        refuse(vm, c, r, "busy", "another operation is under way");
        return;
    }
    o->request = *r;
    *r = (struct request){0};
    o->client = c->serial;
    for (size_t i = 0; i < REQUEST_FDS_MAX; i++)
        o->fds[i] = TAKE_FD(fds[i]);
}

/* The next step of the snapshot that this connection asked for. */
static void request_handshake(struct vm *vm, struct control *c, const struct request *r) {
    struct operation *o = &vm->operation;
    bool *flag = r->kind == REQUEST_SNAPSHOT_STOP ? &o->may_stop : &o->may_go;
    if (o->request.kind != REQUEST_SNAPSHOT || o->client != c->serial || o->request.seq != r->seq || *flag ||
        (flag == &o->may_go && !o->may_stop)) {
        control_close(vm, c, "a step of a snapshot that is not under way");
        return;
    }
    *flag = true;
}

static void request_serve(struct vm *vm, struct control *c, struct request *r, int fds[REQUEST_FDS_MAX]) {
    switch (r->kind) {
    case REQUEST_PING:
        c->wants_pong = true; /* control_ping_tick does the rest; several clients share one question */
        break;
    case REQUEST_CONSOLE:
        request_console(vm, c);
        break;
    case REQUEST_STOP:
        vm->stop_requested = true;
        break;
    case REQUEST_SNAPSHOT_STOP:
    case REQUEST_SNAPSHOT_GO:
        request_handshake(vm, c, r);
        break;
    case REQUEST_PAUSE:
    case REQUEST_RESUME:
    case REQUEST_IDENTIFY:
    case REQUEST_LOAD:
    case REQUEST_SNAPSHOT:
    case REQUEST_SNAPSHOT_COMMITTED:
        request_operation(vm, c, r, fds);
        break;
    case REQUEST_NONE:
        break;
    }
}

/* One message and its descriptors; the number of bytes as of recvmsg, more descriptors than any request has: -1. */
static ssize_t control_receive(const struct control *c, char *text, size_t size, int fds[REQUEST_FDS_MAX],
                               size_t *ret_n_fds) {
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(REQUEST_FDS_MAX * sizeof(int))];
    } ancillary = {0};
    struct iovec iov = {.iov_base = text, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = ancillary.room,
                         .msg_controllen = sizeof(ancillary.room)};
    ssize_t n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *m = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);
    *ret_n_fds = 0;
    if (m && m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_RIGHTS) {
        *ret_n_fds = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(m), *ret_n_fds * sizeof(int));
    }
    if (n >= 0 && (msg.msg_flags & MSG_CTRUNC)) {
        errno = EPROTO;
        return -1;
    }
    return n;
}

static void control_request(struct vm *vm, struct control *c) {
    static char text[VM_MESSAGE_MAX + 1];
    struct request request = {0};
    struct sp_error err = {0};
    int fds[REQUEST_FDS_MAX] = {-1, -1, -1};
    size_t n_fds = 0;
    ssize_t n = control_receive(c, text, sizeof(text), fds, &n_fds);
    if (n < 0 && errno == ECONNRESET) /* gone without reading what we said; what it said is there behind the error */
        n = control_receive(c, text, sizeof(text), fds, &n_fds);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        control_close(vm, c, NULL);
    else if (n < 0 || n > VM_MESSAGE_MAX)
        control_close(vm, c, n < 0 ? strerror(errno) : "request too long");
    else if (request_parse(text, (size_t)n, n_fds, c->is_root, &request, &err) < 0)
        control_close(vm, c, err.text);
    else
        request_serve(vm, c, &request, fds);
    request_done(&request);
    for (size_t i = 0; i < REQUEST_FDS_MAX; i++)
        fds[i] = close_fd(fds[i]);
}

short control_poll_events(const struct control *c) {
    return c->wants_status ? POLLIN | POLLOUT : POLLIN;
}

void control_ready(struct vm *vm, struct control *c, short revents) {
    if (revents & POLLOUT)
        control_flush(vm, c);
    if (c->fd >= 0 && (revents & (POLLIN | POLLHUP | POLLERR)))
        control_request(vm, c);
}

/* --- ping ------------------------------------------------------------------------------------------------------------------ */

/* PONG's fields under the names of spec/guest-protocol.md; strings only as text that is clean UTF-8. */
static json_t *pong_fields(const struct record *rec) {
    static const enum record_tag numbers[] = {TAG_PROTOCOL, TAG_GENERATION, TAG_UPTIME_NS, TAG_FDS,
                                              TAG_RSS_KIB,  TAG_PROCESSES,  TAG_ZOMBIES,   TAG_STREAMS};
    static const enum record_tag strings[] = {TAG_AGENT_VERSION, TAG_BOOT_ID, TAG_CLOCKSOURCE};
    json_t *agent = json_object();
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
        uint64_t number = 0;
        if (record_get_u64(rec, numbers[i], &number) && number <= INT64_MAX)
            (void)json_object_set_new(agent, record_tag_name(numbers[i]), json_integer((json_int_t)number));
    }
    for (size_t i = 0; i < ARRAY_SIZE(strings); i++) {
        char string[256];
        if (record_get_string(rec, strings[i], string, sizeof(string)) > 0 && text_is_utf8(string, strlen(string)))
            (void)json_object_set_new(agent, record_tag_name(strings[i]), json_string(string));
    }
    return agent;
}

static char *pong_text(const struct vm *vm) {
    _cleanup_json_ json_t *reply = json_pack("{s:s}", "event", "pong");
    if (vm->ping.state == CALL_DONE && vm->ping.answer_type == REC_PONG) {
        struct record rec = call_answer(&vm->ping);
        (void)json_object_set_new(reply, "agent", pong_fields(&rec));
    } else {
        const char *text = vm->state != VM_RUNNING       ? vm_state_name(vm->state)
                           : vm->ping.state == CALL_DONE ? "not a PONG"
                                                         : vm->ping.error.text;
        enum vm_reason reason = vm->ping.error.code == SP_E_TIMEOUT ? VM_REASON_GUEST_SILENT : VM_REASON_GUEST_PROTOCOL;
        const char *code = vm->state != VM_RUNNING ? "not_running" : vm_reason_name(reason);
        (void)json_object_set_new(reply, "error", json_pack("{s:s, s:s}", "code", code, "message", text));
    }
    return json_print(reply);
}

void control_ping_tick(struct vm *vm) {
    _cleanup_free_ char *text = NULL;
    bool wanted = false;
    for (size_t i = 0; i < VM_CONTROLS_MAX; i++)
        wanted = wanted || vm->controls[i].wants_pong;
    if (!wanted)
        return;
    if (vm->state == VM_RUNNING && vm->quiet && vm->ping.state == CALL_IDLE)
        return; /* it stands still for a snapshot: a moment later */
    if (vm->state == VM_RUNNING && vm->ping.state == CALL_IDLE) {
        call_begin(&vm->ping, REC_PING);
        (void)record_put_u64(&vm->ping.request, TAG_FLAGS, PING_FULL);
        call_send(vm, &vm->ping, deadline_in_ms(PING_MS));
    }
    if (call_is_pending(&vm->ping))
        return;
    text = pong_text(vm);
    vm->ping.state = CALL_IDLE;
    for (size_t i = 0; i < VM_CONTROLS_MAX; i++) {
        struct control *c = &vm->controls[i];
        if (!c->wants_pong)
            continue;
        c->wants_pong = false;
        control_answer(vm, c, text);
    }
}
