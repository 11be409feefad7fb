/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One server connection: feeds the parser, moves through enum conn_state, hands the request to its handler, ends the
 * exchange and goes on to the next request or lingers and closes. Runs from the loop only; what an answering call
 * brings about (the end of an exchange, a cut) happens in conn_task in the next round. Functions returning bool say
 * whether the connection still exists.
 */
#include "base/clock.h"
#include "io/http_server_internal.h"
#include "io/loop_internal.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

static size_t on_read(void *ctx, const char *data, size_t len);
static void on_end(void *ctx, enum stream_end end);
static void on_drain(void *ctx);
static const struct stream_events stream_callbacks = {.on_read = on_read, .on_end = on_end, .on_drain = on_drain};

static void set_state(struct conn *c, enum conn_state state) {
    c->state = state;
    c->since_ms = loop_now_ms(c->server->loop);
}

static void conn_task(void *ctx);

/* A request begins. */
static void begin(struct conn *c) {
    c->x = exchange_new(c);
    c->body_pending = false;
    http1_parser_set_body_max(&c->parser, UINT64_MAX);
    http1_parser_start(&c->parser, &c->x->head);
    stream_set_bounds(c->stream, c->server->opt.out_max + HTTP_HEAD_ROOM, c->server->opt.out_max / 4);
    set_state(c, CONN_HEAD);
}

int conn_new(struct http_server *s, int fd, const char *peer, bool overflow, struct sp_error *err) {
    struct http1_limits limits = {.head_max = s->opt.head_max, .target_max = s->opt.target_max, .body_max = UINT64_MAX};
    struct stream_options opt = {.out_max = s->opt.out_max + HTTP_HEAD_ROOM};
    struct conn *c = loop_alloc(sizeof(*c));
    int r = stream_new(s->loop, fd, &opt, &stream_callbacks, c, &c->stream, err);
    if (r < 0) {
        free(c);
        return r;
    }
    c->server = s;
    c->overflow = overflow;
    c->task.fn = conn_task;
    c->task.ctx = c;
    (void)snprintf(c->peer, sizeof(c->peer), "%s", peer);
    http1_parser_init(&c->parser, HTTP1_REQUEST, 0, &limits);
    http_server_link(s, c);
    set_state(c, CONN_IDLE);
    if (overflow) {
        begin(c);
        c->closing = true;
        set_state(c, CONN_BUSY);
        exchange_usurp(c->x, EXCHANGE_ABORTED, 503, sp_code_name(SP_E_UNAVAILABLE), "too many connections");
    }
    stream_resume(c->stream);
    return 0;
}

static void report_over(struct http_server *s, struct exchange *x, enum exchange_end end) {
    if (end != EXCHANGE_COMPLETE)
        s->stats.cut++;
    if (s->opt.log && (x->dispatched || x->status)) {
        struct http_log entry = {.exchange = x,
                                 .route = x->route,
                                 .status = x->status,
                                 .complete = end == EXCHANGE_COMPLETE,
                                 .body_in = x->body_in,
                                 .body_out = x->body_out};
        entry.duration_ns = x->started_ns ? clock_monotonic_ns() - x->started_ns : 0;
        s->opt.log(s->opt.ctx, &entry);
    }
    if (x->events && x->events->on_close)
        x->events->on_close(x, x->over_as);
}

/* The exchange is over: its owner is told, the server's reference goes. */
static void end_exchange(struct conn *c, enum exchange_end end) {
    struct exchange *x = c->x;
    if (!x)
        return;
    c->x = NULL;
    x->conn = NULL;
    x->over_as = x->usurped && end == EXCHANGE_COMPLETE ? x->fate : end;
    if (x->dispatched)
        c->server->n_exchanges--;
    if (x->dispatched || x->status)
        report_over(c->server, x, end);
    exchange_unref(x);
}

void conn_destroy(struct conn *c, enum exchange_end as) {
    end_exchange(c, as);
    loop_defer_cancel(&c->task);
    http_server_unlink(c->server, c);
    c->stream = stream_free(c->stream);
    free(c);
}

bool conn_is_idle(const struct conn *c) {
    return c->state == CONN_IDLE;
}

void conn_cut(struct conn *c, enum exchange_end as) {
    c->cut = true;
    c->cut_as = as;
    loop_defer(c->server->loop, &c->task);
}

/* The answer is out: the next request, or FIN and wait for the peer to close. */
static bool after_answer(struct conn *c) {
    end_exchange(c, EXCHANGE_COMPLETE);
    bool tunnel = c->state == CONN_TUNNEL;
    if (!c->closing && !c->body_pending && !c->server->stopping && !tunnel) {
        set_state(c, CONN_IDLE);
        stream_resume(c->stream);
        return true;
    }
    if (c->half_closed || tunnel) {
        conn_destroy(c, EXCHANGE_COMPLETE);
        return false;
    }
    set_state(c, CONN_LINGER);
    stream_shutdown(c->stream);
    stream_resume(c->stream);
    return true;
}

