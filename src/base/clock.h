/* SPDX-License-Identifier: Apache-2.0 */
/* Time. Deadlines are monotonic nanoseconds; wall time only for people and guests. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NSEC_PER_MSEC 1000000ull
#define NSEC_PER_SEC 1000000000ull

uint64_t clock_monotonic_ns(void);
uint64_t clock_realtime_ns(void);
/* RFC 3339 UTC with milliseconds: 2026-01-31T12:00:00.123Z */
#define CLOCK_RFC3339_SIZE 32
const char *clock_rfc3339(char dst[CLOCK_RFC3339_SIZE], uint64_t realtime_ns);

/* A point in monotonic time by which something must have happened. */
struct deadline {
    uint64_t at_ns;
};
struct deadline deadline_in_ms(uint64_t ms);
bool deadline_passed(struct deadline d);
int deadline_poll_ms(struct deadline d); /* milliseconds left for poll(2), rounded up, 0 when passed */
