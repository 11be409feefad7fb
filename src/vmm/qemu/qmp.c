/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The QMP client of qmp.h: framing and classification of messages, the queue of events, and the blocking calls.
 * It knows no command by meaning; driver.c does.
 */
#include "vmm/qemu/qmp.h"
#include "base/text.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* --- parser ---------------------------------------------------------------------------------------------------- */

void qmp_parser_init(struct qmp_parser *p) {
    *p = (struct qmp_parser){0};
    buf_init(&p->in, QMP_LINE_MAX);
}

void qmp_parser_done(struct qmp_parser *p) {
    buf_done(&p->in);
}

int qmp_parser_feed(struct qmp_parser *p, const void *data, size_t len, struct sp_error *err) {
    int r = buf_append(&p->in, data, len);
    if (r == -ENOMEM)
        return sp_error_errno(err, ENOMEM, "qmp", "receive");
    if (r < 0)
        return sp_error_set(err, SP_E_PROTOCOL, "QMP message over %d bytes", QMP_LINE_MAX);
    return 0;
}

int qmp_parser_next(struct qmp_parser *p, json_t **ret, struct sp_error *err) {
    for (;;) {
        const char *end = memchr(p->in.data + p->scanned, '\n', p->in.len - p->scanned);
        size_t line, text;
        int r;
        if (!end) {
            p->scanned = p->in.len;
            return 0;
        }
        line = (size_t)(end - p->in.data);
        text = line > 0 && p->in.data[line - 1] == '\r' ? line - 1 : line;
        p->scanned = 0;
        if (text == 0) {
            buf_consume(&p->in, line + 1);
            continue;
        }
        r = json_parse(p->in.data, text, QMP_LINE_MAX, ret, err);
        buf_consume(&p->in, line + 1);
        if (r < 0 || !json_is_object(*ret)) {
            if (r >= 0)
                json_decref(*ret);
            *ret = NULL;
            return sp_error_set(err, SP_E_PROTOCOL, "QMP message is no JSON object");
        }
        return 1;
    }
}

/* --- events ------------------------------------------------------------------------------------------------------ */

static struct qmp_event *event_at(struct qmp *q, size_t i) {
    return &q->events[(q->first_event + i) % QMP_EVENTS_MAX];
}

/* Takes the i-th oldest event out, keeping the order of the others. */
static struct qmp_event event_take(struct qmp *q, size_t i) {
    struct qmp_event taken = *event_at(q, i);
    for (; i > 0; i--)
        *event_at(q, i) = *event_at(q, i - 1);
    q->first_event = (q->first_event + 1) % QMP_EVENTS_MAX;
    q->n_events--;
    return taken;
}

static bool event_is_replaceable(const struct qmp_event *e) {
    return strcmp(e->name, "SHUTDOWN") != 0 && strcmp(e->name, "RESET") != 0 && strcmp(e->name, "GUEST_PANICKED") != 0;
}

/* A full queue loses the oldest event that changes nothing for good. */
static void event_queue(struct qmp *q, const char *name, json_t *data) {
    struct qmp_event *e;
    if (q->n_events == QMP_EVENTS_MAX) {
        size_t i = 0;
        while (i < q->n_events - 1 && !event_is_replaceable(event_at(q, i)))
            i++;
        json_decref(event_take(q, i).data);
        q->events_dropped++;
    }
    e = event_at(q, q->n_events++);
    e->data = json_incref(data);
    if (!text_copy(e->name, sizeof(e->name), name))
        (void)text_copy(e->name, sizeof(e->name), "UNKNOWN");
}

bool qmp_next_event(struct qmp *q, struct qmp_event *ret) {
    if (q->n_events == 0)
        return false;
    *ret = event_take(q, 0);
    return true;
}

/* --- connection -------------------------------------------------------------------------------------------------- */

void qmp_init(struct qmp *q, int fd) {
    *q = (struct qmp){.fd = fd};
    qmp_parser_init(&q->parser);
}

void qmp_done(struct qmp *q) {
    struct qmp_event e;
    while (qmp_next_event(q, &e))
        json_decref(e.data);
    qmp_parser_done(&q->parser);
    q->broken = true;
}

