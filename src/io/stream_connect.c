/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous connects: unix paths (a full backlog is retried), numeric TCP addresses at once, names through libuv's
 * resolver threads, addresses tried in order. One object a connect; it frees itself after done() or a cancel.
 */
#include "base/cleanup.h"
#include "io/loop_internal.h"
#include "io/stream.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define CONNECT_TIMEOUT_MS 10000
#define ADDRESSES_MAX 8
#define BACKLOG_RETRY_MS 10

struct stream_connect {
    struct loop *loop;
    void (*done)(void *ctx, int fd, const struct sp_error *err);
    void *ctx;
    struct {
        struct sockaddr_storage sa;
        socklen_t len;
    } addresses[ADDRESSES_MAX];
    unsigned n_addresses, next;
    char name[128]; /* for error texts */
    int fd;
    struct loop_watch *watch;
    struct loop_timer *deadline, *retry;
    struct loop_task task;     /* the first try, so that done never runs inside the call */
    uv_getaddrinfo_t *resolve; /* in flight; owned by libuv until its callback */
    int last_errno;
};

static struct stream_connect *dispose(struct stream_connect *c) {
    loop_defer_cancel(&c->task);
    c->watch = loop_watch_free(c->watch, false);
    c->fd = close_fd(c->fd);
    loop_timer_free(c->deadline);
    loop_timer_free(c->retry);
    if (c->resolve) {
        c->resolve->data = NULL;
        (void)uv_cancel((uv_req_t *)c->resolve);
    }
    free(c);
    return NULL;
}

static void finish(struct stream_connect *c, int fd, const struct sp_error *err) {
    void (*done)(void *ctx, int fd, const struct sp_error *err) = c->done;
    void *ctx = c->ctx;
    dispose(c);
    done(ctx, fd, err);
}

static void fail(struct stream_connect *c, enum sp_code code, int err_no) {
    struct sp_error err = {0};
    sp_error_errno(&err, err_no, "connect", "cannot connect to %s", c->name);
    err.code = code;
    finish(c, -1, &err);
}

static void try_next(struct stream_connect *c);

static void on_connected(unsigned events, void *ctx) {
    struct stream_connect *c = ctx;
    int err_no = 0;
    socklen_t len = sizeof(err_no);
    (void)events;
    c->watch = loop_watch_free(c->watch, false);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err_no, &len) < 0)
        err_no = errno;
    if (err_no == 0) {
        finish(c, TAKE_FD(c->fd), NULL);
        return;
    }
    c->fd = close_fd(c->fd);
    c->last_errno = err_no;
    try_next(c);
}

/* Starts a connect to the next address: true when this call is settled or something waits for it. */
static bool try_one(struct stream_connect *c) {
    const struct sockaddr *sa = (const struct sockaddr *)&c->addresses[c->next].sa;
    socklen_t len = c->addresses[c->next].len;
    c->fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0) {
        c->last_errno = errno;
        return false;
    }
    int r = connect(c->fd, sa, len) < 0 ? errno : 0;
    if (r == 0) {
        finish(c, TAKE_FD(c->fd), NULL);
        return true;
    }
    if (r == EINPROGRESS && loop_watch_new(c->loop, c->fd, on_connected, c, &c->watch, NULL) == 0) {
        c->next++;
        loop_watch_set(c->watch, LOOP_WRITABLE);
        return true;
    }
    c->fd = close_fd(c->fd);
    c->last_errno = r;
    if (r == EAGAIN) { /* unix: the backlog is full */
        loop_timer_start(c->retry, BACKLOG_RETRY_MS, 0);
        return true;
    }
    return false;
}

static void try_next(struct stream_connect *c) {
    for (; c->next < c->n_addresses; c->next++)
        if (try_one(c))
            return;
    fail(c, SP_E_UNAVAILABLE, c->last_errno ? c->last_errno : ECONNREFUSED);
}

static void on_task(void *ctx) {
    try_next(ctx);
}