/* Ends the exchange when its answer was given and handed to the kernel. */
static bool try_finish(struct conn *c) {
    const struct exchange *x = c->x;
    if (!x || !x->ended || stream_queued(c->stream) > 0)
        return true;
    if (c->state == CONN_TUNNEL && !x->body_done)
        return true;
    return after_answer(c);
}

/* ---- the request ---- */

static bool has_body(const struct http1_head *h) {
    return h->framing == HTTP1_BODY_CHUNKED || (h->framing == HTTP1_BODY_LENGTH && h->content_length > 0);
}

/* The path without its query, as text of its own. */
static void split_target(struct exchange *x) {
    struct url_target target;
    bool ok = url_target_split(http1_target(&x->head), &target);
    assert(ok); /* the parser lets only origin-form pass */
    (void)ok;
    x->path = loop_alloc(target.path_len + 1);
    memcpy(x->path, target.path, target.path_len);
    x->query = target.query;
}

/* Handlers answer by calls on the exchange; what those change in c is seen by the caller's loop. */
static void dispatch(struct exchange *x) {
    if (!x->started)
        x->route->handler(x);
}

/* Body bytes of a route that is not to be had are not waited for. */
static void stop_reading_body(struct conn *c) {
    c->closing = c->closing || c->body_pending;
    set_state(c, CONN_BUSY);
}

static void head_complete(struct conn *c) {
    struct exchange *x = c->x;
    struct http_server *s = c->server;
    x->started_ns = clock_monotonic_ns();
    s->stats.requests++;
    c->requests++;
    c->body_pending = has_body(&x->head);
    if (!x->head.keep_alive || c->requests >= s->opt.max_requests)
        c->closing = true;
    split_target(x);
    set_state(c, CONN_BODY);
    if (!http_route_find(s, x)) {
        stop_reading_body(c);
        return;
    }
    http1_parser_set_body_max(&c->parser, x->route->body_max);
    if (x->head.content_length > x->route->body_max) {
        stop_reading_body(c);
        exchange_usurp(x, EXCHANGE_CLIENT_GONE, 413, sp_code_name(SP_E_TOO_LARGE), http1_error_text(HTTP1_E_BODY_LONG));
        return;
    }
    x->dispatched = true;
    s->n_exchanges++;
    if (s->opt.before && !s->opt.before(s->opt.ctx, x)) {
        stop_reading_body(c);
        return;
    }
    if (x->route->flags & HTTP_ROUTE_STREAM_BODY)
        dispatch(x);
    if (!x->paused && !x->started && c->body_pending)
        (void)exchange_continue(x);
}

static void body_bytes(struct conn *c, const struct http1_slice *body) {
    struct exchange *x = c->x;
    x->body_in += body->len;
    c->since_ms = loop_now_ms(c->server->loop);
    if (x->route->flags & HTTP_ROUTE_STREAM_BODY) {
        if (x->events && x->events->on_body && !x->usurped)
            x->events->on_body(x, body->data, body->len);
    } else if (buf_append(&x->body, body->data, body->len) < 0) {
        stop_reading_body(c);
        exchange_usurp(x, EXCHANGE_CLIENT_GONE, 503, sp_code_name(SP_E_UNAVAILABLE), "out of memory for the body");
    }
}

static void body_complete(struct conn *c) {
    struct exchange *x = c->x;
    c->body_pending = false;
    set_state(c, CONN_BUSY);
    if (!(x->route->flags & HTTP_ROUTE_STREAM_BODY)) {
        x->body_done = true;
        dispatch(x);
    } else if (!x->body_done) {
        x->body_done = true;
        if (x->events && x->events->on_body_end)
            x->events->on_body_end(x);
    }
}

static void refuse(struct conn *c) {
    enum http1_error e = c->parser.error;
    int status = http1_error_status(e);
    const char *code = "bad_request";
    if (status == 413)
        code = sp_code_name(SP_E_TOO_LARGE);
    else if (status == 431)
        code = "head_too_large";
    else if (status == 503)
        code = sp_code_name(SP_E_UNAVAILABLE);
    c->server->stats.bad_requests++;
    c->closing = true;
    set_state(c, CONN_BUSY);
    exchange_usurp(c->x, EXCHANGE_CLIENT_GONE, status, code, http1_error_text(e));
}

/* One step of the parser; false when it wants more input. */
static bool parse(struct conn *c, const char *data, size_t len, size_t *used) {
    struct http1_slice body;
    size_t n;
    enum http1_event ev = http1_parser_feed(&c->parser, data + *used, len - *used, &n, &body);
    *used += n;
    switch (ev) {
    case HTTP1_EV_MORE:
        return false;
    case HTTP1_EV_HEAD:
        head_complete(c);
        break;
    case HTTP1_EV_BODY:
        body_bytes(c, &body);
        break;
    case HTTP1_EV_END:
        body_complete(c);
        break;
    case HTTP1_EV_ERROR:
        refuse(c);
        break;
    }
    return true;
}

