/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.1 server on a loop: routing table, buffered or streamed request bodies, whole or streamed responses, bounds
 * and time limits on everything. A connection serves one exchange at a time; pipelined requests wait in order.
 *
 * An exchange is counted: the server holds one reference until the exchange is over, and whoever keeps the pointer
 * beyond a callback (a worker's job, a parked long poll) holds another. Once it is over (answered, or the client gone)
 * on_close has run, every call that would answer returns -SP_E_GONE and does nothing, and only the memory of the
 * request lives on until the last exchange_unref(). Reading the request and ref/unref are allowed from any
 * thread while a reference is held and, for a streamed body, the head only; everything else is the loop's.
 *
 * A client that closes its connection, or only its sending side, before the answer was complete counts as gone.
 */
#pragma once
#include "base/error.h"
#include "io/loop.h"
#include "wire/http1.h"
#include "wire/url.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_server;
struct exchange;

/* ---- routes ---- */

#define HTTP_ROUTE_STREAM_BODY 1u /* handler runs at the head; the body comes through exchange_events.on_body */

struct http_route {
    const char *method;  /* "GET"; a HEAD request takes the GET route, its body is left out. "*": any method */
    const char *pattern; /* see url_match() */
    /* Runs when the body is whole (or at the head, see flags). Answers now, or later after exchange_ref(). */
    void (*handler)(struct exchange *x);
    uint64_t body_max; /* bytes; more is 413. 0: no body allowed. Streamed routes may use UINT64_MAX */
    unsigned flags;
    const void *data; /* the owner's: e.g. required scope */
};

/* A failure to be shown to a client. */
struct http_problem {
    int status;
    const char *code;   /* stable word: a sp_code_name(), or method_not_allowed, request_timeout, head_too_large, … */
    const char *field;  /* "" when none */
    const char *detail; /* for people */
};

/* One line for logs and metrics when an exchange is over. */
struct http_log {
    const struct exchange *exchange;
    const struct http_route *route; /* NULL when none matched */
    int status;                     /* 0: nothing was sent */
    bool complete;                  /* the whole answer was handed to the kernel */
    uint64_t body_in, body_out;     /* bytes */
    uint64_t duration_ns;           /* head complete → end */
};

struct http_server_options {
    const struct http_route *routes; /* static */
    size_t n_routes;
    void *ctx; /* exchange_server_ctx(), and first argument of the hooks below */
    /* Before the table: a route for this request (by Host, say), or NULL to look into the table. */
    const struct http_route *(*select)(void *ctx, struct exchange *x);
    /* After routing, before the body is read or 100 Continue is sent. False: it has answered, or will. */
    bool (*before)(void *ctx, struct exchange *x);
    /* Renders a problem; default application/problem+json {type, title, status, code, field?, detail}. */
    int (*render)(void *ctx, const struct http_problem *p, struct buf *out, const char **ret_content_type);
    void (*log)(void *ctx, const struct http_log *entry);
    /* Limits; 0 takes the default. */
    size_t head_max;          /* HTTP1_HEAD_MAX */
    size_t target_max;        /* HTTP1_TARGET_MAX */
    size_t out_max;           /* bytes queued for one connection: 4 MiB (plus the head) */
    unsigned max_connections; /* 1024; the next one is told 503 and closed */
    unsigned max_requests;    /* per connection, then close: 100000 */
    uint64_t head_timeout_ms; /* first byte of a request → end of its head, and connect → first head: 10 s → 408 */
    uint64_t idle_timeout_ms;  /* between requests: 75 s */
    uint64_t body_timeout_ms;  /* no byte of the body while it is wanted: 30 s → 408 */
    uint64_t write_timeout_ms; /* queued bytes and none taken by the client: 30 s → reset */
};

/* opt is copied; what it points to must outlive the server. */
int http_server_new(struct loop *l, const struct http_server_options *opt, struct http_server **ret,
                    struct sp_error *err);
/* Accepts on a listening socket (TCP or unix stream), which becomes the server's on success. At most 8. */
int http_server_listen(struct http_server *s, int listen_fd, struct sp_error *err);
/* Serves an accepted connection; takes fd on success. */
int http_server_adopt(struct http_server *s, int fd, struct sp_error *err);
/* From the next round on: closes the listeners and idle connections, asks the others (on_shutdown), lets them finish
 * for grace_ms, then cuts them; done (may be NULL) runs from the loop when no connection is left, and may free the
 * server. May be called again to shorten the grace; done and ctx are those of the last call. */
void http_server_stop(struct http_server *s, uint64_t grace_ms, void (*done)(void *ctx), void *ctx);
/* Cuts what is left at once (on_close runs). Exchanges that are still referenced live on as memory. Never from inside a
 * callback of this server. NULL is fine; returns NULL. */
struct http_server *http_server_free(struct http_server *s);
struct http_server_stats {
    unsigned connections, exchanges;      /* now */
    uint64_t accepted, refused, requests; /* since the start; refused: over max_connections */
    uint64_t bad_requests, timeouts;      /* refused by the parser; by a time limit */
    uint64_t cut;                         /* exchanges that ended before their answer was complete */
};
void http_server_get_stats(const struct http_server *s, struct http_server_stats *ret);

/* ---- the request ---- */

struct exchange *exchange_ref(struct exchange *x);   /* any thread; returns x */
struct exchange *exchange_unref(struct exchange *x); /* any thread; NULL is fine; returns NULL */

const char *exchange_method(const struct exchange *x);
const char *exchange_path(const struct exchange *x);  /* raw, without the query */
const char *exchange_query(const struct exchange *x); /* raw; "" when none */
const struct http1_head *exchange_head(const struct exchange *x);
const char *exchange_header(const struct exchange *x, const char *name); /* first of that name, or NULL */
const char *exchange_param(const struct exchange *x, const char *name);  /* decoded; NULL: not in the pattern */
const char *exchange_tail(const struct exchange *x); /* what "{...}" matched, raw; NULL without one */
/* Bearer token out of Authorization, or NULL. */
const char *exchange_bearer(const struct exchange *x);
/* As url_query_get. */
int exchange_query_get(const struct exchange *x, const char *key, char *value, size_t size);
/* Whole body of a buffered route, NUL follows it; "" when none. */
const char *exchange_body(const struct exchange *x, size_t *ret_len);
const struct http_route *exchange_route(const struct exchange *x);
const char *exchange_peer(const struct exchange *x); /* "127.0.0.1:5555" */
void *exchange_server_ctx(const struct exchange *x);
struct loop *exchange_loop(const struct exchange *x);
uint64_t exchange_started_ns(const struct exchange *x); /* monotonic; when the head was complete */

/* ---- events of a long exchange ---- */

enum exchange_end {
    EXCHANGE_COMPLETE,    /* the whole answer was handed to the kernel */
    EXCHANGE_CLIENT_GONE, /* closed, reset, or broke the protocol inside the body */
    EXCHANGE_TIMEOUT,     /* body or write time limit */
    EXCHANGE_ABORTED,     /* exchange_abort, or the server stopped */
};
struct exchange_events { /* all may be NULL; from the loop only, never from inside a call on the exchange */
    void (*on_body)(struct exchange *x, const char *data, size_t len); /* streamed bodies; raw bytes after an upgrade */
    void (*on_body_end)(struct exchange *x);                           /* the body is whole / the client sent FIN */
    void (*on_drain)(struct exchange *x);                              /* queue at or under its low-water mark again */
    void (*on_shutdown)(struct exchange *x);                           /* the server stops: end early if you can */
    void (*on_close)(struct exchange *x, enum exchange_end end); /* exactly once, last; also after a full answer */
};
/* Static table and the owner's pointer; set in the handler, or later from the loop. Streamed bodies begin to flow when
 * the handler returned, unless it called exchange_body_pause. On an exchange that is over, on_close is called in the
 * next round. */
void exchange_set_events(struct exchange *x, const struct exchange_events *events, void *user);
void *exchange_user(const struct exchange *x);
void exchange_body_pause(struct exchange *x); /* back-pressure: the client's socket is not read */
void exchange_body_resume(struct exchange *x);
bool exchange_is_over(const struct exchange *x);     /* loop thread */
bool exchange_has_started(const struct exchange *x); /* an answer, or its head, was given */

/* ---- the answer ---- */
/* All return 0, or -SP_E_GONE when the exchange is over, -SP_E_CONFLICT when called in the wrong order, -SP_E_TOO_LARGE
 * over a bound, -SP_E_INVALID for a header that could break the framing. Date, Content-Length, Transfer-Encoding and
 * Connection are the server's. Answering before a streamed body was read closes the connection afterwards. */

/* Before respond/start. All of them together ≤ 32 KiB. */
int exchange_add_header(struct exchange *x, const char *name, const char *value);
/* Whole answer; body is copied. content_type NULL: none. len ≤ out_max. */
int exchange_respond(struct exchange *x, int status, const char *content_type, const void *body, size_t len);
/* Problem documents: from an error (its code gives the status), or spelled out. 429 and 503 get Retry-After: 1 unless
 * one was added. field NULL: none. */
int exchange_fail(struct exchange *x, const struct sp_error *error);
int exchange_problem(struct exchange *x, int status, const char *code, const char *field, const char *detail);
/* Streamed answer: start, any number of writes, end. length: bytes to come, or -1: chunked (HTTP/1.0: until close).
 * With a length, writing more is -SP_E_INVALID and ending early cuts the connection. To HEAD, and with 204 and 304,
 * written bytes are dropped. */
int exchange_start(struct exchange *x, int status, const char *content_type, int64_t length);
/* All or nothing: -SP_E_TOO_LARGE when the queue would pass its bound; wait for on_drain. A piece longer than the bound
 * itself is never taken. */
int exchange_write(struct exchange *x, const void *data, size_t len);
int exchange_end(struct exchange *x);
size_t exchange_queued(const struct exchange *x); /* bytes accepted and not yet taken by the kernel */
/* Tighter bound for this answer (≤ out_max), and its low-water mark. Default out_max and a quarter of it. */
void exchange_set_queue_max(struct exchange *x, size_t max, size_t low_water);
/* An interim 100 Continue if the client waits for one; otherwise nothing. Done by itself when a body is read. */
int exchange_continue(struct exchange *x);
/* 101 Switching Protocols to `protocol`, with the added headers. From then on on_body/exchange_write carry raw bytes
 * both ways, exchange_end() shuts the sending side; over when both sides ended or either is cut. Needs
 * exchange_head(x)->upgrade and a request without body. */
int exchange_upgrade(struct exchange *x, const char *protocol);
/* Resets the connection: the client sees a broken transfer, never a clean end. */
void exchange_abort(struct exchange *x);
