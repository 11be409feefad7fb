/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promise: a call ends exactly once with the whole response or the reason why not; connections are kept, separated
 * and replaced as the header says; streams are bounded both ways. The peer is our server, or a raw one that misbehaves.
 */
#include "io/http_client.h"
#include "io/unix_socket.h"
#include "io_rig.h"
#include <pthread.h>

#define BLOCK 65536u
#define BLOCKS 256u /* 16 MiB: more than the kernel holds for a loopback connection that is not read */

/* ---- server side ---- */

static struct {
    unsigned closed;
    enum exchange_end end;
    unsigned blocks_written, refusals;
    size_t queued_max;
    struct exchange *parked;
} served;

static void handle_hello(struct exchange *x) {
    assert_int_equal(exchange_respond(x, 200, "text/plain", "hello", 5), 0);
}

static void handle_echo(struct exchange *x) {
    size_t len;
    const char *body = exchange_body(x, &len);
    const char *type = exchange_header(x, "Content-Type");
    assert_int_equal(exchange_respond(x, 201, type, body, len), 0);
}

static void handle_park(struct exchange *x) {
    served.parked = exchange_ref(x);
}

static void handle_bearer(struct exchange *x) {
    const char *token = exchange_bearer(x);
    assert_int_equal(exchange_respond(x, token ? 200 : 401, NULL, token, token ? strlen(token) : 0), 0);
}

static void write_blocks(struct exchange *x) {
    char block[BLOCK];
    while (served.blocks_written < BLOCKS) {
        memset(block, (int)('a' + served.blocks_written % 26), sizeof(block));
        int r = exchange_write(x, block, sizeof(block));
        served.queued_max = exchange_queued(x) > served.queued_max ? exchange_queued(x) : served.queued_max;
        if (r < 0) {
            assert_true(r == -SP_E_TOO_LARGE || r == -SP_E_GONE); /* gone: the client left, on_close follows */
            served.refusals++;
            return;
        }
        served.blocks_written++;
    }
    assert_int_equal(exchange_end(x), 0);
}

static void on_close(struct exchange *x, enum exchange_end end) {
    (void)x;
    served.closed++;
    served.end = end;
}

static const struct exchange_events producer = {.on_drain = write_blocks, .on_close = on_close};

static void handle_blocks(struct exchange *x) {
    exchange_set_events(x, &producer, NULL);
    exchange_set_queue_max(x, 4 * BLOCK, BLOCK);
    int64_t length = exchange_header(x, "X-Length") ? (int64_t)BLOCK * BLOCKS : -1;
    assert_int_equal(exchange_start(x, 200, NULL, length), 0);
    write_blocks(x);
}

static void raw_bytes(struct exchange *x, const char *data, size_t len) {
    assert_int_equal(exchange_write(x, data, len), 0);
}

static void raw_end(struct exchange *x) {
    assert_int_equal(exchange_end(x), 0);
}

static const struct exchange_events tunnel = {.on_body = raw_bytes, .on_body_end = raw_end, .on_close = on_close};

static void handle_upgrade(struct exchange *x) {
    exchange_set_events(x, &tunnel, NULL);
    assert_int_equal(exchange_upgrade(x, "echo"), 0);
}

static const struct http_route routes[] = {
    {"GET", "/hello", handle_hello, 0, 0, NULL},   {"POST", "/echo", handle_echo, 32u << 20, 0, NULL},
    {"GET", "/park", handle_park, 0, 0, NULL},     {"GET", "/bearer", handle_bearer, 0, 0, NULL},
    {"GET", "/blocks", handle_blocks, 0, 0, NULL}, {"GET", "/upgrade", handle_upgrade, 0, 0, NULL},
};

/* ---- client side ---- */

static struct {
    unsigned heads, dones, drains;
    int status;
    enum sp_code code;
    char body[256];
    size_t body_len;
    uint32_t sum;
    bool pause_each, cancel_in_body;
    struct http_call *call;
} got;

static struct rig rig;
static struct http_client *client;
static char origin[64];

static void on_head(struct http_call *c, void *user, const struct http_response *r) {
    (void)c;
    (void)user;
    got.heads++;
    got.status = r->status;
}

static void keep_body(const char *data, size_t len) {
    for (size_t i = 0; i < len; i++) {
        got.sum = got.sum * 31 + (uint8_t)data[i];
        if (got.body_len + i < sizeof(got.body) - 1)
            got.body[got.body_len + i] = data[i];
    }
    got.body_len += len;
}

