/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for straight-line blocking work (database calls) beside an event loop. A job is embedded in its owner's
 * struct; run() executes on a worker with that thread's own context, done() afterwards on the loop. The queue is
 * bounded.
 */
#pragma once
#include "base/error.h"
#include "io/loop.h"
#include <stdbool.h>
#include <stddef.h>

struct worker_pool;

struct worker_job {
    void (*run)(struct worker_job *job, void *thread_ctx); /* worker thread */
    void (*done)(struct worker_job *job, bool ran);        /* loop thread, exactly once; the job may be freed here.
                                                               ran = false: the pool stopped before it ran */
    /* private: */
    struct worker_job *next;
    bool ran;
};

struct worker_pool_options {
    unsigned threads;   /* 1..64 */
    unsigned queue_max; /* waiting jobs, ≥ 1; one more is refused */
    const char *name;   /* thread name, ≤ 11 bytes, static */
    /* Makes one thread's context, on that thread; failing makes worker_pool_new fail. May be NULL (context NULL). */
    int (*thread_init)(void *ctx, void **ret_thread_ctx, struct sp_error *err);
    void (*thread_done)(void *ctx, void *thread_ctx); /* may be NULL */
    void *ctx;
};

/* Returns when every thread has its context. Signals are blocked in the threads. */
int worker_pool_new(struct loop *l, const struct worker_pool_options *opt, struct worker_pool **ret,
                    struct sp_error *err);
/* 0, or -SP_E_UNAVAILABLE when the queue is full or the pool stops; the job is untouched then. Loop thread. */
int worker_pool_submit(struct worker_pool *p, struct worker_job *job);
/* Jobs waiting and running. */
size_t worker_pool_load(struct worker_pool *p);
/* Refuses new jobs, waits for running ones, calls done() of all (waiting ones with ran = false) before it returns.
 * Loop thread, never from a callback of the pool. NULL is fine; returns NULL. */
struct worker_pool *worker_pool_free(struct worker_pool *p);
