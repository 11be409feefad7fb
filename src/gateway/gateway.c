/* SPDX-License-Identifier: Apache-2.0 */
/* Routes and limits of the data plane, and what its exchanges share. */
#include "gateway/gateway.h"
#include "base/log.h"
#include "base/text.h"
#include "gateway/exit_watch.h"
#include "gateway/session_report.h"
#include <sys/resource.h>

#define SCRATCH_MAX (GATEWAY_QUEUE_MAX - 1024)
#define DESCRIPTORS_RESERVED 512u

static const struct http_route routes[] = {
    {.method = "GET", .pattern = "/v1/sessions/{session_id}/events", .handler = events_handler},
    {.method = "POST",
     .pattern = "/v1/sessions/{session_id}/stdin",
     .handler = stdin_handler,
     .body_max = UINT64_MAX,
     .flags = HTTP_ROUTE_STREAM_BODY},
    {.method = "POST",
     .pattern = "/v1/sessions/{session_id}/resize",
     .handler = resize_handler,
     .body_max = GATEWAY_BODY_MAX},
    {.method = "POST",
     .pattern = "/v1/sessions/{session_id}/signal",
     .handler = signal_handler,
     .body_max = GATEWAY_BODY_MAX},
    {.method = "GET", .pattern = "/healthz", .handler = healthz_handler},
    {.method = "GET", .pattern = "/readyz", .handler = readyz_handler},
    {.method = "GET", .pattern = "/metrics", .handler = metrics_handler},
};

/* Raises the soft limit to the hard one; how many streams fit, at two descriptors each. */
static unsigned streams_allowed(void) {
    struct rlimit limit;
    uint64_t pairs;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 128;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0 && getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 128;
    pairs = limit.rlim_cur > DESCRIPTORS_RESERVED ? (limit.rlim_cur - DESCRIPTORS_RESERVED) / 2 : 16;
    if (pairs < GATEWAY_STREAMS_MAX)
        log_event(LOG_L_WARN, "few_descriptors", "why",
                  "the limit on open files allows fewer streams than the gateway would", NULL);
    return pairs < GATEWAY_STREAMS_MAX ? (unsigned)pairs : GATEWAY_STREAMS_MAX;
}

static void on_exchange_over(void *ctx, const struct http_log *entry) {
    char status[16], duration[32];
    (void)ctx;
    (void)text_printf(status, sizeof(status), "%d", entry->status);
    (void)text_printf(duration, sizeof(duration), "%llu", (unsigned long long)(entry->duration_ns / 1000000));
    log_event(LOG_L_DEBUG, "request", "method", exchange_method(entry->exchange), "path",
              exchange_path(entry->exchange), "status", status, "duration_ms", duration, NULL);
}

static int server_init(struct gateway *g, struct sp_error *err) {
    const struct http_server_options options = {
        .routes = routes,
        .n_routes = ARRAY_SIZE(routes),
        .ctx = g,
        .log = on_exchange_over,
        .out_max = GATEWAY_QUEUE_MAX,
        .max_connections = g->streams_max + DESCRIPTORS_RESERVED / 2,
        .body_timeout_ms = GATEWAY_WRITE_STALL_MS,
        .write_timeout_ms = GATEWAY_WRITE_STALL_MS,
    };
    return http_server_new(g->loop, &options, &g->server, err);
}

int gateway_init(struct gateway *g, struct loop *l, const struct settings *s, struct sp_error *err) {
    static const unsigned per_session[SESSION_USES] = {
        [SESSION_STREAM] = GATEWAY_STREAMS_PER_SESSION, [SESSION_CALL] = GATEWAY_CALLS_PER_SESSION};
    int r;
    g->settings = s;
    g->loop = l;
    g->streams_max = streams_allowed();
    buf_init(&g->scratch, SCRATCH_MAX);
    g->grants = grant_cache_new();
    g->sessions = session_table_new(per_session);
    r = internal_client_new(l, s->internal_urls, s->internal_token_file, &g->control, err);
    if (r == 0) {
        g->reports = session_reports_new(l, g->control);
        g->exits = exit_watch_new(l, s->state_dir, g->reports);
        r = server_init(g, err);
    }
    if (r < 0)
        gateway_done(g);
    return r;
}

void gateway_done(struct gateway *g) {
    g->server = http_server_free(g->server);
    g->exits = exit_watch_free(g->exits);
    g->reports = session_reports_free(g->reports);
    g->control = internal_client_free(g->control);
    g->sessions = session_table_free(g->sessions);
    g->grants = grant_cache_free(g->grants);
    buf_done(&g->scratch);
}
