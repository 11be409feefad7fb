/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call: takes or makes a connection, sends the request, parses the response, ends exactly once. Runs from the loop
 * only. Owner's callbacks may cancel the call: enter/leave keep its memory until the frames below are through.
 */
#include "base/cleanup.h"
#include "io/http_client_internal.h"
#include "io/loop_internal.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RESPONSE_MAX (4u << 20)

static size_t on_read(void *ctx, const char *data, size_t len);
static void on_end(void *ctx, enum stream_end end);
static void on_stream_drain(void *ctx);
static const struct stream_events call_events = {.on_read = on_read, .on_end = on_end, .on_drain = on_stream_drain};

static void acquire(struct http_call *call);

/* ---- life ---- */

static void release(struct http_call *call) {
    free(call->origin);
    buf_done(&call->head);
    buf_done(&call->body);
    buf_done(&call->gathered);
    http1_head_done(&call->response);
    free(call);
}

static void enter(struct http_call *call) {
    call->depth++;
}

/* False when the call is over; it may be freed then. */
static bool leave(struct http_call *call) {
    call->depth--;
    if (call->state != CALL_OVER)
        return true;
    if (call->depth == 0)
        release(call);
    return false;
}

/* Takes the call off everything that could call it. The connection stays. */
static void detach(struct http_call *call) {
    struct http_client *c = call->client;
    call->state = CALL_OVER;
    call->connect = stream_connect_cancel(call->connect);
    call->deadline = loop_timer_free(call->deadline);
    call->idle = loop_timer_free(call->idle);
    loop_defer_cancel(&call->task);
    if (call->prev)
        call->prev->next = call->next;
    else
        c->calls = call->next;
    if (call->next)
        call->next->prev = call->prev;
    c->n_calls--;
}

struct http_call *http_call_cancel(struct http_call *call) {
    if (!call || call->state == CALL_OVER)
        return NULL;
    enter(call);
    detach(call);
    call->conn = client_conn_free(call->conn);
    (void)leave(call);
    return NULL;
}

static struct http_response response_of(const struct http_call *call) {
    return (struct http_response){.status = call->response.status,
                                  .head = &call->response,
                                  .body = call->gathered.data,
                                  .body_len = call->gathered.len};
}

/* The end. err NULL: complete. keep: the connection may serve another call. */
static void finish(struct http_call *call, const struct sp_error *err, bool keep) {
    struct client_conn *conn = TAKE_PTR(call->conn);
    enter(call);
    detach(call);
    if (conn && keep)
        client_pool_give(conn);
    else
        client_conn_free(conn);
    struct http_response r = response_of(call);
    call->events->on_done(call, call->user, err, call->has_response ? &r : NULL);
    (void)leave(call);
}

static void fail(struct http_call *call, enum sp_code code, const char *text) {
    struct sp_error err = {0};
    sp_error_set(&err, code, "%.120s: %s", call->origin, text);
    finish(call, &err, false);
}

/* ---- sending ---- */

static int send_framed(struct http_call *call, const void *data, size_t len) {
    char prefix[HTTP1_CHUNK_PREFIX_MAX];
    if (len == 0)
        return 0;
    if (!call->chunked || call->state == CALL_TUNNEL)
        return stream_write(call->conn->stream, data, len);
    struct stream_piece pieces[3] = {{prefix, http1_chunk_prefix(prefix, len)}, {data, len}, {"\r\n", 2}};
    return stream_write_pieces(call->conn->stream, pieces, 3);
}

