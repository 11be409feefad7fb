/* SPDX-License-Identifier: Apache-2.0 */
/* One check a line on stdout, in the Test Anything Protocol. */
#pragma once
#include <stdbool.h>
#include <stdio.h>

static unsigned tap_checks, tap_failures;

static inline void check(bool good, const char *what, const char *detail) {
    tap_checks++;
    tap_failures += !good;
    (void)printf("%s %u - %s%s%s\n", good ? "ok" : "not ok", tap_checks, what, detail && *detail ? ": " : "",
                 detail ? detail : "");
    (void)fflush(stdout);
}

static inline int tap_done(void) {
    (void)printf("1..%u\n", tap_checks);
    return tap_failures > 0;
}
