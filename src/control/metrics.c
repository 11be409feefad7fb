/* SPDX-License-Identifier: Apache-2.0 */
/* Counting and printing. Labels are routes and states only: nothing of a tenant. */
#include "control/metrics.h"
#include "base/text.h"
#include <inttypes.h>

static const uint64_t bounds_us[METRICS_BUCKETS - 1] = {1000,  2500,   5000,   10000,   25000,
                                                        50000, 100000, 500000, 2500000, 30000000};

#define ADD(counter, n) atomic_fetch_add_explicit(&(counter), (n), memory_order_relaxed)
#define GET(counter) atomic_load_explicit(&(counter), memory_order_relaxed)

void metrics_request(struct metrics *m, unsigned route, int status, uint64_t duration_ns) {
    struct metrics_route *r = &m->routes[route < METRICS_ROUTES ? route : METRICS_ROUTES - 1];
    uint64_t us = duration_ns / 1000;
    unsigned bucket = 0;
    while (bucket < METRICS_BUCKETS - 1 && us > bounds_us[bucket])
        bucket++;
    ADD(r->by_class[status >= 100 && status < 600 ? status / 100 : 0], 1);
    ADD(r->buckets[bucket], 1);
    ADD(r->sum_us, us);
}

static void print_route(const struct metrics_route *r, const char *name, struct buf *out) {
    uint64_t total = 0;
    for (unsigned c = 0; c < ARRAY_SIZE(r->by_class); c++)
        if (GET(r->by_class[c]))
            (void)buf_printf(out, "space_http_requests_total{route=\"%s\",class=\"%uxx\"} %" PRIu64 "\n", name, c,
                             GET(r->by_class[c]));
    for (unsigned b = 0; b < METRICS_BUCKETS; b++)
        total += GET(r->buckets[b]);
    if (total == 0)
        return;
    total = 0;
    for (unsigned b = 0; b < METRICS_BUCKETS; b++) {
        char bound[24] = "+Inf";
        if (b < METRICS_BUCKETS - 1)
            (void)text_printf(bound, sizeof(bound), "%g", (double)bounds_us[b] / 1e6);
        total += GET(r->buckets[b]);
        (void)buf_printf(out, "space_http_request_duration_seconds_bucket{route=\"%s\",le=\"%s\"} %" PRIu64 "\n", name,
                         bound, total);
    }
    (void)buf_printf(out, "space_http_request_duration_seconds_sum{route=\"%s\"} %.6f\n", name,
                     (double)GET(r->sum_us) / 1e6);
    (void)buf_printf(out, "space_http_request_duration_seconds_count{route=\"%s\"} %" PRIu64 "\n", name, total);
}

static void print_sums(const struct store_sums *s, struct buf *out) {
    (void)buf_append_str(out, "# TYPE space_sandboxes gauge\n");
    for (unsigned i = 0; i < SANDBOX_STATE_COUNT_; i++)
        (void)buf_printf(out, "space_sandboxes{state=\"%s\"} %" PRIu64 "\n", sandbox_state_name((enum sandbox_state)i),
                         s->sandboxes[i]);
    (void)buf_printf(out,
                     "# TYPE space_sandboxes_ready gauge\nspace_sandboxes_ready %" PRIu64 "\n"
                     "# TYPE space_operations_open gauge\nspace_operations_open %" PRIu64 "\n"
                     "# TYPE space_sessions_open gauge\nspace_sessions_open %" PRIu64 "\n"
                     "# TYPE space_outbox gauge\nspace_outbox %" PRIu64 "\n"
                     "# TYPE space_nodes gauge\nspace_nodes{state=\"ready\"} %" PRIu64 "\n"
                     "space_nodes{state=\"lost\"} %" PRIu64 "\n",
                     s->sandboxes_ready, s->operations_open, s->sessions_open, s->outbox, s->nodes_ready,
                     s->nodes_lost);
}

void metrics_print(const struct metrics *m, const struct store_sums *sums, const char *(*name)(unsigned i),
                   struct buf *out) {
    const struct {
        const char *name, *type;
        uint64_t value;
    } counters[] = {
        {"space_notifications_total", "counter", GET(m->notes)},
        {"space_listener_connects_total", "counter", GET(m->listener_connects)},
        {"space_keeper_passes_total", "counter", GET(m->keeper_passes)},
        {"space_keeper_actions_total", "counter", GET(m->keeper_actions)},
        {"space_keeper_failures_total", "counter", GET(m->keeper_failures)},
        {"space_rows_swept_total", "counter", GET(m->swept)},
        {"space_database_connects_total", "counter", GET(m->worker_connects)},
        {"space_idempotent_replays_total", "counter", GET(m->replays)},
        {"space_requests_parked", "gauge", GET(m->parked_now)},
    };
    print_sums(sums, out);
    for (size_t i = 0; i < ARRAY_SIZE(counters); i++)
        (void)buf_printf(out, "# TYPE %s %s\n%s %" PRIu64 "\n", counters[i].name, counters[i].type, counters[i].name,
                         counters[i].value);
    (void)buf_append_str(out, "# TYPE space_http_requests_total counter\n"
                              "# TYPE space_http_request_duration_seconds histogram\n");
    for (unsigned i = 0; i < METRICS_ROUTES - 1 && name(i); i++)
        print_route(&m->routes[i], name(i), out);
    print_route(&m->routes[METRICS_ROUTES - 1], "none", out);
}