static void tunnel_bytes(struct conn *c, const char *data, size_t len) {
    struct exchange *x = c->x;
    x->body_in += len;
    if (len > 0 && x->events && x->events->on_body)
        x->events->on_body(x, data, len);
}

/* One step by state; false when it waits for something. */
static bool step(struct conn *c, const char *data, size_t len, size_t *used) {
    switch (c->state) {
    case CONN_IDLE:
        if (*used == len)
            return false;
        begin(c);
        return true;
    case CONN_HEAD:
        return parse(c, data, len, used);
    case CONN_BODY:
        return !c->x->paused && parse(c, data, len, used);
    case CONN_BUSY:
        return false;
    case CONN_TUNNEL:
        if (!c->x->paused) {
            tunnel_bytes(c, data + *used, len - *used);
            *used = len;
        }
        return false;
    case CONN_LINGER:
        *used = len;
        return false;
    }
    return false;
}

/* Takes what it can; *ret_used. False when the connection is gone. */
static bool input(struct conn *c, const char *data, size_t len, size_t *ret_used) {
    bool more = true;
    *ret_used = 0;
    c->in_input = true;
    while (more && !c->cut) {
        enum conn_state before = c->state;
        more = step(c, data, len, ret_used);
        if (!try_finish(c))
            return false;
        more = more || c->state != before;
    }
    c->in_input = false;
    return true;
}

void conn_wake(struct conn *c) {
    if (!c->in_input)
        loop_defer(c->server->loop, &c->task);
}

static size_t on_read(void *ctx, const char *data, size_t len) {
    size_t used = 0;
    (void)input(ctx, data, len, &used);
    return used;
}

static void on_end(void *ctx, enum stream_end end) {
    struct conn *c = ctx;
    struct exchange *x = c->x;
    bool readable_end = end != STREAM_ERROR && x;
    if (readable_end && c->state == CONN_TUNNEL) {
        x->body_done = true;
        if (x->events && x->events->on_body_end)
            x->events->on_body_end(x);
        (void)try_finish(c);
    } else if (readable_end && x->ended) {
        c->half_closed = c->closing = true; /* what was given before is still delivered */
    } else {
        conn_destroy(c, EXCHANGE_CLIENT_GONE);
    }
}

static void on_drain(void *ctx) {
    struct conn *c = ctx;
    struct exchange *x = c->x;
    if (x && x->started && !x->ended && x->events && x->events->on_drain)
        x->events->on_drain(x);
    (void)try_finish(c);
}

/* What calls on the exchange brought about. */
static void conn_task(void *ctx) {
    struct conn *c = ctx;
    size_t used = 0;
    if (c->cut) {
        stream_set_abort(c->stream);
        conn_destroy(c, c->cut_as);
        return;
    }
    if (!try_finish(c))
        return;
    if (stream_held(c->stream) > 0)
        stream_kick(c->stream);
    else
        (void)input(c, "", 0, &used); /* the end of a body may be due without a byte */
}

/* ---- time ---- */

static void time_out(struct conn *c, const char *detail) {
    c->server->stats.timeouts++;
    if (c->x->started) {
        stream_set_abort(c->stream);
        conn_destroy(c, EXCHANGE_TIMEOUT);
        return;
    }
    c->closing = true;
    set_state(c, CONN_BUSY);
    exchange_usurp(c->x, EXCHANGE_TIMEOUT, 408, "request_timeout", detail);
}

void conn_check_time(struct conn *c, uint64_t now_ms) {
    const struct http_server_options *opt = &c->server->opt;
    uint64_t waited = now_ms - c->since_ms;
    if (stream_queued(c->stream) > 0 && now_ms - stream_last_progress_ms(c->stream) > opt->write_timeout_ms) {
        c->server->stats.timeouts++;
        stream_set_abort(c->stream);
        conn_destroy(c, EXCHANGE_TIMEOUT);
        return;
    }
    switch (c->state) {
    case CONN_IDLE:
        if (waited > (c->requests ? opt->idle_timeout_ms : opt->head_timeout_ms))
            conn_destroy(c, EXCHANGE_TIMEOUT);
        break;
    case CONN_HEAD:
        if (waited > opt->head_timeout_ms)
            time_out(c, "the request's header did not come in time");
        break;
    case CONN_BODY:
        if (waited > opt->body_timeout_ms && !c->x->paused && !c->x->ended)
            time_out(c, "the request's body did not come in time");
        break;
    case CONN_LINGER:
        if (waited > HTTP_LINGER_MS)
            conn_destroy(c, EXCHANGE_COMPLETE);
        break;
    case CONN_BUSY:
    case CONN_TUNNEL:
        break;
    }
}
