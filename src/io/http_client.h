/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.1 client on a loop, for http:// over TCP and unix sockets: keep-alive pool an origin, whole or streamed bodies
 * both ways, deadlines, cancel. No redirects, no proxies, no TLS, no cookies. And blocking wrappers for programs
 * without a loop.
 *
 * A kept connection that turns out closed before a byte of the answer came is replaced once, if the request may be
 * repeated: whole body, and GET, HEAD, PUT, DELETE, OPTIONS or with an Idempotency-Key.
 */
#pragma once
#include "base/error.h"
#include "io/loop.h"
#include "wire/http1.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_client;
struct http_call;

struct http_client_options {  /* 0 takes the default */
    unsigned idle_per_origin; /* kept connections: 8 */
    unsigned idle_total;      /* 64 */
    uint64_t idle_timeout_ms; /* 15 s; below every server's of ours */
    unsigned max_calls;       /* running at once; one more is SP_E_UNAVAILABLE: 1024 */
    size_t out_max;           /* queued bytes of a streamed request body: 1 MiB */
};
/* opt NULL: defaults. */
int http_client_new(struct loop *l, const struct http_client_options *opt, struct http_client **ret,
                    struct sp_error *err);
/* Cancels running calls without their callbacks. NULL is fine; returns NULL. */
struct http_client *http_client_free(struct http_client *c);
/* Closes kept connections of an origin (NULL: all); those in use are not kept afterwards. For a peer that was
 * restarted, rolled back or resumed. */
void http_client_forget(struct http_client *c, const char *origin);

struct http_header {
    const char *name, *value;
};

struct http_request {
    const char *origin;                /* "http://host:port" or "unix:/path" */
    uint64_t generation;               /* part of the pool's key: connections of another generation are never used */
    const char *method;                /* NULL: GET */
    const char *target;                /* "/v1/…?…", encoded */
    const char *host;                  /* Host field; NULL: from the origin ("localhost" for unix) */
    const char *bearer;                /* Authorization: Bearer …; NULL: none */
    const struct http_header *headers; /* Host, Content-Length, Transfer-Encoding, Connection are the client's */
    size_t n_headers;
    const char *content_type;
    const void *body; /* whole body, copied */
    size_t body_len;
    bool stream_body; /* body comes by http_call_write/http_call_end instead; content_length -1: chunked */
    int64_t content_length;
    bool stream_response; /* on_body gets pieces; else the body is gathered up to response_max */
    size_t response_max;  /* whole responses: 0 takes 4 MiB; a longer one is SP_E_TOO_LARGE */
    bool allow_upgrade;   /* send Connection: upgrade and hand over the connection on 101 */
    const char *upgrade;  /* value of the Upgrade field */
    int fd;               /* > 0: use this connected socket (taken on success), never kept; origin names it only */
    uint64_t timeout_ms;  /* whole call; 0: none */
    uint64_t connect_timeout_ms; /* 0: 5 s */
    uint64_t idle_timeout_ms;    /* no byte either way while something is awaited; 0: none */
};

struct http_response {
    int status;
    const struct http1_head *head;
    const char *body; /* whole responses: NUL follows; "" for streamed ones */
    size_t body_len;
};

struct http_call_events { /* from the loop only, never from inside a call of this interface */
    /* Streamed responses: the final head (1xx are swallowed, 101 is not). May be NULL. */
    void (*on_head)(struct http_call *c, void *user, const struct http_response *r);
    void (*on_body)(struct http_call *c, void *user, const char *data, size_t len); /* streamed; raw after 101 */
    /* Streamed request body: the queue is at its low-water mark or empty again, or the connection stands now. */
    void (*on_drain)(struct http_call *c, void *user);
    /* Exactly once unless cancelled; the call is freed afterwards. err NULL: the response is complete (any status).
     * After 101 the call is done when the peer ended its side. Errors: SP_E_UNAVAILABLE no connection, or it broke
     * before the head; SP_E_TIMEOUT; SP_E_PROTOCOL malformed or cut response; SP_E_TOO_LARGE. r then has status and
     * head if they had come, else it is NULL. */
    void (*on_done)(struct http_call *c, void *user, const struct sp_error *err, const struct http_response *r);
};
/* Everything in req is copied. */
int http_call_start(struct http_client *c, const struct http_request *req, const struct http_call_events *events,
                    void *user, struct http_call **ret, struct sp_error *err);
/* No callback runs any more; the connection is closed. Also from the call's own callbacks, but on_done, after which the
 * call is gone anyway. NULL is fine; returns NULL. */
struct http_call *http_call_cancel(struct http_call *c);
/* Streamed request bodies, and raw bytes after 101. All or nothing: 0, -SP_E_TOO_LARGE (wait for on_drain), -SP_E_GONE,
 * -SP_E_INVALID (more than content_length). May be called before the connection stands: it queues. */
int http_call_write(struct http_call *c, const void *data, size_t len);
int http_call_end(struct http_call *c);
size_t http_call_queued(const struct http_call *c);
void http_call_pause(struct http_call *c); /* no on_body until resume; the socket is not read */
void http_call_resume(struct http_call *c);

/* ---- blocking, with a private loop ---- */

struct http_result {
    int status;
    struct http1_head head;
    char *body; /* heap, NUL-ended; never NULL on success */
    size_t body_len;
};
void http_result_done(struct http_result *r); /* safe on a zeroed struct */
#define _cleanup_http_result_ __attribute__((cleanup(http_result_done)))
/* 0: a complete response, of any status. *ret is untouched on failure. */
int http_client_call_sync(const struct http_request *req, struct http_result *ret, struct sp_error *err);
/* Streamed response: on_head (may be NULL) and on_body return 0 to go on; another value ends the call and is returned
 * when negative (0 when positive; the response may be incomplete then). ret has status and head, no body. */
int http_client_stream_sync(const struct http_request *req, int (*on_head)(void *ctx, const struct http_response *r),
                            int (*on_body)(void *ctx, const char *data, size_t len), void *ctx, struct http_result *ret,
                            struct sp_error *err);
