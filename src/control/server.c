/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start: loop, pool, threads, listening sockets. End: no new connections, parked requests are answered with what they
 * have, running ones get a grace, then the threads are joined. A second signal ends the grace.
 */
#include "control/server.h"
#include "base/log.h"
#include "base/text.h"
#include "control/keeper.h"
#include "control/listener.h"
#include "control/parking.h"
#include "control/routes.h"
#include "io/listen.h"
#include "model/limits.h"
#include "store/store.h"

#define GRACE_MS 10000
#define PUBLIC_OUT_MAX (16u << 20)
#define INTERNAL_OUT_MAX (8u << 20)
#define CONNECTIONS_MAX 4096

static int thread_init(void *ctx, void **ret_thread_ctx, struct sp_error *err) {
    struct control *c = ctx;
    return store_new(c->database_url, CONTROL_STATEMENT_MS, (struct store **)ret_thread_ctx, err);
}

static void thread_done(void *ctx, void *thread_ctx) {
    (void)ctx;
    (void)store_free(thread_ctx);
}

static void on_log(void *ctx, const struct http_log *entry) {
    struct control *c = ctx;
    unsigned index = entry->route ? routes_metric_index(entry->route) : METRICS_ROUTES - 1;
    char status[8], us[24];
    metrics_request(&c->metrics, index, entry->status, entry->duration_ns);
    (void)text_printf(status, sizeof(status), "%d", entry->status);
    (void)text_printf(us, sizeof(us), "%llu", (unsigned long long)(entry->duration_ns / 1000));
    log_event(LOG_L_DEBUG, "request", "action", entry->route ? routes_metric_name(index) : "none", "status", status,
              "us", us, "peer", exchange_peer(entry->exchange), NULL);
}

static int open_server(struct control *c, const char *address, const struct http_route *routes, size_t n,
                       size_t out_max, struct http_server **ret, struct sp_error *err) {
    const struct http_server_options opt = {.routes = routes,
                                            .n_routes = n,
                                            .ctx = c,
                                            .log = on_log,
                                            .out_max = out_max,
                                            .max_connections = CONNECTIONS_MAX};
    char bound[ADDRESS_SIZE];
    int fd = -1;
    int r = listen_tcp(address, &fd, err);
    if (r < 0)
        return r;
    (void)address_local(bound, fd);
    r = http_server_new(c->loop, &opt, ret, err);
    if (r == 0)
        r = http_server_listen(*ret, fd, err);
    if (r < 0) {
        (void)close_fd(fd);
        return r;
    }
    log_event(LOG_L_INFO, "listening", "api", out_max == PUBLIC_OUT_MAX ? "public" : "internal", "address", bound,
              NULL);
    return 0;
}

static void on_server_stopped(void *ctx) {
    struct control *c = ctx;
    if (--c->servers_left == 0)
        loop_stop(c->loop);
}

static void on_signal(int signum, void *ctx) {
    struct control *c = ctx;
    (void)signum;
    if (c->is_stopping) { /* the second one: no more patience */
        loop_stop(c->loop);
        return;
    }
    log_event(LOG_L_INFO, "stopping", NULL);
    c->is_stopping = true;
    c->servers_left = 2;
    http_server_stop(c->public_server, GRACE_MS, on_server_stopped, c);
    http_server_stop(c->internal_server, GRACE_MS, on_server_stopped, c);
    parking_close(&c->parking);
}

static int open_all(struct control *c, struct sp_error *err) {
    const struct worker_pool_options pool = {.threads = CONTROL_WORKERS,
                                             .queue_max = (unsigned)LIMIT_VALUE(waiting_requests),
                                             .name = "worker",
                                             .thread_init = thread_init,
                                             .thread_done = thread_done,
                                             .ctx = c};
    size_t n_public, n_internal;
    const struct http_route *public_routes = routes_public(&n_public), *internal_routes = routes_internal(&n_internal);
    int r = worker_pool_new(c->loop, &pool, &c->pool, err);
    if (r == 0)
        r = loop_on_stop_signal(c->loop, on_signal, c, err);
    if (r == 0)
        r = open_server(c, c->settings.control_listen, public_routes, n_public, PUBLIC_OUT_MAX, &c->public_server, err);
    if (r == 0)
        r = open_server(c, c->settings.internal_listen, internal_routes, n_internal, INTERNAL_OUT_MAX,
                        &c->internal_server, err);
    if (r == 0)
        r = keeper_start(c, err);
    return r < 0 ? r : listener_start(c, err);
}

static void close_all(struct control *c) {
    c->is_stopping = true;
    c->listener = listener_stop(c->listener);
    c->keeper = keeper_stop(c->keeper);
    parking_close(&c->parking);
    c->pool = worker_pool_free(c->pool);
    parking_close(&c->parking);
    c->public_server = http_server_free(c->public_server);
    c->internal_server = http_server_free(c->internal_server);
    parking_done(&c->parking);
}

int server_run(struct control *c, struct sp_error *err) {
    int r = loop_new(&c->loop, err);
    if (r < 0)
        return r;
    rate_init(&c->rate);
    parking_init(&c->parking, c);
    r = open_all(c, err);
    if (r == 0)
        loop_run(c->loop);
    close_all(c);
    c->loop = loop_free(c->loop);
    log_event(LOG_L_INFO, "stopped", NULL);
    return r;
}