/* Everything that is there of the request goes to the connection. */
static void send_request(struct http_call *call) {
    struct stream *s = call->conn->stream;
    size_t whole = call->head.len + call->body.len;
    size_t bound = call->client->opt.out_max + HTTP_CLIENT_HEAD_MAX;
    call->state = CALL_HEAD;
    call->got_bytes = false;
    call->activity_ms = loop_now_ms(call->client->loop);
    http1_parser_start(&call->parser, &call->response);
    if (call->head_only)
        http1_parser_no_body(&call->parser);
    stream_set_events(s, &call_events, call);
    stream_set_bounds(s, whole + HTTP1_CHUNK_PREFIX_MAX > bound ? whole + HTTP1_CHUNK_PREFIX_MAX : bound,
                      call->client->opt.out_max / 4);
    if (!call->stream_body) {
        struct stream_piece pieces[2] = {{call->head.data, call->head.len}, {call->body.data, call->body.len}};
        (void)stream_write_pieces(s, pieces, 2); /* fits the bound; a dead socket shows as on_end */
    } else {
        (void)stream_write(s, call->head.data, call->head.len);
        (void)send_framed(call, call->body.data, call->body.len);
        if (call->body_ended && call->chunked)
            (void)stream_write(s, "0\r\n\r\n", 5);
        buf_done(&call->body);
        call->drain_due = true;
        loop_defer(call->client->loop, &call->task);
    }
    if (!call->paused)
        stream_resume(s);
}

static void on_connected(void *ctx, int fd, const struct sp_error *err) {
    struct http_call *call = ctx;
    struct sp_error local = {0};
    call->connect = NULL;
    if (err) {
        local = *err;
        finish(call, &local, false);
        return;
    }
    if (client_conn_new(call->client, fd, call->origin, call->generation, &call->conn, &local) < 0) {
        (void)close(fd);
        finish(call, &local, false);
        return;
    }
    send_request(call);
}

static int begin_connect(struct http_call *call, struct sp_error *err) {
    struct loop *l = call->client->loop;
    call->state = CALL_CONNECTING;
    if (call->url.scheme == URL_UNIX)
        return stream_connect_unix(l, call->url.host, call->connect_timeout_ms, on_connected, call, &call->connect,
                                   err);
    return stream_connect_tcp(l, call->url.host, call->url.port, call->connect_timeout_ms, on_connected, call,
                              &call->connect, err);
}

static void acquire(struct http_call *call) {
    struct sp_error err = {0};
    if (begin_connect(call, &err) < 0)
        finish(call, &err, false);
}

int http_call_write(struct http_call *call, const void *data, size_t len) {
    size_t out_max = call->client->opt.out_max;
    bool tunnel = call->state == CALL_TUNNEL;
    if (call->state == CALL_OVER || (!tunnel && (!call->stream_body || call->body_ended)))
        return -SP_E_GONE;
    if (!tunnel && call->has_length && len > call->length_left)
        return -SP_E_INVALID;
    size_t queued = http_call_queued(call);
    if (len > out_max || queued > out_max - len)
        return -SP_E_TOO_LARGE;
    int r = call->conn ? send_framed(call, data, len) : buf_append(&call->body, data, len) < 0 ? -SP_E_TOO_LARGE : 0;
    if (r == 0 && !tunnel && call->has_length)
        call->length_left -= len;
    return r;
}

int http_call_end(struct http_call *call) {
    if (call->state == CALL_TUNNEL) {
        stream_shutdown(call->conn->stream);
        return 0;
    }
    if (call->state == CALL_OVER || !call->stream_body || call->body_ended)
        return -SP_E_GONE;
    if (call->has_length && call->length_left > 0)
        return -SP_E_INVALID;
    call->body_ended = true;
    return call->conn && call->chunked ? stream_write(call->conn->stream, "0\r\n\r\n", 5) : 0;
}

size_t http_call_queued(const struct http_call *call) {
    if (call->conn)
        return stream_queued(call->conn->stream);
    return call->stream_body ? call->body.len : 0;
}

void http_call_pause(struct http_call *call) {
    call->paused = true;
    if (call->conn)
        stream_pause(call->conn->stream);
}

void http_call_resume(struct http_call *call) {
    if (!call->paused)
        return;
    call->paused = false;
    call->activity_ms = loop_now_ms(call->client->loop);
    if (!call->conn)
        return;
    stream_resume(call->conn->stream);
    loop_defer(call->client->loop, &call->task); /* an end may be due without a byte */
}

/* ---- receiving ---- */

