/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a command's pipes (or its pty) into its rings. A pipe is read only while its ring has room for what comes,
 * counted from the slowest live reader; otherwise it is taken out of the loop, and the command feels a full pipe.
 * After the leader's end exactly what was in the pipe then goes into the ring (`drain_left`), and the rest, written by
 * whoever still holds it, is thrown away so that a background child is not stopped by a full pipe.
 */
#include "base/cleanup.h"
#include "guest/klog.h"
#include "guest/session.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>

#define CHUNK 65536u
#define PTY_DRAIN_MAX (256u * 1024u)

static uint8_t chunk[CHUNK];

static void on_readable(struct source *s, uint32_t events);

static unsigned index_of(const struct output *o) {
    return (unsigned)(o - o->process->out);
}

static void stop_watching(struct output *o) {
    loop_remove(&o->process->agent->loop, &o->source);
}

void output_close(struct output *o) {
    struct process *p = o->process;

    stop_watching(o);
    if (p->pty && p->stdin_fd == o->fd) {
        stdin_process_gone(p);
        p->stdin_fd = -1;
    }
    o->fd = close_fd(o->fd);
}

static void set_final(struct output *o) {
    o->final = true;
    process_finish_if_drained(o->process);
}

/* How much of what is there may be read now. 0: the ring is full. */
static size_t allowed(struct output *o) {
    int waiting = 0;
    size_t want;

    if (ioctl(o->fd, FIONREAD, &waiting) < 0 || waiting <= 0)
        waiting = 1;
    want = (size_t)waiting < CHUNK ? (size_t)waiting : CHUNK;
    if (o->process->state == PROC_DRAINING && !o->process->pty && want > o->drain_left)
        want = o->drain_left ? o->drain_left : 1;
    return ring_room(&o->ring, readers_keep(o->process, index_of(o)), want);
}

/* Takes len bytes just read. */
static void deliver(struct output *o, size_t len) {
    ring_write(&o->ring, chunk, len);
    if (o->process->state == PROC_DRAINING)
        o->drain_left -= len < o->drain_left ? len : o->drain_left;
}

/* One read. 1: goes on; 0: nothing there now or no room; -1: end. */
static int read_once(struct output *o) {
    size_t room = allowed(o);
    ssize_t n;

    if (room == 0) {
        stop_watching(o);
        readers_blocked(o->process, index_of(o));
        return 0;
    }
    n = read(o->fd, chunk, room);
    if (n > 0) {
        deliver(o, (size_t)n);
        return 1;
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static bool nobody_writes(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0 && (p.revents & POLLHUP) && !(p.revents & POLLIN);
}

/* Reads what was there when the leader ended, as room allows; then the stream is final. */
static void drain(struct output *o) {
    while (o->drain_left > 0) {
        int r = read_once(o);
        if (r < 0) {
            output_close(o);
            break;
        }
        if (r == 0 && o->fd >= 0 && !loop_has(&o->source))
            return; /* the ring is full: goes on when a reader has taken some */
        if (r == 0)
            break;
    }
    if (o->fd >= 0 && nobody_writes(o->fd))
        output_close(o);
    set_final(o);
}

void output_watch(struct output *o) {
    struct loop *l = &o->process->agent->loop;

    if (o->fd < 0 || loop_has(&o->source))
        return;
    if (!o->final && ring_room(&o->ring, readers_keep(o->process, index_of(o)), 1) == 0) {
        readers_blocked(o->process, index_of(o));
        return;
    }
    if (loop_add(l, &o->source, o->fd, EPOLLIN, on_readable) < 0) {
        klog(KLOG_ERROR, "output of a command is lost: %s", strerror(errno));
        output_close(o);
        set_final(o);
    } else if (o->process->state == PROC_DRAINING && !o->final) {
        drain(o);
    }
}

static void discard(struct output *o) {
    ssize_t n = read(o->fd, chunk, CHUNK);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        output_close(o);
}

/* Nobody has the other end open. A pty stays: closing it would hang up on a leader that still lives. */
static void end_of_stream(struct output *o) {
    if (o->process->pty) {
        stop_watching(o);
        return;
    }
    output_close(o);
    set_final(o);
}

static void on_readable(struct source *s, uint32_t events) {
    struct output *o = container_of(s, struct output, source);

    (void)events;
    if (o->final) {
        discard(o);
    } else if (o->process->state == PROC_DRAINING) {
        drain(o);
    } else if (read_once(o) < 0) {
        end_of_stream(o);
    }
}

void output_start_drain(struct output *o) {
    int waiting = 0;

    if (o->final)
        return;
    if (o->process->pty)
        o->drain_left = PTY_DRAIN_MAX;
    else if (ioctl(o->fd, FIONREAD, &waiting) == 0 && waiting > 0)
        o->drain_left = (size_t)waiting;
    if (loop_has(&o->source))
        drain(o);
    else
        output_watch(o);
}
