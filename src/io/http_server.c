/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server as a whole: defaults, listeners and accepting, the list of connections, one timer for all their time
 * limits, stopping, statistics. Connections are in http_conn.c.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/http_server_internal.h"
#include "io/loop_internal.h"
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define ACCEPTS_PER_ROUND 64
#define ACCEPT_RETRY_MS 100
#define OVERFLOW_MAX 64 /* connections over the limit that are told so at once; more are closed without a word */
#define TICK_MIN_MS 10
#define TICK_MAX_MS 1000

static void default_u64(uint64_t *field, uint64_t fallback) {
    if (*field == 0)
        *field = fallback;
}

static void fill_defaults(struct http_server_options *o) {
    if (!o->head_max)
        o->head_max = HTTP1_HEAD_MAX;
    if (!o->target_max)
        o->target_max = HTTP1_TARGET_MAX;
    if (!o->out_max)
        o->out_max = 4u << 20;
    if (!o->max_connections)
        o->max_connections = 1024;
    if (!o->max_requests)
        o->max_requests = 100000;
    if (!o->render)
        o->render = http_problem_render;
    default_u64(&o->head_timeout_ms, 10000);
    default_u64(&o->idle_timeout_ms, 75000);
    default_u64(&o->body_timeout_ms, 30000);
    default_u64(&o->write_timeout_ms, 30000);
}

/* A quarter of the shortest limit, within bounds: how late a limit may be noticed. */
static uint64_t tick_length(const struct http_server_options *o) {
    uint64_t limits[] = {o->head_timeout_ms, o->idle_timeout_ms, o->body_timeout_ms, o->write_timeout_ms};
    uint64_t tick = TICK_MAX_MS * 4;
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        tick = limits[i] < tick ? limits[i] : tick;
    return tick / 4 > TICK_MIN_MS ? tick / 4 : TICK_MIN_MS;
}

static void on_tick(void *ctx) {
    struct http_server *s = ctx;
    struct conn *next;
    uint64_t now = loop_now_ms(s->loop);
    for (struct conn *c = s->conns; c; c = next) {
        next = c->next;
        conn_check_time(c, now); /* frees no connection but c */
    }
}

static void on_retry(void *ctx) {
    struct http_server *s = ctx;
    for (unsigned i = 0; i < s->n_listeners; i++)
        loop_watch_set(s->listeners[i].watch, LOOP_READABLE);
}

static void on_grace(void *ctx) {
    struct http_server *s = ctx;
    for (struct conn *c = s->conns; c; c = c->next)
        conn_cut(c, EXCHANGE_ABORTED);
}

static void on_task(void *ctx);

int http_server_new(struct loop *l, const struct http_server_options *opt, struct http_server **ret,
                    struct sp_error *err) {
    struct http_server_options o = *opt;
    fill_defaults(&o);
    if (o.head_max > UINT16_MAX || o.target_max > o.head_max)
        return sp_error_set(err, SP_E_INVALID, "head_max must be at most 65535 and target_max at most head_max");
    struct http_server *s = loop_alloc(sizeof(*s));
    s->loop = l;
    s->opt = o;
    s->tick_ms = tick_length(&o);
    s->tick = loop_timer_new(l, on_tick, s);
    s->retry = loop_timer_new(l, on_retry, s);
    s->grace = loop_timer_new(l, on_grace, s);
    s->task.fn = on_task;
    s->task.ctx = s;
    *ret = s;
    return 0;
}

/* ---- connections ---- */

void http_server_link(struct http_server *s, struct conn *c) {
    c->next = s->conns;
    if (c->next)
        c->next->prev = c;
    s->conns = c;
    s->n_conns++;
    s->n_overflow += c->overflow;
    if (s->n_conns == 1)
        loop_timer_start(s->tick, s->tick_ms, s->tick_ms);
}

void http_server_unlink(struct http_server *s, struct conn *c) {
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_conns--;
    s->n_overflow -= c->overflow;
    if (s->n_conns == 0)
        loop_timer_stop(s->tick);
    if (s->n_conns == 0 && s->stopping)
        loop_defer(s->loop, &s->task);
}

/* Takes fd. */
static void take_connection(struct http_server *s, int fd, const struct sockaddr_storage *sa, socklen_t len) {
    char peer[ADDRESS_SIZE];
    struct sp_error err;
    bool overflow = s->n_conns - s->n_overflow >= s->opt.max_connections;
    if (overflow)
        s->stats.refused++;
    else
        s->stats.accepted++;
    if (overflow && s->n_overflow >= OVERFLOW_MAX) {
        (void)close_fd(fd);
        return;
    }
    if (conn_new(s, fd, address_format(peer, sa, len), overflow, &err) < 0) {
        log_error(LOG_L_WARN, "http_accept_failed", &err, NULL);
        (void)close_fd(fd);
    }
}

