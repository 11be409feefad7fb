/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CONNECT handshake and record reading. What the owner does not want yet is held here, at most one read of the stream,
 * which stays paused until it is used up: so its end is seen after everything that came before it. A callback may free
 * the connection while we are inside its read handler: the memory then lives until that handler is left (`depth`).
 */
#include "gateway/guest_conn.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "io/stream.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_ 256
#define IN_MAX (64u * 1024)
#define LOW_WATER (48u * 1024)

enum guest_state { GUEST_CONNECTING, GUEST_ASKED, GUEST_OPEN, GUEST_ENDED };

struct guest_conn {
    enum guest_state state;
    struct loop *loop;
    struct stream_connect *connect;
    struct stream *stream;
    struct loop_timer *timer; /* until the stream stands */
    struct record_reader reader;
    struct buf held;       /* bytes the owner has not seen */
    struct loop_task task; /* shows them */
    bool paused;           /* by the owner */
    bool cut;              /* the stream ended while bytes were held */
    bool freed;            /* guest_conn_free was called inside a callback */
    unsigned depth;        /* callbacks running */
    const struct guest_conn_events *events;
    void *ctx;
};

static void destroy(struct guest_conn *c) {
    stream_connect_cancel(c->connect);
    stream_free(c->stream);
    loop_timer_free(c->timer);
    loop_defer_cancel(&c->task);
    record_reader_done(&c->reader);
    buf_done(&c->held);
    free(c);
}

static void enter(struct guest_conn *c) {
    c->depth++;
}

/* True when the connection still exists. */
static bool leave(struct guest_conn *c) {
    c->depth--;
    if (!c->freed)
        return true;
    if (c->depth == 0)
        destroy(c);
    return false;
}

struct guest_conn *guest_conn_free(struct guest_conn *c) {
    if (!c)
        return NULL;
    if (c->stream)
        stream_set_abort(c->stream);
    c->freed = true;
    loop_defer_cancel(&c->task);
    c->stream = stream_free(c->stream);
    c->connect = stream_connect_cancel(c->connect);
    if (c->depth == 0)
        destroy(c);
    return NULL;
}

/* Tells the owner and lets go of the socket. The owner may free us. */
static void end(struct guest_conn *c, enum guest_end why, const char *text) {
    c->state = GUEST_ENDED;
    loop_timer_stop(c->timer);
    c->stream = stream_free(c->stream);
    enter(c);
    c->events->on_end(c->ctx, why, text);
    (void)leave(c);
}

/* The answer to CONNECT. Returns bytes used; 0 with the state unchanged: more is needed. */
static size_t read_answer(struct guest_conn *c, const char *data, size_t len) {
    char line[LINE_MAX_], text[LINE_MAX_];
    const char *eol = memchr(data, '\n', len < sizeof(line) ? len : sizeof(line) - 1);
    size_t n = eol ? (size_t)(eol - data) : 0;
    if (!eol) {
        if (len >= sizeof(line) - 1)
            end(c, GUEST_VIOLATION, "no answer to CONNECT");
        return 0;
    }
    memcpy(line, data, n);
    line[n] = '\0';
    if (text_starts_with(line, "ERR ")) {
        end(c, GUEST_REFUSED, text_escape(text, sizeof(text), line + 4, strlen(line + 4)));
        return 0;
    }
    if (!text_starts_with(line, "OK ") || strlen(line) != n) {
        end(c, GUEST_VIOLATION, "a malformed answer to CONNECT");
        return 0;
    }
    c->state = GUEST_OPEN;
    loop_timer_stop(c->timer);
    c->events->on_open(c->ctx);
    return n + 1;
}

/* Records out of data until it is used up or the owner has enough; returns what was used. */
static size_t read_records(struct guest_conn *c, const char *data, size_t len) {
    struct view in = {.p = (const uint8_t *)data, .len = len};
    struct record rec;
    int r = 0;
    while (!c->freed && !c->paused && (r = record_next(&c->reader, &in, &rec)) > 0)
        c->paused = !c->events->on_record(c->ctx, &rec);
    if (!c->freed && r < 0)
        end(c, GUEST_VIOLATION, "a malformed record");
    else if (!c->freed && c->events->on_batch_end)
        c->events->on_batch_end(c->ctx);
    return len - in.len;
}

/* Takes everything: what was not used waits in `held`, with the stream paused. */
static size_t on_read(void *ctx, const char *data, size_t len) {
    struct guest_conn *c = ctx;
    size_t used = 0;
    enter(c);
    if (c->state == GUEST_ASKED)
        used = read_answer(c, data, len);
    if (!c->freed && c->state == GUEST_ASKED) { /* half a line */
        (void)leave(c);
        return 0;
    }
    if (!c->freed && c->state == GUEST_OPEN && used < len)
        used += read_records(c, data + used, len - used);
    if (!c->freed && c->state == GUEST_OPEN && (c->paused || used < len)) {
        stream_pause(c->stream);
        if (buf_append(&c->held, data + used, len - used) < 0)
            end(c, GUEST_CLOSED, "out of memory");
        else if (!c->paused) /* the owner wanted more in the end */
            loop_defer(c->loop, &c->task);
    }
    (void)leave(c);
    return len;
}

