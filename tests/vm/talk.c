/* SPDX-License-Identifier: Apache-2.0 */
/* The node's and the gateway's part: what is said on control.sock and guest.sock; see harness.h. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "harness.h"
#include "wire/record.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

int harness_control_connect(const struct harness_vm *vm) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (!text_printf(address.sun_path, sizeof(address.sun_path), "%s/control.sock", vm->dir) || fd < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        harness_die("control.sock: %s", strerror(errno));
    return fd;
}

/* --- control.sock ------------------------------------------------------------------------------------------------------------------ */

/* Next message, NULL at the end or when time is up; a status replaces the last one. */
static json_t *next_event(struct harness_vm *vm, struct deadline d) {
    static char text[65536];
    struct pollfd p = {.fd = vm->control, .events = POLLIN};
    struct sp_error err = {0};
    json_t *event = NULL;
    ssize_t n;
    if (vm->control < 0 || poll(&p, 1, deadline_poll_ms(d)) <= 0)
        return NULL;
    n = recv(vm->control, text, sizeof(text), 0);
    if (n <= 0) {
        vm->control = close_fd(vm->control);
        return NULL;
    }
    if (json_parse(text, (size_t)n, sizeof(text), &event, &err) < 0)
        harness_die("control.sock: %s", err.text);
    if (strcmp(json_string_value(json_object_get(event, "event")), "status") == 0) {
        json_decref(vm->status);
        vm->status = json_incref(event);
    }
    return event;
}

const char *harness_state(const struct harness_vm *vm) {
    const char *state = vm->status ? json_string_value(json_object_get(vm->status, "state")) : NULL;
    return state ? state : "";
}

static bool is_among(const char *states, const char *state) {
    size_t n = strlen(state);
    for (const char *s = states; n > 0 && (s = strstr(s, state)); s += n)
        if ((s == states || s[-1] == '|') && (s[n] == '\0' || s[n] == '|'))
            return true;
    return false;
}

bool harness_wait_state(struct harness_vm *vm, const char *states, unsigned timeout_ms) {
    struct deadline d = deadline_in_ms(timeout_ms);
    while (!is_among(states, harness_state(vm))) {
        json_t *event = next_event(vm, d);
        if (!event)
            return false;
        json_decref(event);
    }
    return true;
}

double harness_timing(const struct harness_vm *vm, const char *step) {
    const json_t *value = json_object_get(json_object_get(vm->status, "timings"), step);
    return json_is_number(value) ? json_number_value(value) : -1;
}

pid_t harness_vmm_pid(const struct harness_vm *vm) {
    return (pid_t)json_integer_value(json_object_get(vm->status, "vmm_pid"));
}

json_t *harness_request(struct harness_vm *vm, const char *request, const char *event, unsigned timeout_ms) {
    struct deadline d = deadline_in_ms(timeout_ms);
    char text[64];
    (void)text_printf(text, sizeof(text), "{\"request\":\"%s\"}", request);
    if (vm->control < 0 || send(vm->control, text, strlen(text), MSG_NOSIGNAL) < 0)
        return NULL;
    while (event) {
        json_t *message = next_event(vm, d);
        if (!message || strcmp(json_string_value(json_object_get(message, "event")), event) == 0)
            return message;
        json_decref(message);
    }
    return NULL;
}

