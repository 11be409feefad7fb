/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server's inside, for http_server.c, http_conn.c, http_route.c, exchange.c and exchange_answer.c only. */
#pragma once
#include "io/http_server.h"
#include "io/listen.h"
#include "io/stream.h"
#include <stdatomic.h>

#define HTTP_LISTENERS_MAX 8
#define HTTP_FIELDS_BYTES 32768u /* added header fields of an answer */
#define HTTP_HEAD_ROOM 65536u    /* queue room beyond out_max: heads, chunk framing */
#define HTTP_LINGER_MS 2000u

enum conn_state {
    CONN_IDLE,   /* no byte of a request yet */
    CONN_HEAD,   /* a head is coming */
    CONN_BODY,   /* the head is complete; the body is coming (or its end is to be noticed) */
    CONN_BUSY,   /* the request is whole or no longer read; the answer is being made or sent */
    CONN_TUNNEL, /* after 101: raw bytes */
    CONN_LINGER, /* answer and FIN sent: input is discarded until the peer closes */
};

struct conn {
    struct http_server *server;
    struct conn *next, *prev;
    struct stream *stream;
    enum conn_state state;
    uint64_t since_ms; /* CONN_BODY: last byte; else when the state was entered */
    struct http1_parser parser;
    struct exchange *x; /* CONN_HEAD to CONN_TUNNEL */
    unsigned requests;
    bool body_pending; /* bytes of the request's body are still to come */
    bool closing;      /* no request after this one */
    bool half_closed;  /* the client's FIN came after the answer was complete */
    bool overflow;     /* over max_connections: only told so */
    bool in_input;     /* input() runs: it looks itself at what calls brought about */
    bool cut;          /* the task ends the exchange as cut_as */
    enum exchange_end cut_as;
    struct loop_task task;
    char peer[ADDRESS_SIZE];
};

struct http_server {
    struct loop *loop;
    struct http_server_options opt;
    struct http_listener {
        struct http_server *server;
        struct loop_watch *watch;
        int fd;
    } listeners[HTTP_LISTENERS_MAX];
    unsigned n_listeners;
    struct conn *conns;
    unsigned n_conns, n_overflow, n_exchanges;
    struct loop_timer *tick; /* time limits of all connections */
    uint64_t tick_ms;
    struct loop_timer *retry; /* accepting again after EMFILE */
    struct loop_timer *grace;
    struct loop_task task; /* stop, and done */
    bool stopping, stop_begun;
    void (*done)(void *ctx);
    void *done_ctx;
    struct http_server_stats stats;
    time_t date_s;
    char date[40];
};

struct exchange {
    atomic_uint refs;
    struct conn *conn; /* NULL: over */
    struct loop *loop;
    void *server_ctx;
    const struct http_route *route;
    struct http1_head head;
    char *path; /* copy without the query; NULL until the head is complete */
    const char *query;
    struct url_params params;
    struct buf body;
    struct buf fields; /* added fields of the answer, serialised */
    const struct exchange_events *events;
    void *user;
    bool dispatched; /* a handler (or before) has seen it */
    bool usurped;    /* the server answers by itself, instead of the handler; the fate is then `fate` */
    enum exchange_end fate;
    bool paused;
    bool body_done; /* on_body_end was called */
    bool started;   /* status line given */
    bool ended;     /* all of the answer given */
    bool chunked, silent /* HEAD, 204, 304: no body */, tunnel, continued;
    bool has_length;
    uint64_t length_left;
    int status;
    size_t queue_max;
    uint64_t body_in, body_out, started_ns;
    struct loop_task late_close; /* events were set when it was over */
    enum exchange_end over_as;
    char peer[ADDRESS_SIZE];
};

/* exchange.c */
struct exchange *exchange_new(struct conn *c);
/* The connection if the handler may still answer, else NULL. */
struct conn *exchange_usable(const struct exchange *x);

/* exchange_answer.c */
/* The server's own answer, also when no handler is there. Connection closes afterwards. */
void exchange_usurp(struct exchange *x, enum exchange_end fate, int status, const char *code, const char *detail);

/* http_route.c */
/* Sets x->route and params; false: no route fits and the problem was answered. */
bool http_route_find(struct http_server *s, struct exchange *x);
int http_problem_render(void *ctx, const struct http_problem *p, struct buf *out, const char **ret_content_type);

/* http_conn.c */
/* Takes fd on success. overflow: it is only told 503. */
int conn_new(struct http_server *s, int fd, const char *peer, bool overflow, struct sp_error *err);
void conn_check_time(struct conn *c, uint64_t now_ms); /* may free c */
void conn_cut(struct conn *c, enum exchange_end as);   /* in the next round */
/* The exchange's answer was given, or more can be read: look in the next round. */
void conn_wake(struct conn *c);
/* Ends its exchange, if any, and frees c. */
void conn_destroy(struct conn *c, enum exchange_end as);
/* No bytes of a request there: may be closed without anybody losing something. */
bool conn_is_idle(const struct conn *c);

/* http_server.c */
void http_server_link(struct http_server *s, struct conn *c);
void http_server_unlink(struct http_server *s, struct conn *c);
const char *http_server_date(struct http_server *s);
