/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One loop with a server on loopback, driven by the test itself: rig_until() runs rounds until something is true. Raw
 * peers are plain sockets in the same thread, so every interleaving is the test's choice.
 */
#pragma once
#include "base/cleanup.h"
#include "base/clock.h"
#include "io/http_server.h"
#include "io/listen.h"
#include "unit.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define RIG_LIMIT_MS 20000

struct rig {
    struct loop *loop;
    struct loop_timer *beat; /* a round never waits longer than this */
    struct http_server *server;
    uint16_t port;
};

static void rig_beat(void *ctx) {
    (void)ctx;
}

static inline void rig_loop(struct rig *rig) {
    memset(rig, 0, sizeof(*rig));
    assert_ok(loop_new(&rig->loop, &unit_error));
    rig->beat = loop_timer_new(rig->loop, rig_beat, NULL);
    loop_timer_start(rig->beat, 2, 2);
}

static inline void rig_serve(struct rig *rig, const struct http_server_options *opt) {
    int fd;
    rig_loop(rig);
    assert_ok(listen_tcp("127.0.0.1:0", &fd, &unit_error));
    rig->port = listen_port(fd);
    assert_ok(http_server_new(rig->loop, opt, &rig->server, &unit_error));
    assert_ok(http_server_listen(rig->server, fd, &unit_error));
}

static inline void rig_done(struct rig *rig) {
    rig->server = http_server_free(rig->server);
    rig->beat = loop_timer_free(rig->beat);
    rig->loop = loop_free(rig->loop);
}

/* Rounds until the expression is true. */
#define rig_until(rig, expression)                                                                                     \
    do {                                                                                                               \
        struct deadline rig_limit_ = deadline_in_ms(RIG_LIMIT_MS);                                                     \
        while (!(expression)) {                                                                                        \
            loop_run_once((rig)->loop);                                                                                \
            if (deadline_passed(rig_limit_))                                                                           \
                fail_msg("never true: %s", #expression);                                                               \
        }                                                                                                              \
    } while (0)

static inline void rig_rounds(struct rig *rig, unsigned n) {
    while (n--)
        loop_run_once(rig->loop);
}

static inline struct http_server_stats rig_stats(const struct rig *rig) {
    struct http_server_stats stats;
    http_server_get_stats(rig->server, &stats);
    return stats;
}

/* ---- raw peers ---- */

static inline int raw_connect(const struct rig *rig) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(rig->port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
    return fd;
}

/* A text short enough for the socket's buffer. */
static inline void raw_send(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

struct raw {
    char data[65536];
    size_t len;
    bool eof, reset;
};

/* Takes what is there now; NUL-ended. */
static inline void raw_take(int fd, struct raw *in) {
    while (!in->eof && !in->reset && in->len < sizeof(in->data) - 1) {
        ssize_t n = recv(fd, in->data + in->len, sizeof(in->data) - 1 - in->len, MSG_DONTWAIT);
        if (n == 0)
            in->eof = true;
        else if (n < 0 && errno != EAGAIN)
            in->reset = true;
        if (n <= 0)
            break;
        in->len += (size_t)n;
    }
    in->data[in->len] = '\0';
}

static inline unsigned raw_count(const struct raw *in, const char *text) {
    unsigned n = 0;
    for (const char *p = in->data; (p = strstr(p, text)); p++)
        n++;
    return n;
}

/* Until `text` was received `n` times in all. */
static inline void raw_expect(struct rig *rig, int fd, struct raw *in, const char *text, unsigned n) {
    struct deadline limit = deadline_in_ms(RIG_LIMIT_MS);
    for (raw_take(fd, in); raw_count(in, text) < n; raw_take(fd, in)) {
        if (deadline_passed(limit) || in->eof || in->reset)
            fail_msg("wanted %u times \"%s\", got (eof %d, reset %d): %s", n, text, in->eof, in->reset, in->data);
        loop_run_once(rig->loop);
    }
}

/* Until the peer closed cleanly. */
static inline void raw_expect_eof(struct rig *rig, int fd, struct raw *in) {
    struct deadline limit = deadline_in_ms(RIG_LIMIT_MS);
    for (raw_take(fd, in); !in->eof; raw_take(fd, in)) {
        if (deadline_passed(limit) || in->reset)
            fail_msg("no end of the connection (reset %d): %s", in->reset, in->data);
        loop_run_once(rig->loop);
    }
}

/* Closes so that the peer gets a reset. */
static inline void raw_reset(int fd) {
    struct linger linger = {.l_onoff = 1};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    (void)close(fd);
}