void harness_send(struct harness_vm *vm, json_t *message, const int *fds, size_t n_fds) {
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control = {0};
    char *text = json_print(message);
    struct iovec iov = {.iov_base = text, .iov_len = strlen(text)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        struct cmsghdr *c;
        msg.msg_control = control.room;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    (void)sendmsg(vm->control, &msg, MSG_NOSIGNAL);
    free(text);
    json_decref(message);
}

json_t *harness_wait_event(struct harness_vm *vm, const char *event, long seq, unsigned timeout_ms) {
    struct deadline d = deadline_in_ms(timeout_ms);
    for (;;) {
        json_t *message = next_event(vm, d);
        const json_t *number = json_object_get(message, "seq");
        if (!message || !event ||
            (strcmp(json_string_value(json_object_get(message, "event")), event) == 0 &&
             (seq < 0 || json_integer_value(number) == seq)))
            return message;
        json_decref(message);
    }
}

json_t *harness_operate(struct harness_vm *vm, json_t *request, const int *fds, size_t n_fds) {
    static long seq = 1000;
    (void)json_object_set_new(request, "seq", json_integer(++seq));
    harness_send(vm, request, fds, n_fds);
    return harness_wait_event(vm, "done", seq, 60000);
}

/* --- guest.sock ----------------------------------------------------------------------------------------------------------------------- */

int harness_connect(const struct harness_vm *vm, unsigned port, char *error, size_t size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 10};
    char line[128];
    size_t n = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!text_printf(address.sun_path, sizeof(address.sun_path), "%s/guest.sock", vm->dir) || fd < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        harness_die("guest.sock: %s", strerror(errno));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    (void)text_printf(line, sizeof(line), "CONNECT %u\n", port);
    (void)send(fd, line, strlen(line), MSG_NOSIGNAL);
    while (n < sizeof(line) - 1 && recv(fd, line + n, 1, 0) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
    if (text_starts_with(line, "OK "))
        return fd;
    (void)text_copy(error, size, line);
    (void)close(fd);
    return -1;
}

static json_t *pong_json(const struct record *rec) {
    json_t *fields = json_object();
    char clocksource[64];
    if (record_get_string(rec, TAG_CLOCKSOURCE, clocksource, sizeof(clocksource)) > 0)
        (void)json_object_set_new(fields, "clocksource", json_string(clocksource));
    (void)json_object_set_new(fields, "generation",
                              json_integer((json_int_t)record_get_u64_or(rec, TAG_GENERATION, 0)));
    return fields;
}

/* Sends one record on a new stream to the agent; the stream, or -1. */
static int ask(const struct harness_vm *vm, struct buf *request) {
    char error[128];
    int fd = harness_connect(vm, 1, error, sizeof(error));
    if (fd >= 0)
        (void)send(fd, request->data, request->len, MSG_NOSIGNAL);
    return fd;
}

json_t *harness_ping(const struct harness_vm *vm) {
    _cleanup_buf_ struct buf request = {0};
    struct record_reader reader = {0};
    struct record rec;
    char chunk[4096];
    json_t *fields = NULL;
    buf_init(&request, 256);
    size_t mark = record_begin(&request, REC_PING);
    (void)record_put_u64(&request, TAG_FLAGS, PING_FULL);
    (void)record_end(&request, mark);
    int fd = ask(vm, &request);
    while (fd >= 0 && !fields) {
        ssize_t n = recv(fd, chunk, sizeof(chunk), 0);
        struct view in = {.p = (const uint8_t *)chunk, .len = n > 0 ? (size_t)n : 0};
        int r = n > 0 ? record_next(&reader, &in, &rec) : -1;
        if (r < 0)
            break;
        if (r > 0 && rec.type == REC_PONG)
            fields = pong_json(&rec);
    }
    record_reader_done(&reader);
    (void)close_fd(fd);
    return fields;
}

static void put_output(const struct record *rec, char *out, size_t size, size_t *len) {
    struct view data;
    if (!record_get_bytes(rec, TAG_DATA, &data))
        return;
    if (data.len > size - 1 - *len)
        data.len = size - 1 - *len;
    memcpy(out + *len, data.p, data.len);
    *len += data.len;
    out[*len] = '\0';
}

/* Reads records until EXITED, ERROR or the end. */
static int collect(int fd, char *out, size_t size) {
    struct record_reader reader = {0};
    struct record rec;
    char chunk[16384];
    size_t len = 0;
    int code = -2;
    while (code == -2) {
        ssize_t n = recv(fd, chunk, sizeof(chunk), 0);
        struct view in = {.p = (const uint8_t *)chunk, .len = n > 0 ? (size_t)n : 0};
        int r = n > 0 ? 0 : -1;
        while (r >= 0 && code == -2 && (r = record_next(&reader, &in, &rec)) > 0) {
            if (rec.type == REC_OUTPUT)
                put_output(&rec, out, size, &len);
            else if (rec.type == REC_EXITED)
                code = (int)record_get_u64_or(&rec, TAG_EXIT_CODE, 255);
            else if (rec.type == REC_ERROR)
                code = -1;
        }
        if (r < 0)
            code = -1;
    }
    record_reader_done(&reader);
    return code;
}

int harness_run(const struct harness_vm *vm, const char *command, char *out, size_t size) {
    _cleanup_buf_ struct buf request = {0};
    char id[ID_SIZE];
    struct timeval patience = {.tv_sec = 300};
    int fd, code;
    out[0] = '\0';
    id_generate(id, "prc");
    buf_init(&request, 8192);
    size_t mark = record_begin(&request, REC_ATTACH);
    (void)record_put_string(&request, TAG_PROCESS_ID, id);
    (void)record_put_u64(&request, TAG_MAY_START, 1);
    (void)record_put_string(&request, TAG_ARGV, "/bin/sh");
    (void)record_put_string(&request, TAG_ARGV, "-c");
    (void)record_put_string(&request, TAG_ARGV, command);
    (void)record_put_string(&request, TAG_ENV, "PATH=/usr/sbin:/usr/bin:/sbin:/bin");
    (void)record_put_string(&request, TAG_USER, "root");
    if (record_end(&request, mark) < 0 || (fd = ask(vm, &request)) < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    code = collect(fd, out, size);
    (void)close(fd);
    return code;
}
