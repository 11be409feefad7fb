/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of this process, for /metrics. Written from any thread with relaxed atomics. */
#pragma once
#include "base/buf.h"
#include "store/maintenance.h"
#include <stdatomic.h>
#include <stdint.h>

#define METRICS_ROUTES 80
#define METRICS_BUCKETS 11 /* of durations; the last one is +Inf */

struct metrics_route {
    _Atomic uint64_t by_class[6]; /* status / 100; 0: nothing was sent */
    _Atomic uint64_t buckets[METRICS_BUCKETS];
    _Atomic uint64_t sum_us;
};
struct metrics {
    struct metrics_route routes[METRICS_ROUTES]; /* by index of the route; the last one for requests that match none */
    _Atomic uint64_t notes, listener_connects, keeper_passes, keeper_actions, keeper_failures, swept;
    _Atomic uint64_t worker_connects, retries, replays, parked_now;
};

void metrics_request(struct metrics *m, unsigned route, int status, uint64_t duration_ns);
/* Text exposition format. name(i): label of route i, NULL past the last. */
void metrics_print(const struct metrics *m, const struct store_sums *sums, const char *(*name)(unsigned i),
                   struct buf *out);
