/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads random numbers as fast as it can and notes each with both clocks, in a ring in a file that outlives a freeze: what a
 * program sees from its first instruction on after it was thawed. Once the wall clock was stepped against the monotonic one (it
 * was thawed) it goes on as fast for SPIN_NS and slowly from then on, so that many copies do not need a processor each. Ends when
 * the file <ring>.stop is there.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define ENTRIES (1u << 15)
#define STEP_NS 20000000
#define SPIN_NS 50000000
#define SLOW_NS 20000000

struct entry {
    int64_t monotonic, realtime;
    uint64_t value;
};

static int64_t now(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Both clocks of one moment: again when another program ran in between. */
static struct entry both(void) {
    for (;;) {
        struct entry e = {.monotonic = now(CLOCK_MONOTONIC), .realtime = now(CLOCK_REALTIME)};
        if (now(CLOCK_MONOTONIC) - e.monotonic < STEP_NS / 4)
            return e;
    }
}

int main(int argc, char **argv) {
    char stop[256];
    if (argc != 2 || snprintf(stop, sizeof stop, "%s.stop", argv[1]) >= (int)sizeof stop)
        return 64;
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, ENTRIES * sizeof(struct entry)) < 0)
        return 1;
    struct entry *ring = mmap(NULL, ENTRIES * sizeof(struct entry), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ring == MAP_FAILED)
        return 1;
    struct entry first = both();
    int64_t offset = first.realtime - first.monotonic, slow_at = INT64_MAX;
    for (uint32_t i = 0;; i++) {
        struct entry e = both();
        if (getrandom(&e.value, sizeof e.value, 0) != sizeof e.value)
            return 1;
        ring[i % ENTRIES] = e;
        int64_t step = e.realtime - e.monotonic - offset;
        if (step > STEP_NS || step < -STEP_NS) {
            offset = e.realtime - e.monotonic;
            slow_at = e.monotonic + SPIN_NS;
        }
        if (e.monotonic > slow_at)
            nanosleep(&(struct timespec){.tv_nsec = SLOW_NS}, NULL);
        if ((i % 1024 == 0 || e.monotonic > slow_at) && access(stop, F_OK) == 0)
            return 0;
    }
}
