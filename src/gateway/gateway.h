/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data plane's program as a whole: what every exchange of it shares. Stateless beside caches: killing it costs
 * clients a reconnect with Last-Event-ID.
 */
#pragma once
#include "gateway/grant.h"
#include "gateway/session_table.h"
#include "io/http_server.h"
#include "io/internal_client.h"
#include "model/settings.h"

/* Limits of the data plane; docs and tests name them. */
#define GATEWAY_STREAMS_PER_SESSION 16u
#define GATEWAY_CALLS_PER_SESSION 16u
#define GATEWAY_STREAMS_MAX 10000u      /* in all, and never more than half of the descriptors */
#define GATEWAY_BODY_MAX 4096u          /* resize, signal */
#define GATEWAY_HIGH_WATER (64u * 1024) /* queued for a client: above it the guest is not read */
#define GATEWAY_LOW_WATER (32u * 1024)  /* and below it again */
#define GATEWAY_QUEUE_MAX (128u * 1024) /* hard bound of that queue: high water, one event, framing */
#define GATEWAY_HEARTBEAT_MS 10000u
#define GATEWAY_WRITE_STALL_MS 300000u /* a client that takes no byte for so long is cut off */
#define GATEWAY_OPEN_MS 5000u          /* for a sandbox to accept a stream */

struct exit_watch;
struct session_reports;

/* Counters since the start, for /metrics. */
struct gateway_stats {
    uint64_t streams, calls, events, stdin_bytes, heartbeats;
    uint64_t refused, gone, violations, client_gone, stalled;
};

struct gateway {
    const struct settings *settings;
    struct loop *loop;
    struct internal_client *control;
    struct http_server *server;
    struct grant_cache *grants;
    struct session_table *sessions;
    struct session_reports *reports;
    struct exit_watch *exits;
    struct buf scratch; /* events of the record batch that is being handled; empty between callbacks */
    unsigned streams, streams_max;
    bool stopping;
    struct gateway_stats stats;
};

/* Everything but listening; *g is zeroed before. */
int gateway_init(struct gateway *g, struct loop *l, const struct settings *s, struct sp_error *err);
void gateway_done(struct gateway *g);

/* Handlers of the routes, one file each. */
void events_handler(struct exchange *x);  /* event_stream.c */
void stdin_handler(struct exchange *x);   /* stdin_call.c */
void resize_handler(struct exchange *x);  /* control_call.c */
void signal_handler(struct exchange *x);  /* control_call.c */
void healthz_handler(struct exchange *x); /* health.c */
void readyz_handler(struct exchange *x);  /* health.c */
void metrics_handler(struct exchange *x); /* health.c */
