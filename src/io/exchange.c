/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchange as its handler sees it before the answer: reference counting, the request's parts, events and
 * back-pressure. Answers are in exchange_answer.c. Once over, x->conn is NULL and only memory is left.
 */
#include "io/http_server_internal.h"
#include "io/loop_internal.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void run_late_close(void *ctx) {
    struct exchange *x = ctx;
    if (x->events && x->events->on_close)
        x->events->on_close(x, x->over_as);
    exchange_unref(x);
}

struct exchange *exchange_new(struct conn *c) {
    struct exchange *x = loop_alloc(sizeof(*x));
    atomic_init(&x->refs, 1);
    x->conn = c;
    x->loop = c->server->loop;
    x->server_ctx = c->server->opt.ctx;
    x->query = "";
    x->fate = EXCHANGE_COMPLETE;
    x->queue_max = c->server->opt.out_max;
    x->late_close.fn = run_late_close;
    x->late_close.ctx = x;
    memcpy(x->peer, c->peer, sizeof(x->peer));
    http1_head_init(&x->head);
    buf_init(&x->body, SIZE_MAX / 4); /* the parser holds it to the route's body_max */
    buf_init(&x->fields, HTTP_FIELDS_BYTES);
    return x;
}

struct exchange *exchange_ref(struct exchange *x) {
    atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
    return x;
}

struct exchange *exchange_unref(struct exchange *x) {
    if (!x)
        return NULL;
    unsigned before = atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1) {
        assert(!x->conn);
        http1_head_done(&x->head);
        buf_done(&x->body);
        buf_done(&x->fields);
        free(x->path);
        free(x);
    }
    return NULL;
}

struct conn *exchange_usable(const struct exchange *x) {
    return x->conn && !x->usurped && !x->conn->cut ? x->conn : NULL;
}

/* ---- the request ---- */

const char *exchange_method(const struct exchange *x) {
    return http1_method(&x->head);
}

const char *exchange_path(const struct exchange *x) {
    return x->path ? x->path : "";
}

const char *exchange_query(const struct exchange *x) {
    return x->query;
}

const struct http1_head *exchange_head(const struct exchange *x) {
    return &x->head;
}

const char *exchange_header(const struct exchange *x, const char *name) {
    return http1_get(&x->head, name);
}

const char *exchange_param(const struct exchange *x, const char *name) {
    return url_param(&x->params, name);
}

const char *exchange_tail(const struct exchange *x) {
    return x->params.tail; /* NUL-ended: it reaches to the end of x->path */
}

const char *exchange_bearer(const struct exchange *x) {
    const char *value = http1_get(&x->head, "Authorization");
    if (!value || strncasecmp(value, "Bearer ", 7) != 0)
        return NULL;
    value += 7 + strspn(value + 7, " ");
    return *value ? value : NULL;
}

int exchange_query_get(const struct exchange *x, const char *key, char *value, size_t size) {
    return url_query_get(x->query, strlen(x->query), key, value, size);
}

const char *exchange_body(const struct exchange *x, size_t *ret_len) {
    if (ret_len)
        *ret_len = x->body.len;
    return x->body.data;
}

const struct http_route *exchange_route(const struct exchange *x) {
    return x->route;
}

const char *exchange_peer(const struct exchange *x) {
    return x->peer;
}

void *exchange_server_ctx(const struct exchange *x) {
    return x->server_ctx;
}

struct loop *exchange_loop(const struct exchange *x) {
    return x->loop;
}

uint64_t exchange_started_ns(const struct exchange *x) {
    return x->started_ns;
}

/* ---- events ---- */

void exchange_set_events(struct exchange *x, const struct exchange_events *events, void *user) {
    bool first = !x->events;
    x->events = events;
    x->user = user;
    if (!x->conn && first && events) {
        exchange_ref(x);
        loop_defer(x->loop, &x->late_close);
    }
}

void *exchange_user(const struct exchange *x) {
    return x->user;
}

bool exchange_is_over(const struct exchange *x) {
    return !exchange_usable(x);
}

bool exchange_has_started(const struct exchange *x) {
    return x->started;
}

/* While the request is whole and the answer is being made the socket stays read, so that a vanished client is seen. */
void exchange_body_pause(struct exchange *x) {
    const struct conn *c = exchange_usable(x);
    if (!c)
        return;
    x->paused = true;
    if (c->state == CONN_BODY || c->state == CONN_TUNNEL)
        stream_pause(c->stream);
}

void exchange_body_resume(struct exchange *x) {
    struct conn *c = exchange_usable(x);
    if (!c || !x->paused)
        return;
    x->paused = false;
    c->since_ms = loop_now_ms(x->loop);
    if (c->state == CONN_BODY && !x->started && c->body_pending)
        (void)exchange_continue(x);
    stream_resume(c->stream);
    conn_wake(c);
}
