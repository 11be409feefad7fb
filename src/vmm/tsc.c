/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the host's time stamp counter ticks. A guest counts time with it (its clocksource is tsc), so an error here
 * is the guest's clock drift: 10 ppm are 0.9 s a day. What the hardware or hypervisor states is taken; else measured.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/text.h"
#include "vmm/driver.h"
#include <fcntl.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>

#define MEASURE_NS (60 * NSEC_PER_MSEC)
#define SANE_MIN_KHZ 100000
#define SANE_MAX_KHZ 20000000

static uint64_t khz_from_sysfs(void) {
    _cleanup_free_ char *text = NULL;
    uint64_t khz = 0;
    size_t len;
    if (file_read(AT_FDCWD, "/sys/devices/system/cpu/cpu0/tsc_freq_khz", 64, &text, &len, NULL) < 0)
        return 0;
    text[strcspn(text, "\n")] = '\0';
    return text_to_u64(text, SANE_MIN_KHZ, SANE_MAX_KHZ, &khz) ? khz : 0;
}

/* Leaf 0x15: crystal frequency and the ratio of TSC to it. 0x40000010: what a hypervisor says, in kHz. */
static uint64_t khz_from_cpuid(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(0x15, &a, &b, &c, &d) && a && b && c)
        return (uint64_t)c * b / a / 1000;
    __cpuid(1, a, b, c, d);
    if (!(c & (1u << 31))) /* no hypervisor */
        return 0;
    __cpuid(0x40000000, a, b, c, d);
    if (a < 0x40000010)
        return 0;
    __cpuid(0x40000010, a, b, c, d);
    return a >= SANE_MIN_KHZ && a <= SANE_MAX_KHZ ? a : 0;
}

/* A pair of readings taken close together: the tightest of a few tries. */
struct reading {
    uint64_t tsc, ns;
};
static struct reading read_pair(void) {
    struct reading best = {0};
    uint64_t tightest = UINT64_MAX;
    for (int i = 0; i < 32; i++) {
        struct timespec t;
        uint64_t before = __rdtsc(), after;
        (void)clock_gettime(CLOCK_MONOTONIC_RAW, &t);
        after = __rdtsc();
        if (after - before < tightest) {
            tightest = after - before;
            best = (struct reading){before + (after - before) / 2,
                                    (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec};
        }
    }
    return best;
}

static uint64_t khz_measured(void) {
    struct timespec pause = {.tv_nsec = (long)MEASURE_NS};
    struct reading from = read_pair(), to;
    (void)nanosleep(&pause, NULL);
    to = read_pair();
    if (to.ns <= from.ns || to.tsc <= from.tsc)
        return 0;
    return (uint64_t)(((__uint128_t)(to.tsc - from.tsc) * (NSEC_PER_SEC / 1000) + (to.ns - from.ns) / 2) /
                      (to.ns - from.ns));
}

/* Constant and non-stop across power states. */
static bool tsc_is_invariant(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8));
}

uint64_t host_tsc_khz(void) {
    uint64_t khz;
    if ((khz = khz_from_sysfs()) != 0 || (khz = khz_from_cpuid()) != 0)
        return khz;
    if (!tsc_is_invariant())
        return 0;
    khz = khz_measured();
    return khz >= SANE_MIN_KHZ && khz <= SANE_MAX_KHZ ? khz : 0;
}

#else
uint64_t host_tsc_khz(void) {
    return 0;
}
#endif