static int qmp_break(struct qmp *q, int r) {
    q->broken = true;
    return r;
}

static int qmp_check(const struct qmp *q, struct sp_error *err) {
    return q->broken ? sp_error_set(err, SP_E_GONE, "the QMP connection is of no use any more") : 0;
}

/* 1: the socket is ready, 0: the deadline passed. */
static int qmp_poll(const struct qmp *q, short events, struct deadline d, struct sp_error *err) {
    struct pollfd p = {.fd = q->fd, .events = events};
    for (;;) {
        int r = poll(&p, 1, deadline_poll_ms(d));
        if (r >= 0)
            return r;
        if (errno != EINTR)
            return sp_error_errno(err, errno, "poll", "qmp");
    }
}

/* One recv without waiting: 1 some bytes, 0 none there, negative the end. */
static int qmp_receive(struct qmp *q, struct sp_error *err) {
    char chunk[16384];
    ssize_t n = recv(q->fd, chunk, sizeof(chunk), MSG_DONTWAIT);
    if (n > 0)
        return qmp_parser_feed(&q->parser, chunk, (size_t)n, err) < 0 ? -SP_E_PROTOCOL : 1;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return sp_error_set(err, SP_E_GONE, "the VMM closed its control connection");
}

static int qmp_send(struct qmp *q, const char *text, size_t len, int pass_fd, struct deadline d, struct sp_error *err) {
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    size_t sent = 0;
    while (sent < len) {
        struct iovec iov;
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t n;
        memcpy(&iov.iov_base, &(const char *){text + sent}, sizeof(void *)); /* iovec has no const */
        iov.iov_len = len - sent;
        if (pass_fd >= 0 && sent == 0) {
            struct cmsghdr *c;
            msg.msg_control = control.room;
            msg.msg_controllen = sizeof(control.room);
            c = CMSG_FIRSTHDR(&msg);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
        }
        n = sendmsg(q->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            sent += (size_t)n;
        } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return sp_error_set(err, SP_E_GONE, "the VMM closed its control connection");
        } else {
            int r = qmp_poll(q, POLLOUT, d, err);
            if (r <= 0)
                return r < 0 ? r : sp_error_set(err, SP_E_TIMEOUT, "the VMM takes no command");
        }
    }
    return 0;
}

