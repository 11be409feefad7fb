/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream socket on a loop. Reading: straight from the loop's read buffer to the owner, what is not taken is kept in
 * `in`. Writing: at once if nothing waits, else through `out`. What must not happen inside a call of the owner (showing
 * held bytes, reporting a failed write) is deferred. Every callback may free the stream: the functions that call the
 * owner return false then.
 */
#include "io/stream.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "io/loop_internal.h"
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define IN_MAX (128u * 1024)
#define OUT_MAX (1024u * 1024)
#define KEEP 16384u       /* an emptied buffer that grew over this gives its memory back */
#define READS_PER_ROUND 4 /* then other sockets get their turn */
#define PIECES_MAX 8

struct stream {
    struct loop *loop;
    struct loop_watch *watch;
    int fd;
    const struct stream_events *events;
    void *ctx;
    struct buf in, out;
    size_t in_max, out_max, low_water;
    bool reading;     /* not paused */
    bool eof;         /* FIN was read, or a hang-up reported */
    bool hup_ignored; /* FIN seen while paused: it is level-triggered, so no longer watched for */
    bool failed;      /* the socket is dead; error says why */
    bool reported;    /* on_end(STREAM_ERROR) was called */
    bool kick;        /* show held bytes in the task */
    bool shut, shut_sent;
    unsigned depth; /* callbacks running */
    bool dead;      /* stream_free was called in one; the memory goes when it returns */
    struct loop_task task;
    struct sp_error error;
    uint64_t progress_ms;
};

static void on_watch(unsigned events, void *ctx);
static void on_task(void *ctx);

int stream_new(struct loop *l, int fd, const struct stream_options *opt, const struct stream_events *events, void *ctx,
               struct stream **ret, struct sp_error *err) {
    static const int on = 1;
    static const struct stream_options none;
    struct loop_watch *watch;
    struct stream *s = loop_alloc(sizeof(*s));
    int r = loop_watch_new(l, fd, on_watch, s, &watch, err);
    if (r < 0) {
        free(s);
        return r;
    }
    if (!opt)
        opt = &none;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* fails on unix sockets, as it may */
    *s = (struct stream){.loop = l, .watch = watch, .fd = fd, .events = events, .ctx = ctx};
    s->in_max = opt->in_max ? opt->in_max : IN_MAX;
    s->out_max = opt->out_max ? opt->out_max : OUT_MAX;
    s->low_water = opt->low_water ? opt->low_water : s->out_max / 4;
    buf_init(&s->in, s->in_max);
    buf_init(&s->out, s->out_max);
    s->task.fn = on_task;
    s->task.ctx = s;
    s->progress_ms = loop_now_ms(l);
    loop_watch_set(watch, LOOP_HANGUP); /* errors are reported from now on */
    *ret = s;
    return 0;
}

static void release(struct stream *s) {
    buf_done(&s->in); /* the owner may be looking at it until its callback returned */
    free(s);
}

struct stream *stream_free(struct stream *s) {
    if (!s || s->dead)
        return NULL;
    loop_defer_cancel(&s->task);
    loop_watch_free(s->watch, true);
    buf_done(&s->out);
    s->dead = s->failed = true;
    if (s->depth == 0)
        release(s);
    return NULL;
}

void stream_set_events(struct stream *s, const struct stream_events *events, void *ctx) {
    s->events = events;
    s->ctx = ctx;
}

static void update_watch(struct stream *s) {
    unsigned events = 0;
    if (!s->failed) {
        if (s->reading && !s->eof && s->in.len < s->in_max)
            events |= LOOP_READABLE;
        else if (!s->eof && !s->hup_ignored)
            events |= LOOP_HANGUP;
        if (s->out.len > 0)
            events |= LOOP_WRITABLE;
    }
    loop_watch_set(s->watch, events);
}

/* Remembers why the socket is dead; the report follows in the task or by the caller. */
static void set_failed(struct stream *s, int err_no, const char *op) {
    if (s->failed)
        return;
    s->failed = true;
    sp_error_errno(&s->error, err_no, op, "connection failed");
    s->error.code = SP_E_UNAVAILABLE;
    buf_done(&s->out);
    update_watch(s);
}

