/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client object and its pool of kept connections. An idle connection stays read: a byte or an end on it closes it,
 * so a connection that the peer has closed is not handed out. Calls are in http_call.c.
 */
#include "io/http_client_internal.h"
#include "io/loop_internal.h"
#include <assert.h>
#include <string.h>

#define TICK_MS 1000

char *client_copy_bytes(const char *data, size_t len) {
    return memcpy(loop_alloc(len + 1), data, len);
}

char *client_copy_text(const char *s) {
    return client_copy_bytes(s, strlen(s));
}

static void unlink_idle(struct client_conn *conn) {
    assert(conn);
    struct http_client *c = conn->client;
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        c->idle_first = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    else
        c->idle_last = conn->prev;
    conn->next = conn->prev = NULL;
    c->n_idle--;
    if (c->n_idle == 0)
        loop_timer_stop(c->tick);
}

static void drop_idle(struct client_conn *conn) {
    unlink_idle(conn);
    client_conn_free(conn);
}

static size_t idle_read(void *ctx, const char *data, size_t len) {
    (void)data;
    drop_idle(ctx); /* nobody asked */
    return len;
}

static void idle_end(void *ctx, enum stream_end end) {
    (void)end;
    drop_idle(ctx);
}

static const struct stream_events idle_events = {.on_read = idle_read, .on_end = idle_end};

int client_conn_new(struct http_client *c, int fd, const char *origin, uint64_t generation, struct client_conn **ret,
                    struct sp_error *err) {
    struct stream_options opt = {.out_max = c->opt.out_max + HTTP_CLIENT_HEAD_MAX};
    struct client_conn *conn = loop_alloc(sizeof(*conn));
    int r = stream_new(c->loop, fd, &opt, &idle_events, conn, &conn->stream, err);
    if (r < 0) {
        free(conn);
        return r;
    }
    conn->client = c;
    conn->origin = client_copy_text(origin);
    conn->generation = generation;
    *ret = conn;
    return 0;
}

struct client_conn *client_conn_free(struct client_conn *conn) {
    if (!conn)
        return NULL;
    stream_free(conn->stream);
    free(conn->origin);
    free(conn);
    return NULL;
}

struct client_conn *client_pool_take(struct http_client *c, const char *origin, uint64_t generation) {
    for (struct client_conn *conn = c->idle_first; conn; conn = conn->next) {
        if (conn->generation != generation || strcmp(conn->origin, origin) != 0)
            continue;
        unlink_idle(conn);
        stream_pause(conn->stream);
        return conn;
    }
    return NULL;
}

/* The oldest of its origin when that has its share, else the oldest of all when there are too many. */
static void make_room(struct http_client *c, const char *origin) {
    struct client_conn *oldest = NULL;
    unsigned n = 0;
    for (struct client_conn *conn = c->idle_first; conn; conn = conn->next) {
        if (strcmp(conn->origin, origin) == 0) {
            oldest = conn;
            n++;
        }
    }
    if (n >= c->opt.idle_per_origin)
        drop_idle(oldest);
    else if (c->n_idle >= c->opt.idle_total)
        drop_idle(c->idle_last);
}

void client_pool_give(struct client_conn *conn) {
    struct http_client *c = conn->client;
    if (conn->no_keep || stream_held(conn->stream) > 0 || stream_queued(conn->stream) > 0) {
        client_conn_free(conn);
        return;
    }
    make_room(c, conn->origin);
    conn->used = true;
    conn->idle_since_ms = loop_now_ms(c->loop);
    conn->prev = NULL;
    conn->next = c->idle_first;
    if (conn->next)
        conn->next->prev = conn;
    else
        c->idle_last = conn;
    c->idle_first = conn;
    if (c->n_idle++ == 0)
        loop_timer_start(c->tick, TICK_MS, TICK_MS);
    stream_set_events(conn->stream, &idle_events, conn);
    stream_set_bounds(conn->stream, c->opt.out_max + HTTP_CLIENT_HEAD_MAX, c->opt.out_max / 4);
    stream_resume(conn->stream);
}

static void on_tick(void *ctx) {
    struct http_client *c = ctx;
    while (c->idle_last && loop_now_ms(c->loop) - c->idle_last->idle_since_ms >= c->opt.idle_timeout_ms)
        drop_idle(c->idle_last);
}

int http_client_new(struct loop *l, const struct http_client_options *opt, struct http_client **ret,
                    struct sp_error *err) {
    (void)err;
    struct http_client *c = loop_alloc(sizeof(*c));
    if (opt)
        c->opt = *opt;
    if (!c->opt.idle_per_origin)
        c->opt.idle_per_origin = 8;
    if (!c->opt.idle_total)
        c->opt.idle_total = 64;
    if (!c->opt.idle_timeout_ms)
        c->opt.idle_timeout_ms = 15000;
    if (!c->opt.max_calls)
        c->opt.max_calls = 1024;
    if (!c->opt.out_max)
        c->opt.out_max = 1u << 20;
    c->loop = l;
    c->tick = loop_timer_new(l, on_tick, c);
    *ret = c;
    return 0;
}

struct http_client *http_client_free(struct http_client *c) {
    if (!c)
        return NULL;
    while (c->calls)
        http_call_cancel(c->calls);
    while (c->idle_first)
        drop_idle(c->idle_first);
    loop_timer_free(c->tick);
    free(c);
    return NULL;
}

void http_client_forget(struct http_client *c, const char *origin) {
    struct client_conn *next;
    for (struct client_conn *conn = c->idle_first; conn; conn = next) {
        next = conn->next;
        if (!origin || strcmp(conn->origin, origin) == 0)
            drop_idle(conn);
    }
    for (struct http_call *call = c->calls; call; call = call->next)
        if (call->conn && (!origin || strcmp(call->origin, origin) == 0))
            call->conn->no_keep = true;
}