/* Next message of the peer: 1 with *ret, 0 when the deadline passed, also for a peer that floods us. */
static int qmp_message(struct qmp *q, struct deadline d, json_t **ret, struct sp_error *err) {
    while (!deadline_passed(d)) {
        int r = qmp_parser_next(&q->parser, ret, err);
        if (r != 0)
            return r;
        r = qmp_receive(q, err);
        if (r < 0)
            return r;
        if (r > 0)
            continue;
        r = qmp_poll(q, POLLIN, d, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Queues the message when it is an event. */
static bool qmp_absorb_event(struct qmp *q, const json_t *message) {
    const char *name = json_string_value(json_object_get(message, "event"));
    json_t *data = json_object_get(message, "data");
    if (!name)
        return false;
    event_queue(q, name, json_is_object(data) ? data : NULL);
    return true;
}

static int qmp_error_answer(const char *command, const json_t *error, struct sp_error *err) {
    const char *desc = json_string_value(json_object_get(error, "desc"));
    char escaped[160];
    return sp_error_set(err, SP_E_VMM, "qmp %s: %s", command,
                        text_escape(escaped, sizeof(escaped), desc ? desc : "?", desc ? strlen(desc) : 1));
}

int qmp_negotiate(struct qmp *q, struct deadline d, struct sp_error *err) {
    _cleanup_json_ json_t *greeting = NULL;
    int r = qmp_check(q, err);
    if (r < 0)
        return r;
    r = qmp_message(q, d, &greeting, err);
    if (r == 0)
        r = sp_error_set(err, SP_E_TIMEOUT, "the VMM sent no greeting");
    else if (r > 0 && !json_is_object(json_object_get(greeting, "QMP")))
        r = sp_error_set(err, SP_E_PROTOCOL, "the VMM's greeting is not QMP's");
    if (r < 0)
        return qmp_break(q, r);
    return qmp_execute(q, "qmp_capabilities", NULL, -1, d, NULL, err);
}

/* The answer to command `id`; events before it are queued. */
static int qmp_answer(struct qmp *q, const char *command, uint64_t id, struct deadline d, json_t **ret_return,
                      struct sp_error *err) {
    for (;;) {
        _cleanup_json_ json_t *message = NULL;
        json_t *value;
        int r = qmp_message(q, d, &message, err);
        if (r == 0)
            r = sp_error_set(err, SP_E_TIMEOUT, "qmp %s: no answer", command);
        if (r < 0)
            return qmp_break(q, r);
        if (qmp_absorb_event(q, message))
            continue;
        value = json_object_get(message, "id");
        if (!json_is_integer(value) || (uint64_t)json_integer_value(value) != id)
            return qmp_break(q, sp_error_set(err, SP_E_PROTOCOL, "qmp %s: an answer to something else", command));
        value = json_object_get(message, "error");
        if (value)
            return qmp_error_answer(command, value, err);
        value = json_object_get(message, "return");
        if (!value)
            return qmp_break(q, sp_error_set(err, SP_E_PROTOCOL, "qmp %s: an answer without a value", command));
        if (ret_return)
            *ret_return = json_incref(value);
        return 0;
    }
}

int qmp_execute(struct qmp *q, const char *command, json_t *arguments, int pass_fd, struct deadline d,
                json_t **ret_return, struct sp_error *err) {
    _cleanup_json_ json_t *args = arguments; /* ours whatever happens */
    _cleanup_json_ json_t *request = json_pack("{s:s, s:I}", "execute", command, "id", (json_int_t)q->last_id + 1);
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r = qmp_check(q, err);
    if (r < 0)
        return r;
    if (!request || (args && json_object_set(request, "arguments", args) < 0))
        return sp_error_errno(err, ENOMEM, "qmp", "%s", command);
    text = json_dumps(request, JSON_COMPACT);
    if (!text)
        return sp_error_set(err, SP_E_INTERNAL, "qmp %s: arguments are no text", command);
    q->last_id++;
    len = strlen(text);
    text[len] = '\n'; /* in place of the NUL: a line is sent by length */
    r = qmp_send(q, text, len + 1, pass_fd, d, err);
    if (r < 0)
        return qmp_break(q, r);
    return qmp_answer(q, command, q->last_id, d, ret_return, err);
}

int qmp_wait_event(struct qmp *q, const char *name, struct deadline d, struct qmp_event *ret, struct sp_error *err) {
    int r = qmp_check(q, err);
    if (r < 0)
        return r;
    for (;;) {
        _cleanup_json_ json_t *message = NULL;
        for (size_t i = 0; i < q->n_events; i++)
            if (strcmp(event_at(q, i)->name, name) == 0) {
                *ret = event_take(q, i);
                return 0;
            }
        r = qmp_message(q, d, &message, err);
        if (r == 0) /* late, but no answer is outstanding: the connection stays good */
            return sp_error_set(err, SP_E_TIMEOUT, "qmp: no event %s", name);
        if (r > 0 && !qmp_absorb_event(q, message))
            r = sp_error_set(err, SP_E_PROTOCOL, "qmp: an answer to nothing");
        if (r < 0)
            return qmp_break(q, r);
    }
}

int qmp_pump(struct qmp *q, struct sp_error *err) {
    int r = qmp_check(q, err), received, rounds = 0;
    if (r < 0)
        return r;
    do {
        received = qmp_receive(q, err);
        if (received < 0 && received != -SP_E_GONE)
            return qmp_break(q, received);
        for (;;) { /* also what came before an end of file: it may say why */
            _cleanup_json_ json_t *message = NULL;
            r = qmp_parser_next(&q->parser, &message, err);
            if (r > 0 && !qmp_absorb_event(q, message))
                r = sp_error_set(err, SP_E_PROTOCOL, "qmp: an answer to nothing");
            if (r < 0)
                return qmp_break(q, r);
            if (r == 0)
                break;
        }
    } while (received > 0 && ++rounds < 8); /* the rest next time: others wait too */
    return received < 0 ? qmp_break(q, received) : 0;
}
