/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.sock: the node's side of a VM. A client gets the status on connect and after every change; it may ask for a
 * ping of the agent, the console's tail, and the end (spec/node-protocol.md §3). What could not be sent yet is remembered
 * as a flag and sent as it is then, so nothing queues; whoever breaks the protocol is disconnected.
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
    if (errno != EAGAIN && errno != EINTR)
        control_close(vm, c, errno == EPIPE || errno == ECONNRESET ? NULL : strerror(errno));
    return false;
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
        *c = (struct control){.fd = fd, .wants_status = true};
        control_flush(vm, c);
    }
}

/* --- requests ----------------------------------------------------------------------------------------------------------- */

static void request_ping(struct vm *vm, struct control *c) {
    (void)vm;
    c->wants_pong = true; /* control_ping_tick does the rest; several clients share one question */
}

static void request_console(struct vm *vm, struct control *c) {
    char tail[VM_CONSOLE_REPLY], encoded[(VM_CONSOLE_REPLY + 2) / 3 * 4 + 1];
    size_t n = console_tail(&vm->console, tail, sizeof(tail));
    _cleanup_json_ json_t *reply = NULL;
    _cleanup_free_ char *text = NULL;
    (void)text_base64(encoded, tail, n);
    reply = json_pack("{s:s, s:s, s:I}", "event", "console", "data", encoded, "total", (json_int_t)vm->console.total);
    text = json_print(reply);
    if (!control_send(vm, c, text) && c->fd >= 0)
        control_close(vm, c, "does not read its answers");
}

static void request_stop(struct vm *vm, struct control *c) {
    (void)c;
    vm->stop_requested = true;
}

static const struct {
    const char *name;
    void (*handle)(struct vm *vm, struct control *c);
} requests[] = {
    {"ping", request_ping},
    {"console", request_console},
    {"stop", request_stop},
};

static void control_request(struct vm *vm, struct control *c, const char *text, size_t len) {
    static const char *const keys[] = {"request", NULL};
    _cleanup_json_ json_t *request = NULL;
    const char *name = NULL;
    if (json_parse(text, len, VM_MESSAGE_MAX, &request, NULL) < 0 || json_check_keys(request, "", keys, NULL) < 0 ||
        json_get_string(request, "", "request", 1, 32, &name, NULL) < 0) {
        control_close(vm, c, "no request");
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(requests); i++)
        if (strcmp(requests[i].name, name) == 0) {
            requests[i].handle(vm, c);
            return;
        }
    control_close(vm, c, "unknown request");
}

short control_poll_events(const struct control *c) {
    return c->wants_status ? POLLIN | POLLOUT : POLLIN;
}

void control_ready(struct vm *vm, struct control *c, short revents) {
    static char text[VM_MESSAGE_MAX + 1];
    if (revents & POLLOUT)
        control_flush(vm, c);
    if (c->fd < 0 || !(revents & (POLLIN | POLLHUP | POLLERR)))
        return;
    ssize_t n = recv(c->fd, text, sizeof(text), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        control_close(vm, c, NULL);
    else if (n > VM_MESSAGE_MAX)
        control_close(vm, c, "request too long");
    else
        control_request(vm, c, text, (size_t)n);
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
        if (!control_send(vm, c, text) && c->fd >= 0)
            control_close(vm, c, "does not read its answers");
    }
}
