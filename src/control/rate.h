/* SPDX-License-Identifier: Apache-2.0 */
/* Request rate of each tenant on this replica: token buckets, as many as fit; the stalest one gives way. Any thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define RATE_BUCKETS 1024

struct rate {
    pthread_mutex_t lock;
    struct rate_bucket {
        char tenant_id[32];
        uint64_t at_ns;
        double left;
    } buckets[RATE_BUCKETS];
};
void rate_init(struct rate *r);
/* Takes one request of `per_second` (burst: twice as many). False: none is left; *ret_retry_s says when one will be. */
bool rate_take(struct rate *r, const char *tenant_id, uint64_t per_second, uint64_t now_ns, unsigned *ret_retry_s);
