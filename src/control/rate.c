/* SPDX-License-Identifier: Apache-2.0 */
/* Token buckets in a small table that never grows. */
#include "control/rate.h"
#include "base/clock.h"
#include "base/text.h"
#include <string.h>

#define PROBES 8

void rate_init(struct rate *r) {
    memset(r->buckets, 0, sizeof(r->buckets));
    (void)pthread_mutex_init(&r->lock, NULL);
}

static uint64_t hash(const char *s) {
    uint64_t h = 1469598103934665603ull;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211ull;
    return h;
}

/* The tenant's bucket, or a full new one in the place of the stalest neighbour. */
static struct rate_bucket *find(struct rate *r, const char *tenant_id, double burst, uint64_t now_ns) {
    uint64_t start = hash(tenant_id);
    struct rate_bucket *stalest = NULL;
    for (unsigned i = 0; i < PROBES; i++) {
        struct rate_bucket *b = &r->buckets[(start + i) % RATE_BUCKETS];
        if (strcmp(b->tenant_id, tenant_id) == 0)
            return b;
        if (!stalest || b->at_ns < stalest->at_ns)
            stalest = b;
    }
    (void)text_copy(stalest->tenant_id, sizeof(stalest->tenant_id), tenant_id);
    stalest->left = burst;
    stalest->at_ns = now_ns;
    return stalest;
}

bool rate_take(struct rate *r, const char *tenant_id, uint64_t per_second, uint64_t now_ns, unsigned *ret_retry_s) {
    double burst = 2.0 * (double)per_second;
    bool taken;
    (void)pthread_mutex_lock(&r->lock);
    struct rate_bucket *b = find(r, tenant_id, burst, now_ns);
    if (now_ns > b->at_ns) {
        b->left += (double)(now_ns - b->at_ns) / (double)NSEC_PER_SEC * (double)per_second;
        b->at_ns = now_ns;
    }
    if (b->left > burst)
        b->left = burst;
    taken = b->left >= 1.0;
    if (taken)
        b->left -= 1.0;
    (void)pthread_mutex_unlock(&r->lock);
    *ret_retry_s = 1; /* every allowed rate gives at least one request a second */
    return taken;
}
