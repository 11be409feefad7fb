/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's event loop: epoll sources and one-shot timers. No periodic wake-up of its own: with nothing armed it
 * sleeps until a descriptor has something. Sources and timers are embedded in their owner's struct and may be removed
 * at any time, also from inside a callback.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define LOOP_BATCH 64

struct source {
    int fd; /* borrowed; -1: not in the loop */
    void (*fn)(struct source *s, uint32_t events);
};

struct timer {
    uint64_t at_ns; /* monotonic; 0: not armed */
    void (*fn)(struct timer *t);
    struct timer *prev, *next;
};

struct loop {
    int epfd;
    struct timer *first, *last; /* by time */
    struct epoll_event batch[LOOP_BATCH];
    int batch_len, batch_at;
};

int loop_init(struct loop *l); /* 0 or -errno */
/* events: EPOLLIN, … as for epoll_ctl. 0 or -errno. */
int loop_add(struct loop *l, struct source *s, int fd, uint32_t events, void (*fn)(struct source *s, uint32_t events));
int loop_change(struct loop *l, struct source *s, uint32_t events);
void loop_remove(struct loop *l, struct source *s); /* does not close; nothing when not in the loop */
static inline bool loop_has(const struct source *s) {
    return s->fn && s->fd >= 0;
}

void timer_arm(struct loop *l, struct timer *t, uint64_t at_ns, void (*fn)(struct timer *t));
void timer_stop(struct loop *l, struct timer *t);
static inline bool timer_armed(const struct timer *t) {
    return t->at_ns != 0;
}

/* Moves every armed timer by that much: for time that shall not count. */
void loop_shift_timers(struct loop *l, uint64_t by_ns);

/* Waits for the next event or timer (not at all when `poll`), then calls what is due. */
void loop_step(struct loop *l, bool poll);
