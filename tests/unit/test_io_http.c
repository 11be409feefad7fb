/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promise: the server answers well-formed requests in order, bounds and times everything a client can make it hold,
 * tells handlers about clients that left, and never touches an exchange that is over. Raw sockets play the clients.
 */
#include "io_rig.h"
#include <sys/resource.h>

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

static struct {
    unsigned handled, closed, drained, body_ends, shutdowns;
    enum exchange_end end;
    struct exchange *parked; /* holds a reference */
    size_t body_bytes;
    uint32_t body_sum;
    bool pause_body;
} seen;

static void on_close(struct exchange *x, enum exchange_end end) {
    (void)x;
    seen.closed++;
    seen.end = end;
}

static void on_shutdown(struct exchange *x) {
    seen.shutdowns++;
    if (!exchange_has_started(x))
        assert_int_equal(exchange_respond(x, 204, NULL, NULL, 0), 0);
}

static const struct exchange_events watch = {.on_close = on_close, .on_shutdown = on_shutdown};

static void handle_hello(struct exchange *x) {
    seen.handled++;
    exchange_set_events(x, &watch, NULL);
    assert_int_equal(exchange_respond(x, 200, "text/plain", "hello", 5), 0);
    assert_int_equal(exchange_respond(x, 200, "text/plain", "again", 5), -SP_E_CONFLICT);
}

static void handle_echo(struct exchange *x) {
    size_t len;
    const char *body = exchange_body(x, &len);
    seen.handled++;
    assert_int_equal(strlen(body), len);
    assert_int_equal(exchange_add_header(x, "X-Id", exchange_param(x, "id")), 0);
    assert_int_equal(exchange_respond(x, 200, "text/plain", body, len), 0);
}

static void handle_park(struct exchange *x) {
    seen.handled++;
    seen.parked = exchange_ref(x);
    exchange_set_events(x, &watch, NULL);
}

static void handle_chunks(struct exchange *x) {
    assert_int_equal(exchange_start(x, 200, "text/plain", -1), 0);
    assert_int_equal(exchange_write(x, "one,", 4), 0);
    assert_int_equal(exchange_write(x, "", 0), 0);
    assert_int_equal(exchange_write(x, "two", 3), 0);
    assert_int_equal(exchange_end(x), 0);
    assert_int_equal(exchange_write(x, "x", 1), -SP_E_CONFLICT);
}

static void handle_short(struct exchange *x) {
    exchange_set_events(x, &watch, NULL);
    assert_int_equal(exchange_start(x, 200, NULL, 10), 0);
    assert_int_equal(exchange_write(x, "12345678901", 11), -SP_E_INVALID);
    assert_int_equal(exchange_write(x, "123", 3), 0);
    assert_int_equal(exchange_end(x), -SP_E_INVALID);
}

static void handle_fail(struct exchange *x) {
    struct sp_error err;
    sp_error_field(&err, SP_E_QUOTA, "resources.vcpus", "only %d are left", 3);
    assert_int_equal(exchange_fail(x, &err), 0);
}

static void on_upload(struct exchange *x, const char *data, size_t len) {
    for (size_t i = 0; i < len; i++)
        seen.body_sum = seen.body_sum * 31 + (uint8_t)data[i];
    seen.body_bytes += len;
    if (seen.pause_body)
        exchange_body_pause(x);
}

static void on_upload_end(struct exchange *x) {
    seen.body_ends++;
    assert_int_equal(exchange_respond(x, 201, NULL, NULL, 0), 0);
}

static const struct exchange_events upload = {.on_body = on_upload, .on_body_end = on_upload_end, .on_close = on_close};

static void handle_upload(struct exchange *x) {
    seen.handled++;
    seen.parked = exchange_ref(x);
    exchange_set_events(x, &upload, NULL);
}

static void handle_reject(struct exchange *x) {
    assert_int_equal(exchange_problem(x, 403, "forbidden", NULL, "not you"), 0);
}

static void on_raw(struct exchange *x, const char *data, size_t len) {
    assert_int_equal(exchange_write(x, data, len), 0);
}

static void on_raw_end(struct exchange *x) {
    assert_int_equal(exchange_end(x), 0);
}

static const struct exchange_events raw_events = {.on_body = on_raw, .on_body_end = on_raw_end, .on_close = on_close};