static void on_body(struct http_call *c, void *user, const char *data, size_t len) {
    (void)user;
    keep_body(data, len);
    if (got.pause_each)
        http_call_pause(c);
    if (got.cancel_in_body)
        http_call_cancel(c);
}

static void on_drain(struct http_call *c, void *user) {
    (void)c;
    (void)user;
    got.drains++;
}

static void on_done(struct http_call *c, void *user, const struct sp_error *err, const struct http_response *r) {
    (void)c;
    (void)user;
    got.dones++;
    got.code = err ? err->code : SP_OK;
    if (err)
        assert_string_not_equal(err->text, "");
    if (r) {
        got.status = r->status;
        keep_body(r->body, r->body_len);
    }
    got.call = NULL;
}

static const struct http_call_events events = {.on_head = on_head,
                                               .on_body = on_body,
                                               .on_drain = on_drain,
                                               .on_done = on_done};

static int setup_with(uint64_t write_timeout_ms) {
    struct http_server_options opt = {.routes = routes,
                                      .n_routes = ARRAY_SIZE(routes),
                                      .write_timeout_ms = write_timeout_ms};
    memset(&served, 0, sizeof(served));
    memset(&got, 0, sizeof(got));
    rig_serve(&rig, &opt);
    assert_ok(http_client_new(rig.loop, NULL, &client, &unit_error));
    (void)snprintf(origin, sizeof(origin), "http://127.0.0.1:%u", (unsigned)rig.port);
    return 0;
}

static int setup(void **state) {
    (void)state;
    return setup_with(0);
}

static int setup_impatient(void **state) {
    (void)state;
    return setup_with(200);
}

static int teardown(void **state) {
    (void)state;
    client = http_client_free(client);
    served.parked = exchange_unref(served.parked);
    rig_done(&rig);
    return 0;
}

static void start(struct http_request req) {
    if (!req.origin)
        req.origin = origin;
    got.body_len = 0;
    got.sum = 0;
    memset(got.body, 0, sizeof(got.body));
    got.dones = got.heads = got.drains = 0;
    got.status = 0;
    assert_ok(http_call_start(client, &req, &events, NULL, &got.call, &unit_error));
    assert_int_equal(got.dones, 0); /* never from inside the call */
}

static void finish(struct http_request req) {
    start(req);
    rig_until(&rig, got.dones == 1);
}

static void test_whole_calls_reuse_a_connection(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        finish((struct http_request){.target = "/hello"});
        assert_int_equal(got.code, SP_OK);
        assert_int_equal(got.status, 200);
        assert_string_equal(got.body, "hello");
    }
    finish((struct http_request){.method = "HEAD", .target = "/hello"});
    assert_true(got.code == SP_OK && got.body_len == 0);
    finish((
        struct http_request){.method = "POST", .target = "/echo", .content_type = "a/b", .body = "xyz", .body_len = 3});
    assert_int_equal(got.status, 201);
    assert_string_equal(got.body, "xyz");
    finish((struct http_request){.target = "/bearer", .bearer = "spm_1"});
    assert_string_equal(got.body, "spm_1");
    finish((struct http_request){.target = "/none"});
    assert_int_equal(got.status, 404);
    assert_int_equal(rig_stats(&rig).accepted, 1);
    finish((struct http_request){.target = "/hello", .generation = 1});
    assert_int_equal(rig_stats(&rig).accepted, 2);
    http_client_forget(client, origin);
    finish((struct http_request){.target = "/hello"});
    assert_int_equal(rig_stats(&rig).accepted, 3);
}

static void test_bad_requests(void **state) {
    static const struct http_header smuggled = {"X", "a\r\nY: b"}, ours = {"content-length", "3"};
    struct http_request req = {.origin = origin, .target = "/a b"};
    (void)state;
    assert_fails(http_call_start(client, &req, &events, NULL, NULL, &unit_error), SP_E_INVALID);
    req = (struct http_request){.origin = origin, .target = "/", .headers = &smuggled, .n_headers = 1};
    assert_fails(http_call_start(client, &req, &events, NULL, NULL, &unit_error), SP_E_INVALID);
    req.headers = &ours;
    assert_fails(http_call_start(client, &req, &events, NULL, NULL, &unit_error), SP_E_INVALID);
    req = (struct http_request){.origin = "https://a", .target = "/"};
    assert_fails(http_call_start(client, &req, &events, NULL, NULL, &unit_error), SP_E_UNSUPPORTED);
    req = (struct http_request){.origin = "nonsense", .target = "/"};
    assert_fails(http_call_start(client, &req, &events, NULL, NULL, &unit_error), SP_E_INVALID);
}