/* After a callback: false when the stream was freed in it (s is no pointer any more then). */
static bool leave(struct stream *s) {
    s->depth--;
    if (!s->dead)
        return true;
    if (s->depth == 0)
        release(s);
    return false;
}

/* These call the owner; false when the stream was freed there. */
static bool report_end(struct stream *s, enum stream_end end) {
    s->depth++;
    s->events->on_end(s->ctx, end);
    return leave(s);
}

static bool report_drain(struct stream *s) {
    if (!s->events->on_drain)
        return true;
    s->depth++;
    s->events->on_drain(s->ctx);
    return leave(s);
}

static bool report_failure(struct stream *s) {
    if (!s->failed || s->reported)
        return true;
    s->reported = true;
    return report_end(s, STREAM_ERROR);
}

static bool show(struct stream *s, const char *data, size_t len, size_t *ret_used) {
    s->depth++;
    *ret_used = s->events->on_read(s->ctx, data, len);
    assert(s->dead || *ret_used <= len);
    return leave(s);
}

static bool show_held(struct stream *s) {
    size_t used;
    if (s->in.len == 0 || !s->reading)
        return true;
    if (!show(s, s->in.data, s->in.len, &used))
        return false;
    buf_consume(&s->in, used);
    if (s->in.len == 0 && used > KEEP)
        buf_done(&s->in);
    return true;
}

/* n fresh bytes are in the loop's buffer. They are copied only when somebody left something over. */
static bool take_bytes(struct stream *s, const char *data, size_t n) {
    size_t used;
    if (s->in.len > 0) {
        if (buf_append(&s->in, data, n) < 0)
            set_failed(s, ENOMEM, "recv");
        return show_held(s);
    }
    if (!show(s, data, n, &used))
        return false;
    if (used < n && buf_append(&s->in, data + used, n - used) < 0)
        set_failed(s, ENOMEM, "recv");
    return true;
}

static bool report_eof(struct stream *s, enum stream_end end) {
    s->eof = true;
    update_watch(s);
    return report_end(s, end);
}

static bool do_read(struct stream *s) {
    for (int i = 0; i < READS_PER_ROUND && s->reading && !s->eof && s->in.len < s->in_max; i++) {
        size_t room = s->in_max - s->in.len;
        char *buffer = s->loop->read_buffer;
        ssize_t n = recv(s->fd, buffer, room < LOOP_READ_SIZE ? room : LOOP_READ_SIZE, MSG_DONTWAIT);
        if (n == 0)
            return report_eof(s, STREAM_EOF);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            if (errno != EAGAIN)
                set_failed(s, errno, "recv");
            break;
        }
        if (!take_bytes(s, buffer, (size_t)n))
            return false;
        if ((size_t)n < LOOP_READ_SIZE && !s->failed)
            break; /* most likely all there was */
    }
    return true;
}

static void send_fin(struct stream *s) {
    if (s->shut && !s->shut_sent && s->out.len == 0 && !s->failed) {
        s->shut_sent = true;
        (void)shutdown(s->fd, SHUT_WR);
    }
}

/* Sends what it can of the pieces; what was sent, or -1 with errno. */
static ssize_t send_pieces(int fd, struct iovec *iov, size_t n) {
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    for (;;) {
        ssize_t sent = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN)
            return 0;
        if (sent >= 0 || errno != EINTR)
            return sent;
    }
}

static bool do_write(struct stream *s) {
    size_t before = s->out.len;
    while (s->out.len > 0) {
        struct iovec iov = {.iov_base = s->out.data, .iov_len = s->out.len};
        ssize_t sent = send_pieces(s->fd, &iov, 1);
        if (sent < 0) {
            set_failed(s, errno, "send");
            return true;
        }
        if (sent == 0)
            break;
        buf_consume(&s->out, (size_t)sent);
        s->progress_ms = loop_now_ms(s->loop);
    }
    if (s->out.len == 0 && before > KEEP)
        buf_done(&s->out);
    send_fin(s);
    bool low = before > s->low_water && s->out.len <= s->low_water;
    return low || (before > 0 && s->out.len == 0) ? report_drain(s) : true;
}