static void handle_upgrade(struct exchange *x) {
    exchange_set_events(x, &raw_events, NULL);
    if (exchange_upgrade(x, "echo") < 0)
        assert_int_equal(exchange_problem(x, 426, "upgrade_required", NULL, "upgrade"), 0);
}

static const struct http_route routes[] = {
    {"GET", "/hello", handle_hello, 0, 0, NULL},
    {"POST", "/echo/{id}", handle_echo, 1000, 0, NULL},
    {"PUT", "/echo/{id}", handle_echo, 1000, 0, NULL},
    {"GET", "/park", handle_park, 0, 0, NULL},
    {"GET", "/chunks", handle_chunks, 0, 0, NULL},
    {"GET", "/short", handle_short, 0, 0, NULL},
    {"GET", "/fail", handle_fail, 0, 0, NULL},
    {"PUT", "/upload", handle_upload, UINT64_MAX, HTTP_ROUTE_STREAM_BODY, NULL},
    {"PUT", "/reject", handle_reject, UINT64_MAX, HTTP_ROUTE_STREAM_BODY, NULL},
    {"GET", "/upgrade", handle_upgrade, 0, 0, NULL},
};
static const struct http_server_options defaults = {.routes = routes, .n_routes = ARRAY_SIZE(routes)};

static struct rig rig;
static struct raw in;
static int fd;

static int setup(void **state) {
    (void)state;
    memset(&seen, 0, sizeof(seen));
    memset(&in, 0, sizeof(in));
    rig_serve(&rig, &defaults);
    fd = raw_connect(&rig);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    fd = close_fd(fd);
    seen.parked = exchange_unref(seen.parked);
    rig_done(&rig);
    return 0;
}

/* Other options than the defaults: the server of setup() is replaced. */
static void serve_with(const struct http_server_options *opt) {
    fd = close_fd(fd);
    rig_done(&rig);
    rig_serve(&rig, opt);
    fd = raw_connect(&rig);
}