static void test_no_peer(void **state) {
    (void)state;
    rig.server = http_server_free(rig.server);
    finish((struct http_request){.target = "/hello"});
    assert_int_equal(got.code, SP_E_UNAVAILABLE);
    finish((struct http_request){.origin = "unix:/nonexistent/x", .target = "/hello"});
    assert_int_equal(got.code, SP_E_UNAVAILABLE);
    finish((struct http_request){.origin = "http://name.invalid:1", .target = "/hello", .timeout_ms = 5000});
    assert_true(got.code == SP_E_UNAVAILABLE || got.code == SP_E_TIMEOUT);
}

static void test_deadline_and_cancel(void **state) {
    (void)state;
    finish((struct http_request){.target = "/park", .timeout_ms = 50});
    assert_int_equal(got.code, SP_E_TIMEOUT);
    rig_until(&rig, exchange_is_over(served.parked)); /* the server saw us go */
    served.parked = exchange_unref(served.parked);
    finish((struct http_request){.target = "/park", .idle_timeout_ms = 50});
    assert_int_equal(got.code, SP_E_TIMEOUT);
    served.parked = exchange_unref(served.parked);
    start((struct http_request){.target = "/park"});
    rig_until(&rig, served.parked);
    got.call = http_call_cancel(got.call);
    rig_until(&rig, exchange_is_over(served.parked));
    assert_int_equal(got.dones, 0);
    start((struct http_request){.target = "/hello"});
    got.call = http_call_cancel(got.call); /* while it connects */
    start((struct http_request){.origin = "http://localhost:1", .target = "/hello"});
    got.call = http_call_cancel(got.call); /* while it resolves */
    start((struct http_request){.target = "/blocks", .stream_response = true});
    got.cancel_in_body = true;
    rig_until(&rig, served.closed == 1);
    got.cancel_in_body = false;
    assert_int_equal(got.dones, 0);
    start((struct http_request){.target = "/park"}); /* left to http_client_free */
}

/* The client takes nothing for a while: the server's queue keeps its bound, then everything arrives. */
static void check_download(struct http_request req) {
    uint32_t sum = 0;
    req.target = "/blocks";
    req.stream_response = true;
    served.blocks_written = served.refusals = 0;
    for (unsigned i = 0; i < BLOCKS; i++)
        for (unsigned k = 0; k < BLOCK; k++)
            sum = sum * 31 + 'a' + i % 26;
    got.pause_each = true;
    start(req);
    got.pause_each = true;
    for (int steps = 0; got.dones == 0; steps++) {
        rig_rounds(&rig, 3);
        if (steps == 20)
            assert_true(served.blocks_written < BLOCKS);
        got.pause_each = steps < 40;
        if (got.call)
            http_call_resume(got.call);
    }
    assert_int_equal(got.code, SP_OK);
    assert_int_equal(got.body_len, BLOCK * BLOCKS);
    assert_int_equal(got.sum, sum);
    assert_true(served.refusals > 0 && served.queued_max <= 4 * BLOCK + 1024);
}

static void test_download_back_pressure(void **state) {
    static const struct http_header with_length = {"X-Length", "1"};
    (void)state;
    check_download((struct http_request){0});
    check_download((struct http_request){.headers = &with_length, .n_headers = 1});
}

/* A reader that stops for good is cut after the write time limit. */
static void test_stalled_reader_is_cut(void **state) {
    (void)state;
    int fd = raw_connect(&rig);
    raw_send(fd, "GET /blocks HTTP/1.1\r\nHost: a\r\n\r\n");
    rig_until(&rig, served.closed == 1);
    assert_int_equal(served.end, EXCHANGE_TIMEOUT);
    assert_true(served.queued_max <= 4 * BLOCK + 1024);
    (void)close(fd);
    fd = raw_connect(&rig);
    raw_send(fd, "GET /blocks HTTP/1.1\r\nHost: a\r\n\r\n");
    rig_until(&rig, served.refusals == 2);
    raw_reset(fd); /* vanishes in mid-answer */
    rig_until(&rig, served.closed == 2);
    assert_int_equal(served.end, EXCHANGE_CLIENT_GONE);
}