/* The head of a response: an interim one is skipped. False when the call is over. */
static bool take_head(struct http_call *call) {
    const struct http1_head *h = &call->response;
    if (h->status < 200 && h->status != 101)
        return true;
    if (h->status == 101 && !call->allow_upgrade) {
        fail(call, SP_E_PROTOCOL, "switches protocols unasked");
        return false;
    }
    call->has_response = true;
    call->state = h->status == 101 ? CALL_TUNNEL : CALL_BODY;
    if (call->stream_response && call->events->on_head) {
        struct http_response r = response_of(call);
        enter(call);
        call->events->on_head(call, call->user, &r);
        return leave(call);
    }
    return true;
}

static bool take_body(struct http_call *call, const char *data, size_t len) {
    if (len == 0)
        return true;
    if (!call->stream_response) {
        if (buf_append(&call->gathered, data, len) == 0)
            return true;
        fail(call, SP_E_TOO_LARGE, "the response is longer than allowed");
        return false;
    }
    if (!call->events->on_body)
        return true;
    enter(call);
    call->events->on_body(call, call->user, data, len);
    return leave(call);
}

/* The message is over: an interim one makes room for the next, the final one ends the call. False then. */
static bool take_end(struct http_call *call, bool nothing_left) {
    if (!call->has_response) {
        http1_parser_start(&call->parser, &call->response);
        if (call->head_only)
            http1_parser_no_body(&call->parser);
        return true;
    }
    bool sent = call->body_ended && stream_queued(call->conn->stream) == 0;
    finish(call, NULL, sent && nothing_left && call->response.keep_alive);
    return false;
}

/* One step of the parser. *ret_more: go on. False when the call is over. */
static bool parse(struct http_call *call, const char *data, size_t len, size_t *used, bool *ret_more) {
    struct http1_slice body;
    size_t n;
    enum http1_event ev = http1_parser_feed(&call->parser, data + *used, len - *used, &n, &body);
    *used += n;
    switch (ev) {
    case HTTP1_EV_MORE:
        *ret_more = false;
        return true;
    case HTTP1_EV_HEAD:
        return take_head(call);
    case HTTP1_EV_BODY:
        return take_body(call, body.data, body.len);
    case HTTP1_EV_END:
        return take_end(call, *used == len);
    case HTTP1_EV_ERROR:
        break;
    }
    fail(call, SP_E_PROTOCOL, http1_error_text(call->parser.error));
    return false;
}

static size_t input(struct http_call *call, const char *data, size_t len) {
    size_t used = 0;
    bool more = true;
    while (more && !call->paused) {
        if (call->state == CALL_TUNNEL) {
            (void)take_body(call, data + used, len - used);
            return len;
        }
        if (!parse(call, data, len, &used, &more))
            return len; /* the stream is gone or another's */
    }
    return used;
}

static size_t on_read(void *ctx, const char *data, size_t len) {
    struct http_call *call = ctx;
    call->got_bytes = true;
    call->activity_ms = loop_now_ms(call->client->loop);
    return input(call, data, len);
}

/* A kept connection that was closed before it answered anything: once more, on a fresh one. */
static bool retry(struct http_call *call) {
    if (!call->retryable || !call->conn->used || call->got_bytes)
        return false;
    call->conn = client_conn_free(call->conn);
    acquire(call);
    return true;
}

static void on_end(void *ctx, enum stream_end end) {
    struct http_call *call = ctx;
    if (call->state == CALL_TUNNEL) {
        if (end == STREAM_EOF)
            finish(call, NULL, false);
        else
            fail(call, SP_E_PROTOCOL, "the connection broke");
        return;
    }
    if (end == STREAM_EOF && call->has_response && http1_parser_eof(&call->parser) == HTTP1_EV_END) {
        finish(call, NULL, false);
        return;
    }
    if (call->has_response || call->got_bytes)
        fail(call, SP_E_PROTOCOL, "the response was cut off");
    else if (!retry(call))
        fail(call, SP_E_UNAVAILABLE, "the connection was closed before it answered");
}

static void on_stream_drain(void *ctx) {
    struct http_call *call = ctx;
    call->activity_ms = loop_now_ms(call->client->loop);
    if (call->events->on_drain && (call->stream_body || call->state == CALL_TUNNEL))
        call->events->on_drain(call, call->user);
}

