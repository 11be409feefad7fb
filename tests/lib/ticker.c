/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For benchmarks, inside a guest: `ticker tick` writes a byte every millisecond to stdout; `ticker dirty MIB_PER_S MIB` writes to
 * pages of a buffer of MIB at that rate.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u

static void next_ms(struct timespec *t) {
    t->tv_nsec += 1000000;
    if (t->tv_nsec >= 1000000000) {
        t->tv_nsec -= 1000000000;
        t->tv_sec++;
    }
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, t, NULL);
}

int main(int argc, char **argv) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (argc == 2 && strcmp(argv[1], "tick") == 0)
        for (;;) {
            next_ms(&t);
            if (write(1, "x", 1) != 1)
                return 1;
        }
    if (argc != 4 || strcmp(argv[1], "dirty") != 0)
        return 64;
    uint64_t per_second = (uint64_t)atoi(argv[2]) * (1048576 / PAGE),
             pages = (uint64_t)atoi(argv[3]) * (1048576 / PAGE);
    uint8_t *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return 1;
    for (uint64_t ms = 0, next = 0;; ms++) {
        for (uint64_t due = (ms + 1) * per_second / 1000; next < due; next++)
            at[next % pages * PAGE]++;
        next_ms(&t);
    }
}
