/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers and descriptor watches: thin objects over uv_timer_t and uv_poll_t. _free stops the handle at once and lets
 * libuv's close callback free the memory at the end of the round, so it may be called from the handle's own callback.
 */
#include "base/cleanup.h"
#include "io/loop_internal.h"
#include <stdlib.h>

struct loop_timer {
    uv_timer_t handle;
    struct loop *loop;
    void (*fn)(void *ctx);
    void *ctx;
};

struct loop_watch {
    uv_poll_t handle;
    struct loop *loop;
    int fd;
    unsigned events;
    void (*fn)(unsigned events, void *ctx);
    void *ctx;
};

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

static void on_timer(uv_timer_t *handle) {
    struct loop_timer *t = handle->data;
    t->fn(t->ctx);
}

struct loop_timer *loop_timer_new(struct loop *l, void (*fn)(void *ctx), void *ctx) {
    struct loop_timer *t = loop_alloc(sizeof(*t));
    (void)uv_timer_init(&l->uv, &t->handle); /* cannot fail */
    t->handle.data = t;
    t->loop = l;
    t->fn = fn;
    t->ctx = ctx;
    l->objects++;
    return t;
}

void loop_timer_start(struct loop_timer *t, uint64_t ms, uint64_t repeat_ms) {
    (void)uv_timer_start(&t->handle, on_timer, ms, repeat_ms);
}

void loop_timer_stop(struct loop_timer *t) {
    (void)uv_timer_stop(&t->handle);
}

bool loop_timer_is_active(const struct loop_timer *t) {
    return uv_is_active((const uv_handle_t *)&t->handle) != 0;
}

struct loop_timer *loop_timer_free(struct loop_timer *t) {
    if (!t)
        return NULL;
    t->loop->objects--;
    uv_close((uv_handle_t *)&t->handle, on_closed);
    return NULL;
}

static void on_poll(uv_poll_t *handle, int status, int uv_events) {
    struct loop_watch *w = handle->data;
    unsigned events = 0;
    if (status < 0) {
        w->events = 0; /* libuv has stopped it */
        events = LOOP_ERROR;
    }
    events |= (uv_events & UV_READABLE) ? LOOP_READABLE : 0;
    events |= (uv_events & UV_WRITABLE) ? LOOP_WRITABLE : 0;
    events |= (uv_events & UV_DISCONNECT) ? LOOP_HANGUP : 0;
    w->fn(events, w->ctx);
}

int loop_watch_new(struct loop *l, int fd, void (*fn)(unsigned events, void *ctx), void *ctx, struct loop_watch **ret,
                   struct sp_error *err) {
    struct loop_watch *w = loop_alloc(sizeof(*w));
    int r = uv_poll_init(&l->uv, &w->handle, fd);
    if (r < 0) {
        free(w);
        return sp_error_errno(err, -r, "uv_poll_init", "cannot watch a descriptor");
    }
    w->handle.data = w;
    w->loop = l;
    w->fd = fd;
    w->fn = fn;
    w->ctx = ctx;
    l->objects++;
    *ret = w;
    return 0;
}

void loop_watch_set(struct loop_watch *w, unsigned events) {
    if (events == w->events)
        return;
    int uv_events = 0;
    uv_events |= (events & LOOP_READABLE) ? UV_READABLE : 0;
    uv_events |= (events & LOOP_WRITABLE) ? UV_WRITABLE : 0;
    uv_events |= (events & LOOP_HANGUP) ? UV_DISCONNECT : 0;
    w->events = events;
    if (uv_events)
        (void)uv_poll_start(&w->handle, uv_events, on_poll);
    else
        (void)uv_poll_stop(&w->handle);
}

struct loop_watch *loop_watch_free(struct loop_watch *w, bool close_descriptor) {
    if (!w)
        return NULL;
    w->loop->objects--;
    uv_close((uv_handle_t *)&w->handle, on_closed);
    if (close_descriptor)
        (void)close_fd(w->fd); /* allowed as soon as uv_close was called */
    return NULL;
}