static void on_retry(void *ctx) {
    try_next(ctx);
}

static void on_deadline(void *ctx) {
    fail(ctx, SP_E_TIMEOUT, ETIMEDOUT);
}

static struct stream_connect *connect_new(struct loop *l, uint64_t timeout_ms,
                                          void (*done)(void *ctx, int fd, const struct sp_error *err), void *ctx) {
    struct stream_connect *c = loop_alloc(sizeof(*c));
    c->loop = l;
    c->done = done;
    c->ctx = ctx;
    c->fd = -1;
    c->task.fn = on_task;
    c->task.ctx = c;
    c->deadline = loop_timer_new(l, on_deadline, c);
    c->retry = loop_timer_new(l, on_retry, c);
    loop_timer_start(c->deadline, timeout_ms ? timeout_ms : CONNECT_TIMEOUT_MS, 0);
    return c;
}

int stream_connect_unix(struct loop *l, const char *path, uint64_t timeout_ms,
                        void (*done)(void *ctx, int fd, const struct sp_error *err), void *ctx,
                        struct stream_connect **ret, struct sp_error *err) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(sa.sun_path))
        return sp_error_set(err, SP_E_INVALID, "unix socket path must have 1 to %zu bytes", sizeof(sa.sun_path) - 1);
    memcpy(sa.sun_path, path, len + 1);
    struct stream_connect *c = connect_new(l, timeout_ms, done, ctx);
    memcpy(&c->addresses[0].sa, &sa, sizeof(sa));
    c->addresses[0].len = sizeof(sa);
    c->n_addresses = 1;
    (void)snprintf(c->name, sizeof(c->name), "unix:%.107s", path);
    loop_defer(l, &c->task);
    *ret = c;
    return 0;
}

static void take_addresses(struct stream_connect *c, const struct addrinfo *list) {
    for (; list && c->n_addresses < ADDRESSES_MAX; list = list->ai_next) {
        if (list->ai_addrlen > sizeof(c->addresses[0].sa))
            continue;
        memcpy(&c->addresses[c->n_addresses].sa, list->ai_addr, list->ai_addrlen);
        c->addresses[c->n_addresses++].len = list->ai_addrlen;
    }
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list) {
    struct stream_connect *c = req->data;
    if (c) {
        c->resolve = NULL;
        take_addresses(c, list);
        c->last_errno = status < 0 ? EHOSTUNREACH : 0;
    }
    uv_freeaddrinfo(list);
    free(req);
    if (c)
        try_next(c);
}

int stream_connect_tcp(struct loop *l, const char *host, uint16_t port, uint64_t timeout_ms,
                       void (*done)(void *ctx, int fd, const struct sp_error *err), void *ctx,
                       struct stream_connect **ret, struct sp_error *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo numeric_hints = hints, *list = NULL;
    char service[8];
    (void)snprintf(service, sizeof(service), "%u", (unsigned)port);
    struct stream_connect *c = connect_new(l, timeout_ms, done, ctx);
    (void)snprintf(c->name, sizeof(c->name), "%.100s:%s", host, service);
    numeric_hints.ai_flags |= AI_NUMERICHOST;
    if (getaddrinfo(host, service, &numeric_hints, &list) == 0) {
        take_addresses(c, list);
        freeaddrinfo(list);
        loop_defer(l, &c->task);
        *ret = c;
        return 0;
    }
    c->resolve = loop_alloc(sizeof(*c->resolve));
    c->resolve->data = c;
    int r = uv_getaddrinfo(loop_uv(l), c->resolve, on_resolved, host, service, &hints);
    if (r < 0) {
        free(TAKE_PTR(c->resolve));
        dispose(c);
        return sp_error_errno(err, -r, "getaddrinfo", "cannot resolve %.100s", host);
    }
    *ret = c;
    return 0;
}

struct stream_connect *stream_connect_cancel(struct stream_connect *c) {
    return c ? dispose(c) : NULL;
}