/* Gives the memory back: most streams hold nothing most of the time. */
static void drop_memory(struct buf *b) {
    buf_done(b);
    buf_init(b, IN_MAX);
}

/* What was held; then the stream again, or its end. */
static void on_task(void *ctx) {
    struct guest_conn *c = ctx;
    size_t used;
    if (c->state != GUEST_OPEN || c->paused)
        return;
    enter(c);
    used = read_records(c, c->held.data, c->held.len);
    if (!c->freed && c->state == GUEST_OPEN) {
        buf_consume(&c->held, used);
        if (c->held.len == 0)
            drop_memory(&c->held);
        if (!c->paused && c->held.len > 0)
            loop_defer(c->loop, &c->task);
        else if (!c->paused && c->cut)
            end(c, GUEST_CLOSED, "the stream to the sandbox ended");
        else if (!c->paused)
            stream_resume(c->stream);
    }
    (void)leave(c);
}

static void on_stream_end(void *ctx, enum stream_end why) {
    struct guest_conn *c = ctx;
    (void)why;
    if (c->state == GUEST_OPEN && (c->paused || c->held.len > 0)) {
        c->cut = true;
        return;
    }
    end(c, c->state == GUEST_OPEN ? GUEST_CLOSED : GUEST_UNREACHABLE, "the stream to the sandbox ended");
}

static void on_stream_drain(void *ctx) {
    struct guest_conn *c = ctx;
    enter(c);
    if (c->state == GUEST_OPEN && c->events->on_drain)
        c->events->on_drain(c->ctx);
    (void)leave(c);
}

static const struct stream_events stream_table = {.on_read = on_read,
                                                  .on_end = on_stream_end,
                                                  .on_drain = on_stream_drain};

static void on_connected(void *ctx, int fd, const struct sp_error *failure) {
    static const struct stream_options options = {.in_max = IN_MAX,
                                                  .out_max = GUEST_CONN_QUEUE_MAX,
                                                  .low_water = LOW_WATER};
    static const char ask[] = "CONNECT 1\n";
    struct guest_conn *c = ctx;
    struct sp_error err = {0};
    c->connect = NULL;
    if (failure || stream_new(c->loop, fd, &options, &stream_table, c, &c->stream, &err) < 0) {
        if (!failure)
            (void)close_fd(fd);
        end(c, GUEST_UNREACHABLE, failure ? failure->text : err.text);
        return;
    }
    c->state = GUEST_ASKED;
    (void)stream_write(c->stream, ask, sizeof(ask) - 1);
    stream_resume(c->stream);
}

static void on_timeout(void *ctx) {
    struct guest_conn *c = ctx;
    c->connect = stream_connect_cancel(c->connect);
    end(c, GUEST_UNREACHABLE, "the sandbox did not answer in time");
}

int guest_conn_new(struct loop *l, const char *state_dir, const char *sandbox_id, uint64_t open_ms,
                   const struct guest_conn_events *events, void *ctx, struct guest_conn **ret, struct sp_error *err) {
    char path[128];
    struct guest_conn *c;
    int r;
    if (!text_printf(path, sizeof(path), "%s/run/vm/%s/guest.sock", state_dir, sandbox_id))
        return sp_error_set(err, SP_E_INTERNAL, "path of the guest socket is too long");
    c = calloc(1, sizeof(*c));
    if (!c)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    *c = (struct guest_conn){.loop = l, .events = events, .ctx = ctx, .task = {.fn = on_task, .ctx = c}};
    buf_init(&c->held, IN_MAX);
    r = stream_connect_unix(l, path, open_ms, on_connected, c, &c->connect, err);
    if (r < 0) {
        free(c);
        return r;
    }
    c->timer = loop_timer_new(l, on_timeout, c);
    loop_timer_start(c->timer, open_ms, 0);
    *ret = c;
    return 0;
}

void guest_conn_resume(struct guest_conn *c) {
    if (c->state == GUEST_OPEN && c->paused) {
        c->paused = false;
        loop_defer(c->loop, &c->task);
    }
}

int guest_conn_write(struct guest_conn *c, const void *data, size_t len) {
    return c->state == GUEST_OPEN ? stream_write(c->stream, data, len) : -SP_E_GONE;
}

size_t guest_conn_queued(const struct guest_conn *c) {
    return c->state == GUEST_OPEN ? stream_queued(c->stream) : 0;
}

void guest_conn_shutdown(struct guest_conn *c) {
    if (c->state == GUEST_OPEN)
        stream_shutdown(c->stream);
}
