/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's inside, for the files of src/io only. */
#pragma once
#include "io/loop.h"
#include <pthread.h>

#define LOOP_SIGNALS_MAX 8
#define LOOP_READ_SIZE 65536u

struct loop_signal {
    uv_signal_t handle;
    void (*fn)(int signum, void *ctx);
    void *ctx;
};

struct loop_post_node;

struct loop {
    uv_loop_t uv;
    uv_async_t async;     /* posts; keeps the loop alive */
    uv_idle_t idle;       /* active while tasks wait */
    pthread_mutex_t lock; /* of the list of posts */
    struct loop_post_node *first, **last;
    struct loop_task tasks;   /* ring */
    struct loop_task running; /* ring: tasks of this round */
    struct loop_signal signals[LOOP_SIGNALS_MAX];
    unsigned n_signals;
    unsigned objects; /* timers and watches not freed yet */
    bool stopped;
    char read_buffer[LOOP_READ_SIZE]; /* for one read at a time: what is kept is copied out */
};

/* Zeroed memory; aborts when there is none. */
void *loop_alloc(size_t size);