static void test_streamed_upload(void **state) {
    char block[BLOCK];
    size_t total = 0;
    (void)state;
    memset(block, 'u', sizeof(block));
    for (int chunked = 0; chunked < 2; chunked++) {
        total = 0;
        start((struct http_request){.method = "POST",
                                    .target = "/echo",
                                    .stream_body = true,
                                    .stream_response = true,
                                    .content_length = chunked ? -1 : (int64_t)(48 * BLOCK)});
        assert_int_equal(http_call_write(got.call, "", 0), 0);
        while (total < 48 * BLOCK) {
            int r = http_call_write(got.call, block, sizeof(block));
            assert_true(r == 0 || r == -SP_E_TOO_LARGE);
            total += r == 0 ? sizeof(block) : 0;
            assert_true(http_call_queued(got.call) <= (1u << 20) + 4096);
            if (r < 0) {
                unsigned before = got.drains;
                rig_until(&rig, got.drains > before);
            }
        }
        if (!chunked)
            assert_int_equal(http_call_write(got.call, "x", 1), -SP_E_INVALID);
        assert_int_equal(http_call_end(got.call), 0);
        assert_int_equal(http_call_write(got.call, "x", 1), -SP_E_GONE);
        rig_until(&rig, got.dones == 1);
        assert_int_equal(got.code, SP_OK);
        assert_int_equal(got.status, 201);
        assert_int_equal(got.body_len, total);
    }
    assert_int_equal(rig_stats(&rig).accepted, 1);
}

static void test_response_bound(void **state) {
    (void)state;
    finish((struct http_request){.target = "/hello", .response_max = 4});
    assert_int_equal(got.code, SP_E_TOO_LARGE);
    finish((struct http_request){.target = "/hello", .response_max = 5});
    assert_int_equal(got.code, SP_OK);
    finish((struct http_request){.target = "/blocks"});
    assert_int_equal(got.code, SP_E_TOO_LARGE);
}

static void test_upgrade(void **state) {
    (void)state;
    start(
        (struct http_request){.target = "/upgrade", .allow_upgrade = true, .upgrade = "echo", .stream_response = true});
    rig_until(&rig, got.heads == 1);
    assert_int_equal(got.status, 101);
    assert_int_equal(http_call_write(got.call, "ping", 4), 0);
    rig_until(&rig, got.body_len == 4);
    assert_string_equal(got.body, "ping");
    assert_int_equal(http_call_end(got.call), 0);
    rig_until(&rig, got.dones == 1);
    assert_int_equal(got.code, SP_OK);
    rig_until(&rig, served.closed == 1);
    assert_int_equal(served.end, EXCHANGE_COMPLETE);
}

/* ---- a raw peer ---- */

static int raw_listener;
static char raw_origin[64];

static int raw_setup(void **state) {
    int r = setup(state);
    assert_ok(listen_tcp("127.0.0.1:0", &raw_listener, &unit_error));
    (void)snprintf(raw_origin, sizeof(raw_origin), "http://127.0.0.1:%u", (unsigned)listen_port(raw_listener));
    return r;
}

static int raw_teardown(void **state) {
    (void)close(raw_listener);
    return teardown(state);
}

