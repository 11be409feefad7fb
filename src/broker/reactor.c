/* SPDX-License-Identifier: Apache-2.0 */
/* A thin epoll: level-triggered, one event a turn. */
#include "broker/reactor.h"
#include <errno.h>

int reactor_open(struct sp_error *err) {
    int fd = epoll_create1(EPOLL_CLOEXEC);
    return fd < 0 ? sp_error_errno(err, errno, "epoll_create1", "poll loop") : fd;
}

int reactor_add(int reactor, struct watch *watch, uint32_t events, struct sp_error *err) {
    struct epoll_event ev = {.events = events, .data.ptr = watch};
    if (epoll_ctl(reactor, EPOLL_CTL_ADD, watch->fd, &ev) < 0)
        return sp_error_errno(err, errno, "epoll_ctl", "watching a descriptor");
    return 0;
}

void reactor_change(int reactor, struct watch *watch, uint32_t events) {
    struct epoll_event ev = {.events = events, .data.ptr = watch};
    (void)epoll_ctl(reactor, EPOLL_CTL_MOD, watch->fd, &ev);
}

void reactor_remove(int reactor, struct watch *watch) {
    (void)epoll_ctl(reactor, EPOLL_CTL_DEL, watch->fd, NULL);
}

int reactor_turn(int reactor, struct deadline deadline, struct sp_error *err) {
    struct epoll_event ev;
    int n = epoll_wait(reactor, &ev, 1, deadline_poll_ms(deadline));

    if (n < 0)
        return errno == EINTR ? 0 : sp_error_errno(err, errno, "epoll_wait", "poll loop");
    if (n == 1) {
        struct watch *watch = ev.data.ptr;
        watch->on_event(watch->ctx, ev.events);
    }
    return 0;
}
