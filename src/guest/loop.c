/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/loop.h"
#include "base/clock.h"
#include <errno.h>
#include <string.h>

int loop_init(struct loop *l) {
    memset(l, 0, sizeof(*l));
    l->epfd = epoll_create1(EPOLL_CLOEXEC);
    return l->epfd < 0 ? -errno : 0;
}

int loop_add(struct loop *l, struct source *s, int fd, uint32_t events, void (*fn)(struct source *s, uint32_t events)) {
    struct epoll_event ev = {.events = events, .data.ptr = s};

    if (epoll_ctl(l->epfd, EPOLL_CTL_ADD, fd, &ev) < 0)
        return -errno;
    s->fd = fd;
    s->fn = fn;
    return 0;
}

int loop_change(struct loop *l, struct source *s, uint32_t events) {
    struct epoll_event ev = {.events = events, .data.ptr = s};
    return epoll_ctl(l->epfd, EPOLL_CTL_MOD, s->fd, &ev) < 0 ? -errno : 0;
}

void loop_remove(struct loop *l, struct source *s) {
    if (!loop_has(s))
        return;
    (void)epoll_ctl(l->epfd, EPOLL_CTL_DEL, s->fd, NULL);
    s->fd = -1;
    s->fn = NULL;
    for (int i = l->batch_at; i < l->batch_len; i++)
        if (l->batch[i].data.ptr == s)
            l->batch[i].data.ptr = NULL;
}

void timer_stop(struct loop *l, struct timer *t) {
    if (!timer_armed(t))
        return;
    if (t->prev)
        t->prev->next = t->next;
    else
        l->first = t->next;
    if (t->next)
        t->next->prev = t->prev;
    else
        l->last = t->prev;
    t->prev = t->next = NULL;
    t->at_ns = 0;
}

/* Most timers are the latest of all (record expiry), so the place is looked for from the end. */
void timer_arm(struct loop *l, struct timer *t, uint64_t at_ns, void (*fn)(struct timer *t)) {
    struct timer *after;

    timer_stop(l, t);
    t->at_ns = at_ns ? at_ns : 1;
    t->fn = fn;
    for (after = l->last; after && after->at_ns > t->at_ns; after = after->prev)
        continue;
    t->prev = after;
    t->next = after ? after->next : l->first;
    if (t->next)
        t->next->prev = t;
    else
        l->last = t;
    if (after)
        after->next = t;
    else
        l->first = t;
}

void loop_shift_timers(struct loop *l, uint64_t by_ns) {
    for (struct timer *t = l->first; t; t = t->next)
        t->at_ns += by_ns;
}

static int wait_ms(const struct loop *l, bool poll) {
    if (poll)
        return 0;
    if (!l->first)
        return -1;
    int ms = deadline_poll_ms((struct deadline){l->first->at_ns});
    return ms;
}

static void run_timers(struct loop *l) {
    uint64_t now;

    if (!l->first)
        return;
    now = clock_monotonic_ns();
    /* A timer armed again by its own function is due later, so this ends. */
    while (l->first && l->first->at_ns <= now) {
        struct timer *t = l->first;
        timer_stop(l, t);
        t->fn(t);
    }
}

void loop_step(struct loop *l, bool poll) {
    int n = epoll_wait(l->epfd, l->batch, LOOP_BATCH, wait_ms(l, poll));

    l->batch_len = n > 0 ? n : 0;
    for (l->batch_at = 0; l->batch_at < l->batch_len;) {
        struct epoll_event ev = l->batch[l->batch_at++];
        struct source *s = ev.data.ptr;
        if (s)
            s->fn(s, ev.events);
    }
    l->batch_len = 0;
    run_timers(l);
}
