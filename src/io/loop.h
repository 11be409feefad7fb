/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One event loop a thread, on libuv: timers, descriptor watches, closures posted from other threads, deferred work,
 * stop signals. Everything but loop_post and loop_post_stop belongs to the loop's thread. Objects of a loop are freed
 * with their own _free (which hides libuv's two-step close); their callbacks never run after _free returned.
 */
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct loop;

int loop_new(struct loop **ret, struct sp_error *err);
/* Runs what was posted and the closing of handles, then frees. Every object of the loop must have been freed before;
 * one that was not is an assert. NULL is fine; returns NULL. */
struct loop *loop_free(struct loop *l);
uv_loop_t *loop_uv(struct loop *l);
/* Until loop_stop(). Watches, timers and servers keep it from nothing: it runs even without them. */
void loop_run(struct loop *l);
/* One round: waits at most until the first event. For blocking wrappers and tests. */
void loop_run_once(struct loop *l);
void loop_stop(struct loop *l);             /* loop_run returns after the callback that is running */
void loop_post_stop(struct loop *l);        /* the same from any thread */
uint64_t loop_now_ms(const struct loop *l); /* cached monotonic time of this round */

/* From any thread: fn(ctx) runs on the loop, in order of posting. Unbounded by itself: post completions of bounded work
 * only. Aborts when out of memory. */
void loop_post(struct loop *l, void (*fn)(void *ctx), void *ctx);

/* Deferred work, loop thread only, no allocation: fn(ctx) runs once in the next round. Embed it, zeroed. Scheduling a
 * pending one again changes nothing; cancel it before its memory goes. */
struct loop_task {
    void (*fn)(void *ctx);
    void *ctx;
    /* private: */
    struct loop_task *next, *prev;
};
void loop_defer(struct loop *l, struct loop_task *task);
void loop_defer_cancel(struct loop_task *task);

/* SIGTERM and SIGINT call fn on the loop, the second one too (a caller may hurry then). SIGPIPE is ignored for the
 * whole process. Removed by loop_free. */
int loop_on_stop_signal(struct loop *l, void (*fn)(int signum, void *ctx), void *ctx, struct sp_error *err);
/* The same for any other signal (SIGHUP, SIGCHLD, …). All together at most 8 signals a loop. */
int loop_on_signal(struct loop *l, int signum, void (*fn)(int signum, void *ctx), void *ctx, struct sp_error *err);

struct loop_timer;
/* Aborts when out of memory. */
struct loop_timer *loop_timer_new(struct loop *l, void (*fn)(void *ctx), void *ctx);
/* Fires once after ms, then every repeat_ms unless 0. Starting anew replaces. */
void loop_timer_start(struct loop_timer *t, uint64_t ms, uint64_t repeat_ms);
void loop_timer_stop(struct loop_timer *t);
bool loop_timer_is_active(const struct loop_timer *t);
struct loop_timer *loop_timer_free(struct loop_timer *t); /* also from its own callback; NULL is fine; returns NULL */

/* A watched descriptor (socket, pipe, pidfd, eventfd); level-triggered. One watch a descriptor. */
#define LOOP_READABLE 1u
#define LOOP_WRITABLE 2u
#define LOOP_HANGUP 4u /* peer shut down its sending side; only when asked for */
#define LOOP_ERROR 8u  /* error or full hang-up: always reported; the watch has stopped then */
struct loop_watch;
/* fd stays the caller's; it becomes non-blocking. fn(events, ctx) may free the watch. */
int loop_watch_new(struct loop *l, int fd, void (*fn)(unsigned events, void *ctx), void *ctx, struct loop_watch **ret,
                   struct sp_error *err);
void loop_watch_set(struct loop_watch *w, unsigned events); /* 0: nothing, errors neither */
/* close_descriptor: it is closed too. NULL is fine; returns NULL. */
struct loop_watch *loop_watch_free(struct loop_watch *w, bool close_descriptor);
