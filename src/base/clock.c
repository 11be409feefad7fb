/* SPDX-License-Identifier: Apache-2.0 */
/* Time: the only readers of the host's clocks. Deadlines saturate instead of wrapping. */
#include "base/clock.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t read_clock(clockid_t id) {
    struct timespec ts;
    if (clock_gettime(id, &ts) < 0 || ts.tv_sec < 0)
        abort();
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

uint64_t clock_monotonic_ns(void) {
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_realtime_ns(void) {
    return read_clock(CLOCK_REALTIME);
}

const char *clock_rfc3339(char dst[CLOCK_RFC3339_SIZE], uint64_t realtime_ns) {
    struct tm tm;
    time_t seconds = (time_t)(realtime_ns / NSEC_PER_SEC);
    unsigned ms = (unsigned)(realtime_ns % NSEC_PER_SEC / NSEC_PER_MSEC);
    size_t n;

    dst[0] = '\0';
    /* 64 bits of nanoseconds end in the year 2554: four digits always fit. */
    if (!gmtime_r(&seconds, &tm))
        return dst;
    n = strftime(dst, CLOCK_RFC3339_SIZE, "%Y-%m-%dT%H:%M:%S", &tm);
    if (n == 0 || snprintf(dst + n, CLOCK_RFC3339_SIZE - n, ".%03uZ", ms % 1000) != 5)
        dst[0] = '\0';
    return dst;
}

struct deadline deadline_in_ms(uint64_t ms) {
    struct deadline d;
    uint64_t ns;
    if (__builtin_mul_overflow(ms, NSEC_PER_MSEC, &ns) || __builtin_add_overflow(clock_monotonic_ns(), ns, &d.at_ns))
        d.at_ns = UINT64_MAX;
    return d;
}

bool deadline_passed(struct deadline d) {
    return clock_monotonic_ns() >= d.at_ns;
}

int deadline_poll_ms(struct deadline d) {
    uint64_t now = clock_monotonic_ns(), ms;
    if (now >= d.at_ns)
        return 0;
    ms = (d.at_ns - now - 1) / NSEC_PER_MSEC + 1;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}
