/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP client's inside, for http_client*.c and http_call*.c only. */
#pragma once
#include "io/http_client.h"
#include "io/stream.h"
#include "wire/url.h"

#define HTTP_CLIENT_HEAD_MAX 65536u

/* A connection: used by one call, or kept idle in the pool. */
struct client_conn {
    struct http_client *client;
    struct client_conn *next, *prev; /* idle list, most recently used first */
    struct stream *stream;
    char *origin;
    uint64_t generation;
    uint64_t idle_since_ms;
    bool used;    /* served a call before */
    bool no_keep; /* closed after its call */
};

enum call_state {
    CALL_CONNECTING,
    CALL_HEAD,   /* request goes out, no final head yet */
    CALL_BODY,   /* response body */
    CALL_TUNNEL, /* after 101 */
    CALL_OVER,   /* done or cancelled */
};

struct http_call {
    struct http_client *client;
    struct http_call *next, *prev;
    const struct http_call_events *events;
    void *user;
    enum call_state state;
    unsigned depth; /* frames that hold the pointer; memory goes when the last leaves and state is CALL_OVER */

    /* request */
    char *origin;
    struct url url;
    uint64_t generation, connect_timeout_ms, idle_timeout_ms;
    struct buf head, body; /* serialised; streamed: body is what was written before the connection stood */
    bool stream_body, chunked, body_ended, retryable, head_only, allow_upgrade;
    bool has_length;
    uint64_t length_left;

    /* connection */
    struct stream_connect *connect;
    struct client_conn *conn;
    struct loop_timer *deadline, *idle;
    uint64_t activity_ms;

    /* response */
    bool stream_response, paused;
    bool got_bytes; /* something of the response came: no retry */
    struct http1_parser parser;
    struct http1_head response;
    bool has_response; /* the final head is there */
    struct buf gathered;
    struct loop_task task;
    bool drain_due;
};

struct http_client {
    struct loop *loop;
    struct http_client_options opt;
    struct client_conn *idle_first, *idle_last;
    unsigned n_idle;
    struct http_call *calls;
    unsigned n_calls;
    struct loop_timer *tick; /* idle connections' age; runs while there are some */
};

/* http_call_request.c: checks and serialises; nothing of the call is started. */
int http_call_build(struct http_call *call, const struct http_request *req, struct sp_error *err);

/* http_client.c */
/* A kept connection that fits, or NULL. It is paused, its events are the caller's to set. */
struct client_conn *client_pool_take(struct http_client *c, const char *origin, uint64_t generation);
/* Keeps it for later or closes it. */
void client_pool_give(struct client_conn *conn);
/* Takes fd on success. */
int client_conn_new(struct http_client *c, int fd, const char *origin, uint64_t generation, struct client_conn **ret,
                    struct sp_error *err);
struct client_conn *client_conn_free(struct client_conn *conn);
/* Heap copies with a NUL behind; abort when out of memory. */
char *client_copy_text(const char *s);
char *client_copy_bytes(const char *data, size_t len);