static void test_keep_alive(void **state) {
    (void)state;
    raw_send(fd, GET("/hello"));
    raw_expect(&rig, fd, &in, "\r\n\r\nhello", 1);
    assert_non_null(strstr(in.data, "HTTP/1.1 200 OK\r\nDate: "));
    assert_non_null(strstr(in.data, "\r\nContent-Length: 5\r\n"));
    assert_null(strstr(in.data, "Connection:"));
    raw_send(fd, "HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    raw_expect(&rig, fd, &in, "Content-Length: 5\r\n\r\n", 2);
    raw_send(fd, GET("/chunks"));
    raw_expect(&rig, fd, &in, "4\r\none,\r\n3\r\ntwo\r\n0\r\n\r\n", 1);
    raw_send(fd, "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    raw_expect_eof(&rig, fd, &in);
    assert_int_equal(raw_count(&in, "hello"), 2);
    assert_non_null(strstr(in.data, "Connection: close\r\n"));
    rig_until(&rig, seen.closed == 3 && seen.end == EXCHANGE_COMPLETE);
    assert_int_equal(rig_stats(&rig).accepted, 1);
    assert_int_equal(rig_stats(&rig).requests, 4);
}

static void test_routing(void **state) {
    (void)state;
    raw_send(fd, "POST /echo/a%20b?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    raw_expect(&rig, fd, &in, "X-Id: a b\r\nContent-Length: 3\r\n\r\nabc", 1);
    raw_send(fd, GET("/fail"));
    raw_expect(&rig, fd, &in, "\"field\":\"resources.vcpus\"}", 1);
    assert_non_null(strstr(in.data, "HTTP/1.1 429 Too Many Requests\r\n"));
    assert_non_null(strstr(in.data, "Content-Type: application/problem+json\r\nRetry-After: 1\r\n"));
    assert_non_null(strstr(in.data, "\"status\":429,\"code\":\"quota_exceeded\",\"detail\":\"only 3 are left\""));
    raw_send(fd, GET("/none"));
    raw_expect(&rig, fd, &in, "\"code\":\"not_found\"", 1);
    raw_send(fd, GET("/echo/x"));
    raw_expect(&rig, fd, &in, "\"code\":\"method_not_allowed\"", 1);
    assert_non_null(strstr(in.data, "Allow: POST, PUT\r\n"));
    raw_send(fd, "DELETE /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    raw_expect(&rig, fd, &in, "Allow: GET, HEAD\r\n", 1);
    raw_send(fd, "POST /echo/%2e%2e HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    raw_expect(&rig, fd, &in, "HTTP/1.1 400 ", 1);
    raw_send(fd, GET("/hello"));
    raw_expect(&rig, fd, &in, "\r\n\r\nhello", 1);
}

/* Requests that come at once are answered one after the other, also when the first takes its time. */
static void test_pipelining(void **state) {
    (void)state;
    raw_send(fd, GET("/park")
                     GET("/hello") "POST /echo/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi" GET("/chunks"));
    rig_until(&rig, seen.parked);
    rig_rounds(&rig, 10);
    raw_take(fd, &in);
    assert_int_equal(in.len, 0);
    assert_int_equal(seen.handled, 1);
    assert_int_equal(exchange_respond(seen.parked, 200, NULL, "first", 5), 0);
    raw_expect(&rig, fd, &in, "0\r\n\r\n", 1);
    const char *first = strstr(in.data, "first"), *hello = strstr(in.data, "hello"), *hi = strstr(in.data, "\r\nhi");
    assert_true(first && hello && hi && first < hello && hello < hi && hi < strstr(in.data, "one,"));
}

static void test_slow_writer(void **state) {
    static const char text[] =
        "POST /echo/7 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    (void)state;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof(text) - 1; i++) {
            assert_int_equal(send(fd, text + i, 1, 0), 1);
            rig_rounds(&rig, 2);
        }
        raw_expect(&rig, fd, &in, "\r\n\r\nabcde", (unsigned)round + 1);
    }
    assert_int_equal(seen.handled, 2);
}

static void test_client_leaves_while_parked(void **state) {
    (void)state;
    raw_send(fd, GET("/park"));
    rig_until(&rig, seen.parked);
    fd = close_fd(fd);
    rig_until(&rig, seen.closed == 1);
    assert_int_equal(seen.end, EXCHANGE_CLIENT_GONE);
    assert_true(exchange_is_over(seen.parked));
    assert_string_equal(exchange_path(seen.parked), "/park");
    assert_int_equal(exchange_respond(seen.parked, 200, NULL, "late", 4), -SP_E_GONE);
    assert_int_equal(exchange_start(seen.parked, 200, NULL, -1), -SP_E_GONE);
    assert_int_equal(exchange_queued(seen.parked), 0);
    exchange_abort(seen.parked);
    exchange_set_events(seen.parked, &watch, NULL); /* not the first time: not told again */
    rig_rounds(&rig, 5);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(rig_stats(&rig).connections, 0);
    assert_int_equal(rig_stats(&rig).cut, 1);
}

/* The same by reset, and with so much pipelined behind it that the server has stopped reading. */
static void test_client_leaves_with_full_pipe(void **state) {
    char junk[65536];
    (void)state;
    raw_send(fd, GET("/park"));
    rig_until(&rig, seen.parked);
    memset(junk, 'x', sizeof(junk));
    for (int i = 0; i < 64; i++) {
        (void)!send(fd, junk, sizeof(junk), MSG_DONTWAIT);
        rig_rounds(&rig, 2);
    }
    raw_reset(TAKE_FD(fd));
    rig_until(&rig, seen.closed == 1);
    assert_int_equal(seen.end, EXCHANGE_CLIENT_GONE);
    seen.parked = exchange_unref(seen.parked);
    fd = raw_connect(&rig);
    raw_send(fd, GET("/park"));
    rig_until(&rig, seen.parked);
    for (int i = 0; i < 4; i++) {
        (void)!send(fd, junk, sizeof(junk), MSG_DONTWAIT);
        rig_rounds(&rig, 2);
    }
    fd = close_fd(fd);
    rig_until(&rig, seen.closed == 2);
}

static void test_client_leaves_in_body(void **state) {
    (void)state;
    raw_send(fd, "POST /echo/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    rig_rounds(&rig, 5);
    fd = close_fd(fd);
    rig_until(&rig, rig_stats(&rig).connections == 0);
    assert_int_equal(seen.handled, 0);
    fd = raw_connect(&rig);
    raw_send(fd, "PUT /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    rig_until(&rig, seen.body_bytes == 3);
    fd = close_fd(fd);
    rig_until(&rig, seen.closed == 1);
    assert_int_equal(seen.end, EXCHANGE_CLIENT_GONE);
    assert_int_equal(seen.body_ends, 0);
}

/* A body that breaks its framing: the handler is not told that it was whole, the client is told what was wrong. */
static void test_broken_body(void **state) {
    (void)state;
    raw_send(fd, "PUT /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n");
    raw_expect_eof(&rig, fd, &in);
    assert_non_null(strstr(in.data, "HTTP/1.1 400 "));
    rig_until(&rig, seen.closed == 1);
    assert_int_equal(seen.end, EXCHANGE_CLIENT_GONE);
    assert_int_equal(seen.body_ends, 0);
    assert_int_equal(exchange_respond(seen.parked, 200, NULL, NULL, 0), -SP_E_GONE);
}

/* Sends a request with n bytes of 'a' somewhere, as far as the server takes it, and wants an answer and a clean end. */
static void refused(const char *before, size_t n, const char *status) {
    char junk[4096];
    int peer = raw_connect(&rig);
    memset(junk, 'a', sizeof(junk));
    memset(&in, 0, sizeof(in));
    raw_send(peer, before);
    for (size_t sent = 0; sent < n && !in.eof;) {
        ssize_t r = send(peer, junk, n - sent < sizeof(junk) ? n - sent : sizeof(junk), MSG_DONTWAIT | MSG_NOSIGNAL);
        sent += r > 0 ? (size_t)r : 0;
        loop_run_once(rig.loop);
        raw_take(peer, &in);
    }
    raw_expect_eof(&rig, peer, &in);
    if (!strstr(in.data, status))
        fail_msg("wanted %s, got %s", status, in.data);
    assert_non_null(strstr(in.data, "Connection: close\r\n"));
    (void)close(peer);
}

static void test_oversize(void **state) {
    (void)state;
    refused("GET /", 20000, "HTTP/1.1 414 ");
    refused("GET / HTTP/1.1\r\nX: ", 20000, "HTTP/1.1 431 ");
    refused("POST /echo/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 1001, "HTTP/1.1 413 ");
    refused("POST /echo/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n", 500000, "HTTP/1.1 413 ");
    refused("POST /echo/1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", 1001, "HTTP/1.1 413 ");
    refused("GET /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n", 1, "HTTP/1.1 413 ");
    refused("POST /none HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n\r\n", 400000, "HTTP/1.1 404 ");
    refused("GET / HTTP/1.1\nHost: a\n\n", 0, "HTTP/1.1 400 ");
    refused("GET / HTTP/3.0\r\n", 0, "HTTP/1.1 505 ");
    refused("PUT /reject HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n", 900000, "HTTP/1.1 403 ");
    assert_int_equal(seen.handled, 0);
}

static void test_continue(void **state) {
    (void)state;
    raw_send(fd, "POST /echo/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    raw_expect(&rig, fd, &in, "HTTP/1.1 100 Continue\r\n\r\n", 1);
    raw_send(fd, "abc");
    raw_expect(&rig, fd, &in, "\r\n\r\nabc", 1);
    raw_send(fd, "POST /echo/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\nExpect: 100-continue\r\n\r\n");
    raw_expect_eof(&rig, fd, &in);
    assert_int_equal(raw_count(&in, "100 Continue"), 1);
    assert_int_equal(raw_count(&in, "HTTP/1.1 413"), 1);
}

/* A handler that takes no body holds the client up; memory stays bounded; then every byte comes. */
static void test_upload_back_pressure(void **state) {
    char block[65536];
    const size_t total = 32u << 20;
    size_t sent = 0;
    uint32_t sum = 0;
    char head[128];
    (void)state;
    seen.pause_body = true;
    (void)snprintf(head, sizeof(head), "PUT /upload HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", total);
    raw_send(fd, head);
    unsigned idle = 0, resumed = 0;
    while (sent < total) {
        for (size_t i = 0; i < sizeof(block); i++)
            block[i] = (char)((sent + i) * 7 + ((sent + i) >> 9));
        size_t want = total - sent < sizeof(block) ? total - sent : sizeof(block);
        ssize_t n = send(fd, block, want, MSG_DONTWAIT);
        for (ssize_t i = 0; i < n; i++)
            sum = sum * 31 + (uint8_t)block[i];
        sent += n > 0 ? (size_t)n : 0;
        loop_run_once(rig.loop);
        idle = n > 0 ? 0 : idle + 1;
        if (idle > 3 && seen.parked && resumed++ < 20)
            exchange_body_resume(seen.parked); /* a step at a time */
        if (resumed == 20) {
            assert_true(sent - seen.body_bytes < 16u << 20); /* what the kernel holds, and 128 KiB of ours */
            seen.pause_body = false;
            exchange_body_resume(seen.parked);
        }
    }
    raw_expect(&rig, fd, &in, "HTTP/1.1 201 ", 1);
    assert_int_equal(seen.body_bytes, total);
    assert_int_equal(seen.body_sum, sum);
}

static void test_upgrade(void **state) {
    (void)state;
    raw_send(fd, "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nearly");
    raw_expect(&rig, fd, &in, "Upgrade: echo\r\n\r\nearly", 1);
    raw_send(fd, "GET / HTTP/9.9\r\n\x01\x02");
    raw_expect(&rig, fd, &in, "HTTP/9.9\r\n\x01\x02", 1);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    raw_expect_eof(&rig, fd, &in);
    rig_until(&rig, seen.closed == 1);
    assert_int_equal(seen.end, EXCHANGE_COMPLETE);
    fd = close_fd(fd);
    fd = raw_connect(&rig);
    memset(&in, 0, sizeof(in));
    raw_send(fd, GET("/upgrade"));
    raw_expect(&rig, fd, &in, "HTTP/1.1 426 ", 1);
}

static void test_http10(void **state) {
    (void)state;
    raw_send(fd, "GET /chunks HTTP/1.0\r\n\r\n");
    raw_expect_eof(&rig, fd, &in);
    assert_non_null(strstr(in.data, "Connection: close\r\n\r\none,two"));
    assert_null(strstr(in.data, "chunked"));
}

/* FIN right behind the request: an answer that was given at once still arrives. */
static void test_half_closed_client(void **state) {
    (void)state;
    raw_send(fd, GET("/hello") GET("/chunks"));
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    raw_expect_eof(&rig, fd, &in);
    assert_non_null(strstr(in.data, "hello"));
    assert_non_null(strstr(in.data, "0\r\n\r\n"));
    rig_until(&rig, rig_stats(&rig).connections == 0);
}

static void test_short_answer_is_cut(void **state) {
    (void)state;
    raw_send(fd, GET("/short"));
    rig_until(&rig, seen.closed == 1);
    assert_int_equal(seen.end, EXCHANGE_ABORTED);
    for (int i = 0; i < 1000 && !in.reset && !in.eof; i++)
        raw_take(fd, &in);
    assert_true(in.reset);
}

static void test_max_connections(void **state) {
    struct http_server_options opt = defaults;
    int others[3];
    (void)state;
    opt.max_connections = 2;
    serve_with(&opt);
    for (int i = 0; i < 3; i++)
        others[i] = raw_connect(&rig);
    raw_expect_eof(&rig, others[2], &in);
    assert_non_null(strstr(in.data, "HTTP/1.1 503 "));
    assert_non_null(strstr(in.data, "Retry-After: 1\r\n"));
    assert_non_null(strstr(in.data, "too many connections"));
    memset(&in, 0, sizeof(in));
    raw_send(fd, GET("/hello"));
    raw_expect(&rig, fd, &in, "hello", 1);
    for (int i = 0; i < 3; i++)
        (void)close(others[i]);
    rig_until(&rig, rig_stats(&rig).connections == 1);
    assert_int_equal(rig_stats(&rig).refused, 2);
}

/* Out of descriptors: connections wait in the backlog and are served when there are some again. */
static void test_no_descriptors(void **state) {
    struct rlimit before, tight;
    (void)state;
    raw_send(fd, GET("/hello"));
    raw_expect(&rig, fd, &in, "hello", 1);
    int late = raw_connect(&rig);
    raw_send(late, GET("/hello"));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    tight = before;
    tight.rlim_cur = (rlim_t)late + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    rig_rounds(&rig, 20);
    unsigned accepted = (unsigned)rig_stats(&rig).accepted;
    raw_send(fd, GET("/hello")); /* others are served meanwhile */
    raw_expect(&rig, fd, &in, "hello", 2);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(accepted, 1);
    memset(&in, 0, sizeof(in));
    raw_expect(&rig, late, &in, "hello", 1);
    (void)close(late);
}

static void test_time_limits(void **state) {
    struct http_server_options opt = defaults;
    (void)state;
    opt.head_timeout_ms = opt.idle_timeout_ms = opt.body_timeout_ms = 60;
    serve_with(&opt);
    int silent = raw_connect(&rig), head = raw_connect(&rig), body = raw_connect(&rig);
    struct raw *ins = calloc(3, sizeof(*ins));
    assert_non_null(ins);
    raw_send(fd, GET("/hello"));
    raw_send(head, "GET /he");
    raw_send(body, "POST /echo/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
    raw_expect_eof(&rig, head, &ins[0]);
    raw_expect_eof(&rig, body, &ins[1]);
    raw_expect_eof(&rig, silent, &ins[2]);
    raw_expect_eof(&rig, fd, &in);
    assert_non_null(strstr(ins[0].data, "HTTP/1.1 408 "));
    assert_non_null(strstr(ins[1].data, "HTTP/1.1 408 "));
    assert_non_null(strstr(ins[1].data, "\"code\":\"request_timeout\""));
    assert_int_equal(ins[2].len, 0);
    assert_non_null(strstr(in.data, "hello"));
    assert_int_equal(rig_stats(&rig).timeouts, 2);
    free(ins);
    (void)close(silent);
    (void)close(head);
    (void)close(body);
}

static bool stopped;
static void on_stopped(void *ctx) {
    (void)ctx;
    stopped = true;
}

static void test_graceful_stop(void **state) {
    (void)state;
    int parked = raw_connect(&rig), working = raw_connect(&rig);
    struct raw *other = calloc(2, sizeof(*other));
    assert_non_null(other);
    stopped = false;
    raw_send(fd, GET("/hello"));
    raw_expect(&rig, fd, &in, "hello", 1);
    raw_send(parked, GET("/park"));
    rig_until(&rig, seen.parked);
    raw_send(working, "PUT /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab");
    struct exchange *first = TAKE_PTR(seen.parked);
    rig_until(&rig, seen.body_bytes == 2);
    http_server_stop(rig.server, 10000, on_stopped, NULL);
    raw_expect_eof(&rig, fd, &in);
    raw_expect_eof(&rig, parked, &other[0]); /* it ended early when asked */
    assert_non_null(strstr(other[0].data, "HTTP/1.1 204 "));
    assert_int_equal(seen.shutdowns, 1);
    assert_false(stopped);
    raw_send(working, "cd");
    raw_expect_eof(&rig, working, &other[1]);
    assert_non_null(strstr(other[1].data, "HTTP/1.1 201 "));
    (void)close(parked);
    (void)close(working);
    rig_until(&rig, stopped);
    exchange_unref(first);
    free(other);
}

static void test_stop_cuts_after_grace(void **state) {
    (void)state;
    stopped = false;
    raw_send(fd, "PUT /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab");
    rig_until(&rig, seen.body_bytes == 2);
    http_server_stop(rig.server, 30, on_stopped, NULL);
    rig_until(&rig, stopped);
    assert_int_equal(seen.end, EXCHANGE_ABORTED);
    assert_true(exchange_is_over(seen.parked));
}

/* The server goes while an exchange is held elsewhere: its memory stays, nothing else. */
static void test_exchange_outlives_server(void **state) {
    (void)state;
    raw_send(fd, GET("/park"));
    rig_until(&rig, seen.parked);
    rig.server = http_server_free(rig.server);
    assert_int_equal(seen.closed, 1);
    assert_string_equal(exchange_path(seen.parked), "/park");
    assert_int_equal(exchange_respond(seen.parked, 200, NULL, NULL, 0), -SP_E_GONE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keep_alive, setup, teardown),
        cmocka_unit_test_setup_teardown(test_routing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pipelining, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slow_writer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_client_leaves_while_parked, setup, teardown),
        cmocka_unit_test_setup_teardown(test_client_leaves_with_full_pipe, setup, teardown),
        cmocka_unit_test_setup_teardown(test_client_leaves_in_body, setup, teardown),
        cmocka_unit_test_setup_teardown(test_broken_body, setup, teardown),
        cmocka_unit_test_setup_teardown(test_oversize, setup, teardown),
        cmocka_unit_test_setup_teardown(test_continue, setup, teardown),
        cmocka_unit_test_setup_teardown(test_upload_back_pressure, setup, teardown),
        cmocka_unit_test_setup_teardown(test_upgrade, setup, teardown),
        cmocka_unit_test_setup_teardown(test_http10, setup, teardown),
        cmocka_unit_test_setup_teardown(test_half_closed_client, setup, teardown),
        cmocka_unit_test_setup_teardown(test_short_answer_is_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(test_max_connections, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_descriptors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_time_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_graceful_stop, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop_cuts_after_grace, setup, teardown),
        cmocka_unit_test_setup_teardown(test_exchange_outlives_server, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
