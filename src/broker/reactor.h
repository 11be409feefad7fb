/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's poll loop: descriptors with a callback each. One event a turn, so that a callback may drop any watch. */
#pragma once
#include "base/clock.h"
#include "base/error.h"
#include <stdint.h>
#include <sys/epoll.h>

struct watch {
    int fd;                                       /* borrowed */
    void (*on_event)(void *ctx, uint32_t events); /* EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR */
    void *ctx;
};

int reactor_open(struct sp_error *err); /* an epoll descriptor, or negative */
int reactor_add(int reactor, struct watch *watch, uint32_t events, struct sp_error *err);
void reactor_change(int reactor, struct watch *watch, uint32_t events);
/* Before the descriptor is closed: a forked job may hold a copy, which would keep a closed one registered. */
void reactor_remove(int reactor, struct watch *watch);
/* Waits for one event or the deadline, at most; calls back. */
int reactor_turn(int reactor, struct deadline deadline, struct sp_error *err);
