/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/klog.h"
#include "base/clock.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BURST 20u
#define PERIOD_NS (5 * NSEC_PER_SEC)

static int log_fd = -1;
static uint64_t period_start;
static unsigned in_period, dropped;

void klog_init(void) {
    if (log_fd < 0)
        log_fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC | O_NOCTTY);
}

static bool allowed(void) {
    uint64_t now = clock_monotonic_ns();
    if (period_start == 0 || now - period_start > PERIOD_NS) {
        period_start = now;
        in_period = 0;
    }
    if (in_period >= BURST) {
        dropped++;
        return false;
    }
    in_period++;
    return true;
}

void klog(enum klog_level level, const char *fmt, ...) {
    char line[512];
    int n = 0, m;
    va_list ap;

    if (!allowed())
        return;
    if (log_fd >= 0)
        n = snprintf(line, sizeof(line), "<%d>", (int)level);
    n += snprintf(line + n, sizeof(line) - (size_t)n, "space-guest: ");
    if (dropped > 0)
        n += snprintf(line + n, sizeof(line) - (size_t)n, "(%u lines dropped) ", dropped);
    dropped = 0;
    va_start(ap, fmt);
    m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0)
        return;
    n = (int)strlen(line);
    line[n++] = '\n';
    (void)!write(log_fd >= 0 ? log_fd : STDERR_FILENO, line, (size_t)n);
}
