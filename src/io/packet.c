/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A seqpacket connection on a loop. One receive buffer of the message bound plus one byte tells an over-long message;
 * outgoing messages are a list with a bounded length.
 */
#include "io/packet.h"
#include "base/cleanup.h"
#include "io/loop_internal.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define READS_PER_ROUND 16

struct message {
    struct message *next;
    size_t len;
    char data[];
};

struct packet {
    struct loop *loop;
    struct loop_watch *watch;
    struct loop_task task; /* reports a failed send */
    int fd;
    const struct packet_events *events;
    void *ctx;
    size_t message_max, queue_max, queued;
    struct message *first, **last;
    bool ended;
    unsigned depth; /* callbacks running */
    bool dead;      /* packet_free was called in one; the memory goes when it returns */
    struct sp_error error;
    char *buffer;
};

static void on_watch(unsigned events, void *ctx);
static void on_task(void *ctx);

int packet_new(struct loop *l, int fd, size_t message_max, size_t queue_max, const struct packet_events *events,
               void *ctx, struct packet **ret, struct sp_error *err) {
    struct loop_watch *watch;
    struct packet *p = loop_alloc(sizeof(*p));
    int r = loop_watch_new(l, fd, on_watch, p, &watch, err);
    if (r < 0) {
        free(p);
        return r;
    }
    *p = (struct packet){.loop = l,
                         .watch = watch,
                         .fd = fd,
                         .events = events,
                         .ctx = ctx,
                         .message_max = message_max,
                         .queue_max = queue_max};
    p->task.fn = on_task;
    p->task.ctx = p;
    p->last = &p->first;
    p->buffer = loop_alloc(message_max + 2);
    loop_watch_set(watch, LOOP_READABLE);
    *ret = p;
    return 0;
}

static void drop_queue(struct packet *p) {
    while (p->first) {
        struct message *m = p->first;
        p->first = m->next;
        free(m);
    }
    p->last = &p->first;
    p->queued = 0;
}

static void release(struct packet *p) {
    free(p->buffer);
    free(p);
}

struct packet *packet_free(struct packet *p) {
    if (!p || p->dead)
        return NULL;
    loop_defer_cancel(&p->task);
    loop_watch_free(p->watch, true);
    drop_queue(p);
    p->dead = p->ended = true;
    if (p->depth == 0)
        release(p);
    return NULL;
}

/* No more events; the owner is told from the task or from the watch. */
static void set_ended(struct packet *p, enum sp_code code, int err_no, const char *text) {
    p->ended = true;
    p->error = (struct sp_error){0};
    if (code) {
        sp_error_errno(&p->error, err_no, "seqpacket", "%s", text);
        p->error.code = code;
    }
    drop_queue(p);
    loop_watch_set(p->watch, 0);
    loop_defer(p->loop, &p->task);
}

static void on_task(void *ctx) {
    struct packet *p = ctx;
    struct sp_error error = p->error;
    p->events->on_end(p->ctx, error.code ? &error : NULL);
}

/* One message; false when there is none, the connection ended, or the owner freed it. */
static bool receive(struct packet *p) {
    ssize_t n = recv(p->fd, p->buffer, p->message_max + 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        set_ended(p, n < 0 && errno != ECONNRESET ? SP_E_IO : 0, n < 0 ? errno : 0, "receive failed");
        return false;
    }
    if ((size_t)n > p->message_max) {
        set_ended(p, SP_E_TOO_LARGE, EMSGSIZE, "message is longer than agreed");
        return false;
    }
    p->buffer[n] = '\0';
    p->events->on_message(p->ctx, p->buffer, (size_t)n);
    return !p->ended;
}

static void flush(struct packet *p) {
    while (p->first) {
        struct message *m = p->first;
        if (send(p->fd, m->data, m->len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN) {
                set_ended(p, SP_E_IO, errno, "send failed");
                return;
            }
            break;
        }
        p->first = m->next;
        if (!p->first)
            p->last = &p->first;
        p->queued--;
        free(m);
    }
    loop_watch_set(p->watch, p->first ? LOOP_READABLE | LOOP_WRITABLE : LOOP_READABLE);
}

static void on_watch(unsigned events, void *ctx) {
    struct packet *p = ctx;
    p->depth++;
    if (events & (LOOP_READABLE | LOOP_ERROR))
        for (int i = 0; i < READS_PER_ROUND && receive(p); i++)
            ;
    if (!p->ended && (events & LOOP_WRITABLE))
        flush(p);
    if (!p->ended && (events & LOOP_ERROR))
        set_ended(p, SP_E_IO, ECONNRESET, "connection failed");
    if (--p->depth == 0 && p->dead)
        release(p);
}

int packet_write(struct packet *p, const void *data, size_t len) {
    if (p->ended)
        return -SP_E_GONE;
    if (len == 0 || len > p->message_max)
        return -SP_E_TOO_LARGE;
    if (p->queued == p->queue_max)
        return -SP_E_UNAVAILABLE;
    struct message *m = loop_alloc(sizeof(*m) + len);
    m->len = len;
    memcpy(m->data, data, len);
    *p->last = m;
    p->last = &m->next;
    p->queued++;
    flush(p);
    return 0;
}