static void on_task(void *ctx) {
    struct http_call *call = ctx;
    enter(call);
    if (call->drain_due) {
        call->drain_due = false;
        if (call->events->on_drain)
            call->events->on_drain(call, call->user);
    }
    if (call->conn && call->state == CALL_BODY && stream_held(call->conn->stream) == 0)
        (void)input(call, "", 0);
    (void)leave(call);
}

/* ---- time ---- */

static void on_deadline(void *ctx) {
    struct http_call *call = ctx;
    fail(call, SP_E_TIMEOUT, call->state == CALL_CONNECTING ? "no connection in time" : "no complete answer in time");
}

static void on_idle(void *ctx) {
    struct http_call *call = ctx;
    uint64_t now = loop_now_ms(call->client->loop);
    if (call->paused || !call->conn)
        call->activity_ms = now;
    uint64_t last = call->activity_ms;
    if (call->conn && stream_queued(call->conn->stream) > 0 && stream_last_progress_ms(call->conn->stream) > last)
        last = stream_last_progress_ms(call->conn->stream);
    if (now - last >= call->idle_timeout_ms)
        fail(call, SP_E_TIMEOUT, "nothing was heard for too long");
}

/* ---- start ---- */

static struct http_call *call_new(struct http_client *c, const struct http_request *req,
                                  const struct http_call_events *events, void *user) {
    struct http1_limits limits = {.head_max = UINT16_MAX, .body_max = UINT64_MAX};
    struct http_call *call = loop_alloc(sizeof(*call));
    call->client = c;
    call->events = events;
    call->user = user;
    call->origin = client_copy_text(req->origin);
    call->task.fn = on_task;
    call->task.ctx = call;
    buf_init(&call->head, HTTP_CLIENT_HEAD_MAX);
    buf_init(&call->body, req->stream_body ? c->opt.out_max : SIZE_MAX / 4);
    buf_init(&call->gathered, req->response_max ? req->response_max : RESPONSE_MAX);
    http1_head_init(&call->response);
    http1_parser_init(&call->parser, HTTP1_RESPONSE, 0, &limits);
    return call;
}

static void start_timers(struct http_call *call, const struct http_request *req) {
    struct loop *l = call->client->loop;
    if (req->timeout_ms) {
        call->deadline = loop_timer_new(l, on_deadline, call);
        loop_timer_start(call->deadline, req->timeout_ms, 0);
    }
    if (req->idle_timeout_ms) {
        uint64_t step = req->idle_timeout_ms / 4 + 1;
        call->idle = loop_timer_new(l, on_idle, call);
        loop_timer_start(call->idle, step, step);
    }
}

/* A connection for the call: the given socket, a kept one, or one that is being made. */
static int attach(struct http_call *call, int fd, struct sp_error *err) {
    if (fd > 0) {
        int r = client_conn_new(call->client, fd, call->origin, call->generation, &call->conn, err);
        if (r < 0)
            return r;
        call->conn->no_keep = true;
    } else {
        call->conn = client_pool_take(call->client, call->origin, call->generation);
        if (!call->conn)
            return begin_connect(call, err);
    }
    send_request(call);
    return 0;
}

int http_call_start(struct http_client *c, const struct http_request *req, const struct http_call_events *events,
                    void *user, struct http_call **ret, struct sp_error *err) {
    if (c->n_calls >= c->opt.max_calls)
        return sp_error_set(err, SP_E_UNAVAILABLE, "too many calls at once");
    struct http_call *call = call_new(c, req, events, user);
    call->activity_ms = loop_now_ms(c->loop);
    int r = http_call_build(call, req, err);
    if (r == 0)
        r = attach(call, req->fd, err);
    if (r < 0) {
        release(call);
        return r;
    }
    call->next = c->calls;
    if (call->next)
        call->next->prev = call;
    c->calls = call;
    c->n_calls++;
    start_timers(call, req);
    if (ret)
        *ret = call;
    return 0;
}