static void on_watch(unsigned events, void *ctx) {
    struct stream *s = ctx;
    if ((events & LOOP_WRITABLE) && !do_write(s))
        return;
    /* After an error the bytes that came before it are still there to be read. */
    if ((events & (LOOP_READABLE | LOOP_ERROR)) && !do_read(s))
        return;
    if ((events & LOOP_HANGUP) && !s->eof && !s->failed) {
        if (s->reading && s->in.len >= s->in_max) {
            if (!report_eof(s, STREAM_HANGUP))
                return;
        } else if (!s->reading) {
            s->hup_ignored = true;
        }
    }
    if ((events & LOOP_ERROR) && !s->failed) {
        int err_no = 0;
        socklen_t len = sizeof(err_no);
        (void)getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err_no, &len);
        set_failed(s, err_no ? err_no : ECONNRESET, "socket");
    }
    if (report_failure(s))
        update_watch(s);
}

static void on_task(void *ctx) {
    struct stream *s = ctx;
    bool kick = s->kick;
    s->kick = false;
    if (kick && !show_held(s))
        return;
    if (report_failure(s))
        update_watch(s);
}

void stream_resume(struct stream *s) {
    s->reading = true;
    s->hup_ignored = false;
    stream_kick(s);
    update_watch(s);
}

void stream_pause(struct stream *s) {
    s->reading = false;
    update_watch(s);
}

void stream_kick(struct stream *s) {
    if (s->in.len == 0)
        return;
    s->kick = true;
    loop_defer(s->loop, &s->task);
}

size_t stream_held(const struct stream *s) {
    return s->in.len;
}

void stream_set_bounds(struct stream *s, size_t out_max, size_t low_water) {
    s->out_max = out_max;
    s->out.max = out_max > s->out.len ? out_max : s->out.len;
    s->low_water = low_water;
}

/* Queues what the kernel did not take: everything after the first `sent` bytes. */
static int queue_rest(struct stream *s, const struct stream_piece *pieces, size_t n, size_t sent) {
    for (size_t i = 0; i < n; i++) {
        size_t skip = sent < pieces[i].len ? sent : pieces[i].len;
        sent -= skip;
        if (buf_append(&s->out, (const char *)pieces[i].data + skip, pieces[i].len - skip) < 0)
            return -ENOMEM;
    }
    return 0;
}

int stream_write_pieces(struct stream *s, const struct stream_piece *pieces, size_t n) {
    struct iovec iov[PIECES_MAX];
    size_t total = 0;
    assert(n <= PIECES_MAX);
    if (s->failed || s->shut)
        return -SP_E_GONE;
    for (size_t i = 0; i < n; i++) {
        iov[i] = (struct iovec){.iov_base = (void *)(uintptr_t)pieces[i].data, .iov_len = pieces[i].len};
        if (pieces[i].len > s->out_max - total)
            return -SP_E_TOO_LARGE;
        total += pieces[i].len;
    }
    if (s->out.len > s->out_max || total > s->out_max - s->out.len)
        return -SP_E_TOO_LARGE;
    ssize_t sent = 0;
    int err_no = 0;
    if (s->out.len == 0 && total > 0) {
        s->progress_ms = loop_now_ms(s->loop);
        sent = send_pieces(s->fd, iov, n);
        err_no = sent < 0 ? errno : 0;
    }
    if (!err_no && (size_t)sent < total && queue_rest(s, pieces, n, (size_t)sent) < 0)
        err_no = ENOMEM;
    if (err_no) {
        set_failed(s, err_no, "send");
        loop_defer(s->loop, &s->task);
        return 0;
    }
    update_watch(s);
    return 0;
}

int stream_write(struct stream *s, const void *data, size_t len) {
    struct stream_piece piece = {data, len};
    return stream_write_pieces(s, &piece, 1);
}

size_t stream_queued(const struct stream *s) {
    return s->out.len;
}

uint64_t stream_last_progress_ms(const struct stream *s) {
    return s->progress_ms;
}

void stream_shutdown(struct stream *s) {
    s->shut = true;
    send_fin(s);
}

void stream_set_abort(struct stream *s) {
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}

const struct sp_error *stream_error(const struct stream *s) {
    return &s->error;
}

int stream_fd(const struct stream *s) {
    return s->fd;
}

struct loop *stream_loop(const struct stream *s) {
    return s->loop;
}