static void on_listener(unsigned events, void *ctx) {
    struct http_listener *listener = ctx;
    struct http_server *s = listener->server;
    (void)events;
    for (int i = 0; i < ACCEPTS_PER_ROUND; i++) {
        struct sockaddr_storage sa = {0};
        socklen_t len = sizeof(sa);
        int fd = accept4(listener->fd, (struct sockaddr *)&sa, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            take_connection(s, fd, &sa, len);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno != EAGAIN) { /* out of descriptors or memory: leave them in the backlog for a while */
            struct sp_error err = {0};
            sp_error_errno(&err, errno, "accept4", "cannot accept connections");
            log_error(LOG_L_WARN, "http_accept_failed", &err, NULL);
            for (unsigned k = 0; k < s->n_listeners; k++)
                loop_watch_set(s->listeners[k].watch, 0);
            loop_timer_start(s->retry, ACCEPT_RETRY_MS, 0);
        }
        return;
    }
}

int http_server_listen(struct http_server *s, int listen_fd, struct sp_error *err) {
    if (s->n_listeners == HTTP_LISTENERS_MAX || s->stopping)
        return sp_error_set(err, SP_E_CONFLICT, "the server takes no further listener");
    struct http_listener *listener = &s->listeners[s->n_listeners];
    listener->server = s;
    listener->fd = listen_fd;
    int r = loop_watch_new(s->loop, listen_fd, on_listener, listener, &listener->watch, err);
    if (r < 0)
        return r;
    s->n_listeners++;
    loop_watch_set(listener->watch, LOOP_READABLE);
    return 0;
}

int http_server_adopt(struct http_server *s, int fd, struct sp_error *err) {
    char peer[ADDRESS_SIZE];
    if (s->stopping)
        return sp_error_set(err, SP_E_UNAVAILABLE, "the server stops");
    int r = conn_new(s, fd, address_peer(peer, fd), false, err);
    if (r == 0)
        s->stats.accepted++;
    return r;
}

const char *http_server_date(struct http_server *s) {
    time_t now = (time_t)(clock_realtime_ns() / NSEC_PER_SEC);
    struct tm tm;
    if (now != s->date_s && gmtime_r(&now, &tm)) {
        s->date_s = now;
        (void)strftime(s->date, sizeof(s->date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    }
    return s->date;
}

void http_server_get_stats(const struct http_server *s, struct http_server_stats *ret) {
    *ret = s->stats;
    ret->connections = s->n_conns;
    ret->exchanges = s->n_exchanges;
}

/* ---- stopping ---- */

static void close_listeners(struct http_server *s) {
    for (unsigned i = 0; i < s->n_listeners; i++)
        loop_watch_free(s->listeners[i].watch, true);
    s->n_listeners = 0;
    loop_timer_stop(s->retry);
}

static void ask_to_end(struct conn *c) {
    struct exchange *x = c->x;
    if (exchange_usable(x) && !x->ended && x->events && x->events->on_shutdown)
        x->events->on_shutdown(x);
}

static void begin_stop(struct http_server *s) {
    struct conn *next;
    s->stop_begun = true;
    close_listeners(s);
    for (struct conn *c = s->conns; c; c = next) {
        next = c->next;
        if (conn_is_idle(c))
            conn_destroy(c, EXCHANGE_ABORTED);
        else if (c->x)
            ask_to_end(c);
    }
}

/* Deferred, so that no connection is freed inside anybody's callback. */
static void on_task(void *ctx) {
    struct http_server *s = ctx;
    if (s->stopping && !s->stop_begun)
        begin_stop(s);
    if (s->stop_begun && s->n_conns == 0) {
        void (*done)(void *ctx) = s->done;
        s->done = NULL;
        loop_timer_stop(s->grace);
        if (done)
            done(s->done_ctx); /* may free s */
    }
}

void http_server_stop(struct http_server *s, uint64_t grace_ms, void (*done)(void *ctx), void *ctx) {
    s->stopping = true;
    s->done = done;
    s->done_ctx = ctx;
    loop_timer_start(s->grace, grace_ms, 0);
    loop_defer(s->loop, &s->task);
}

struct http_server *http_server_free(struct http_server *s) {
    if (!s)
        return NULL;
    s->stopping = true;
    close_listeners(s);
    while (s->conns)
        conn_destroy(s->conns, EXCHANGE_ABORTED);
    loop_defer_cancel(&s->task);
    loop_timer_free(s->tick);
    loop_timer_free(s->retry);
    loop_timer_free(s->grace);
    free(s);
    return NULL;
}
