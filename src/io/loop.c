/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop: running and stopping, posts from other threads (one async handle and a locked list), deferred tasks
 * (an idle handle that is active while some wait), signals. Timers and watches are in loop_handles.c.
 */
#include "io/loop_internal.h"
#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct loop_post_node {
    void (*fn)(void *ctx);
    void *ctx;
    struct loop_post_node *next;
};

void *loop_alloc(size_t size) {
    void *p = calloc(1, size);
    if (!p)
        abort();
    return p;
}

static void ring_init(struct loop_task *ring) {
    ring->next = ring->prev = ring;
}

static bool ring_is_empty(const struct loop_task *ring) {
    return ring->next == ring;
}

/* Moves everything of `from` to the empty ring `to`. */
static void ring_move(struct loop_task *from, struct loop_task *to) {
    if (ring_is_empty(from))
        return;
    to->next = from->next;
    to->prev = from->prev;
    to->next->prev = to->prev->next = to;
    ring_init(from);
}

static void run_posts(struct loop *l) {
    pthread_mutex_lock(&l->lock);
    struct loop_post_node *node = l->first;
    l->first = NULL;
    l->last = &l->first;
    pthread_mutex_unlock(&l->lock);
    while (node) {
        struct loop_post_node *next = node->next;
        node->fn(node->ctx);
        free(node);
        node = next;
    }
}

static void on_async(uv_async_t *handle) {
    run_posts(handle->data);
}

/* Tasks deferred while these run wait for the next round. */
static void run_tasks(struct loop *l) {
    ring_move(&l->tasks, &l->running);
    while (!ring_is_empty(&l->running)) {
        struct loop_task *task = l->running.next;
        loop_defer_cancel(task);
        task->fn(task->ctx);
    }
}

static void on_idle(uv_idle_t *handle) {
    struct loop *l = handle->data;
    run_tasks(l);
    if (ring_is_empty(&l->tasks))
        uv_idle_stop(&l->idle);
}

int loop_new(struct loop **ret, struct sp_error *err) {
    struct loop *l = loop_alloc(sizeof(*l));
    int r = uv_loop_init(&l->uv);
    if (r < 0) {
        free(l);
        return sp_error_errno(err, -r, "uv_loop_init", "cannot make an event loop");
    }
    r = uv_async_init(&l->uv, &l->async, on_async);
    if (r < 0) {
        (void)uv_loop_close(&l->uv);
        free(l);
        return sp_error_errno(err, -r, "uv_async_init", "cannot make an event loop");
    }
    (void)uv_idle_init(&l->uv, &l->idle);
    l->async.data = l->idle.data = l;
    l->last = &l->first;
    ring_init(&l->tasks);
    ring_init(&l->running);
    (void)pthread_mutex_init(&l->lock, NULL);
    *ret = l;
    return 0;
}

static void drain(struct loop *l) {
    for (;;) {
        run_posts(l);
        run_tasks(l);
        pthread_mutex_lock(&l->lock);
        bool done = !l->first && ring_is_empty(&l->tasks);
        pthread_mutex_unlock(&l->lock);
        if (done)
            return;
    }
}

struct loop *loop_free(struct loop *l) {
    if (!l)
        return NULL;
    drain(l);
    assert(l->objects == 0);
    for (unsigned i = 0; i < l->n_signals; i++)
        uv_close((uv_handle_t *)&l->signals[i].handle, NULL);
    uv_close((uv_handle_t *)&l->async, NULL);
    uv_close((uv_handle_t *)&l->idle, NULL);
    (void)uv_run(&l->uv, UV_RUN_DEFAULT);
    int r = uv_loop_close(&l->uv);
    assert(r == 0);
    (void)r;
    (void)pthread_mutex_destroy(&l->lock);
    free(l);
    return NULL;
}

uv_loop_t *loop_uv(struct loop *l) {
    return &l->uv;
}

void loop_run(struct loop *l) {
    while (!l->stopped)
        (void)uv_run(&l->uv, UV_RUN_DEFAULT);
    l->stopped = false;
}

void loop_run_once(struct loop *l) {
    (void)uv_run(&l->uv, UV_RUN_ONCE);
}

void loop_stop(struct loop *l) {
    l->stopped = true;
    uv_stop(&l->uv);
}

static void stop_posted(void *ctx) {
    loop_stop(ctx);
}

void loop_post_stop(struct loop *l) {
    loop_post(l, stop_posted, l);
}

uint64_t loop_now_ms(const struct loop *l) {
    return uv_now(&l->uv);
}

void loop_post(struct loop *l, void (*fn)(void *ctx), void *ctx) {
    struct loop_post_node *node = loop_alloc(sizeof(*node));
    node->fn = fn;
    node->ctx = ctx;
    pthread_mutex_lock(&l->lock);
    *l->last = node;
    l->last = &node->next;
    (void)uv_async_send(&l->async); /* under the lock: the loop cannot be freed in between by what was posted */
    pthread_mutex_unlock(&l->lock);
}

void loop_defer(struct loop *l, struct loop_task *task) {
    if (task->next)
        return;
    task->next = &l->tasks;
    task->prev = l->tasks.prev;
    task->prev->next = l->tasks.prev = task;
    (void)uv_idle_start(&l->idle, on_idle);
}

void loop_defer_cancel(struct loop_task *task) {
    if (!task->next)
        return;
    task->next->prev = task->prev;
    task->prev->next = task->next;
    task->next = task->prev = NULL;
}

static void on_signal(uv_signal_t *handle, int signum) {
    const struct loop_signal *s = handle->data;
    s->fn(signum, s->ctx);
}

int loop_on_signal(struct loop *l, int signum, void (*fn)(int signum, void *ctx), void *ctx, struct sp_error *err) {
    if (l->n_signals == LOOP_SIGNALS_MAX)
        return sp_error_set(err, SP_E_INTERNAL, "too many signals on one loop");
    struct loop_signal *s = &l->signals[l->n_signals];
    int r = uv_signal_init(&l->uv, &s->handle);
    if (r < 0)
        return sp_error_errno(err, -r, "uv_signal_init", "cannot watch signal %d", signum);
    l->n_signals++;
    s->handle.data = s;
    s->fn = fn;
    s->ctx = ctx;
    r = uv_signal_start(&s->handle, on_signal, signum);
    if (r < 0)
        return sp_error_errno(err, -r, "uv_signal_start", "cannot watch signal %d", signum);
    uv_unref((uv_handle_t *)&s->handle);
    return 0;
}

int loop_on_stop_signal(struct loop *l, void (*fn)(int signum, void *ctx), void *ctx, struct sp_error *err) {
    (void)signal(SIGPIPE, SIG_IGN);
    int r = loop_on_signal(l, SIGTERM, fn, ctx, err);
    return r < 0 ? r : loop_on_signal(l, SIGINT, fn, ctx, err);
}