static int raw_accept(void) {
    int fd;
    rig_until(&rig, (fd = accept4(raw_listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0);
    return fd;
}

/* One call, answered with these bytes, then closed (or reset). */
static void answer(struct http_request req, const char *text, bool reset) {
    struct raw in = {.len = 0};
    req.origin = raw_origin;
    start(req);
    int fd = raw_accept();
    raw_expect(&rig, fd, &in, "\r\n\r\n", 1);
    raw_send(fd, text);
    if (reset)
        raw_reset(fd);
    else
        (void)close(fd);
    rig_until(&rig, got.dones == 1);
}

static void test_odd_peers(void **state) {
    static const struct {
        const char *text;
        enum sp_code code;
        const char *body;
    } cases[] = {
        {"", SP_E_UNAVAILABLE, NULL},
        {"HTTP/1.1 200 OK\r\n\r\nuntil close", SP_OK, "until close"},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: "
         "2\r\n\r\nok",
         SP_OK, "ok"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut", SP_E_PROTOCOL, NULL},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ncut\r\n", SP_E_PROTOCOL, NULL},
        {"HTTP/1.1 200 OK\r\nConte", SP_E_PROTOCOL, NULL},
        {"HTTP/1.1 200 OK\nContent-Length: 0\n\n", SP_E_PROTOCOL, NULL},
        {"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", SP_E_PROTOCOL, NULL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokextra", SP_OK, "ok"},
        {"HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\n", SP_E_PROTOCOL, NULL},
        {"SSH-2.0-OpenSSH\r\n", SP_E_PROTOCOL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        answer((struct http_request){.target = "/"}, cases[i].text, false);
        if (got.code != cases[i].code)
            fail_msg("case %zu: %s", i, sp_code_name(got.code));
        if (cases[i].body)
            assert_string_equal(got.body, cases[i].body);
    }
    answer((struct http_request){.target = "/"}, "HTTP/1.1 200 OK\r\n\r\nreset", true);
    assert_int_equal(got.code, SP_E_PROTOCOL);
}

/* Closed while kept: a request that may be repeated is, another is not. */
static void test_stale_connection(void **state) {
    struct raw in = {.len = 0};
    (void)state;
    for (int i = 0; i < 2; i++) {
        memset(&in, 0, sizeof(in));
        start((struct http_request){.origin = raw_origin, .target = "/1"});
        int first = raw_accept();
        raw_expect(&rig, first, &in, "/1", 1);
        raw_send(first, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        rig_until(&rig, got.dones == 1);
        start((struct http_request){.origin = raw_origin, .method = i ? "POST" : "GET", .target = "/2"});
        (void)close(first); /* the client has not had a round to notice */
        if (i == 0) {
            int second = raw_accept();
            memset(&in, 0, sizeof(in));
            raw_expect(&rig, second, &in, "/2", 1);
            raw_send(second, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            rig_until(&rig, got.dones == 1);
            assert_string_equal(got.body, "ok");
            (void)close(second);
        } else {
            rig_until(&rig, got.dones == 1);
            assert_int_equal(got.code, SP_E_UNAVAILABLE);
        }
    }
}

/* ---- blocking calls, against a server in a thread ---- */

static void *run_loop(void *arg) {
    loop_run(arg);
    return NULL;
}

static int stop_at_once(void *ctx, const char *data, size_t len) {
    (void)data;
    *(size_t *)ctx += len;
    return 1;
}

static void test_sync(void **state) {
    _cleanup_http_result_ struct http_result result = {0}, streamed = {0};
    struct http_request req = {.origin = origin, .target = "/hello"};
    pthread_t thread;
    size_t bytes = 0;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, run_loop, rig.loop), 0);
    assert_ok(http_client_call_sync(&req, &result, &unit_error));
    assert_int_equal(result.status, 200);
    assert_string_equal(result.body, "hello");
    assert_string_equal(http1_get(&result.head, "content-type"), "text/plain");
    req.target = "/blocks";
    assert_ok(http_client_stream_sync(&req, NULL, stop_at_once, &bytes, &streamed, &unit_error));
    assert_int_equal(streamed.status, 200);
    assert_true(bytes > 0 && bytes < BLOCK * BLOCKS);
    req.origin = "http://127.0.0.1:1";
    assert_fails(http_client_call_sync(&req, &result, &unit_error), SP_E_UNAVAILABLE);
    assert_string_equal(result.body, "hello");
    loop_post_stop(rig.loop);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void test_unix_origin(void **state) {
    char path[600];
    int fd;
    (void)state;
    assert_int_equal(unit_temp_dir(state), 0);
    (void)snprintf(path, sizeof(path), "unix:%s", unit_path("s"));
    assert_ok(unix_listen(unit_path("s"), SOCK_STREAM | SOCK_NONBLOCK, 0600, (uid_t)-1, (gid_t)-1, &fd, &unit_error));
    assert_ok(http_server_listen(rig.server, fd, &unit_error));
    finish((struct http_request){.origin = path, .target = "/hello"});
    assert_string_equal(got.body, "hello");
    assert_ok(unix_connect(unit_path("s"), SOCK_STREAM, deadline_in_ms(1000), &fd, &unit_error));
    finish((struct http_request){.origin = path, .target = "/hello", .fd = fd});
    assert_string_equal(got.body, "hello");
    assert_int_equal(unit_temp_dir_remove(state), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole_calls_reuse_a_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_peer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deadline_and_cancel, setup, teardown),
        cmocka_unit_test_setup_teardown(test_download_back_pressure, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stalled_reader_is_cut, setup_impatient, teardown),
        cmocka_unit_test_setup_teardown(test_streamed_upload, setup, teardown),
        cmocka_unit_test_setup_teardown(test_response_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_upgrade, setup, teardown),
        cmocka_unit_test_setup_teardown(test_odd_peers, raw_setup, raw_teardown),
        cmocka_unit_test_setup_teardown(test_stale_connection, raw_setup, raw_teardown),
        cmocka_unit_test_setup_teardown(test_sync, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unix_origin, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
