/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promise: the codec takes exactly well-formed HTTP/1.1 and refuses every ambiguous message with the right error,
 * whatever the segmentation; what it writes, it reads back.
 */
#include "unit.h"
#include "wire/http1.h"

struct outcome {
    bool head, end;
    enum http1_error error;
    char body[4096];
    size_t body_len, used;
};

/* Feeds a message in pieces of `step` bytes. */
static void feed(struct http1_parser *p, const char *data, size_t len, size_t step, struct outcome *o) {
    size_t at = 0;
    memset(o, 0, sizeof(*o));
    for (;;) {
        struct http1_slice body;
        size_t used, piece = len - at < step ? len - at : step;
        enum http1_event ev = http1_parser_feed(p, data + at, piece, &used, &body);
        assert_true(used <= piece);
        at += used;
        o->used = at;
        if (ev == HTTP1_EV_HEAD)
            o->head = true;
        if (ev == HTTP1_EV_BODY) {
            assert_true(body.len > 0 && o->body_len + body.len <= sizeof(o->body));
            memcpy(o->body + o->body_len, body.data, body.len);
            o->body_len += body.len;
        }
        if (ev == HTTP1_EV_END)
            o->end = true;
        if (ev == HTTP1_EV_ERROR)
            o->error = p->error;
        if (ev == HTTP1_EV_END || ev == HTTP1_EV_ERROR || (ev == HTTP1_EV_MORE && at == len))
            return;
    }
}

static struct outcome parse_with(enum http1_role role, unsigned flags, const struct http1_limits *limits,
                                 struct http1_head *head, const char *text, size_t len, size_t step) {
    struct http1_parser p;
    struct outcome o;
    http1_parser_init(&p, role, flags, limits);
    http1_parser_start(&p, head);
    feed(&p, text, len, step, &o);
    return o;
}

struct bad {
    const char *text;
    enum http1_error error;
};

static void check_bad(enum http1_role role, const struct bad *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (size_t step = 1; step <= 64; step = step == 1 ? 3 : step * 4) {
            struct http1_head head;
            http1_head_init(&head);
            struct outcome o = parse_with(role, 0, NULL, &head, cases[i].text, strlen(cases[i].text), step);
            if (o.error != cases[i].error)
                fail_msg("case %zu step %zu: error %d, wanted %d: %s", i, step, (int)o.error, (int)cases[i].error,
                         cases[i].text);
            assert_true(http1_error_status(o.error) >= 400 && *http1_error_text(o.error));
            http1_head_done(&head);
        }
    }
}

#define R "GET / HTTP/1.1\r\nHost: a\r\n"
#define P "POST / HTTP/1.1\r\nHost: a\r\n"

static void test_refused_requests(void **state) {
    static const struct bad cases[] = {
        {"GET / HTTP/1.1\nHost: a\n\n", HTTP1_E_LINE_ENDING},
        {R "X: 1\n\r\n", HTTP1_E_LINE_ENDING},
        {R "\n", HTTP1_E_LINE_ENDING},
        {"\r\nGET / HTTP/1.1\r\n", HTTP1_E_START_LINE},
        {"GET /\r\n", HTTP1_E_START_LINE},
        {"GET  / HTTP/1.1\r\n", HTTP1_E_START_LINE},
        {"GET / HTTP/1.1 \r\n", HTTP1_E_START_LINE},
        {" GET / HTTP/1.1\r\n", HTTP1_E_START_LINE},
        {"GET\t/ HTTP/1.1\r\n", HTTP1_E_START_LINE},
        {"G(T / HTTP/1.1\r\n", HTTP1_E_START_LINE},
        {"GET / http/1.1\r\n", HTTP1_E_START_LINE},
        {"GET / HTTP/11.\r\n", HTTP1_E_START_LINE},
        {"GETGETGETGETGETGETGETGETGET / HTTP/1.1\r\n", HTTP1_E_START_LINE},
        {"GET / HTTP/2.0\r\n", HTTP1_E_VERSION},
        {"PRI * HTTP/2.0\r\n", HTTP1_E_VERSION},
        {"GET / HTTP/0.9\r\n", HTTP1_E_VERSION},
        {"GET / HTTP/1.2\r\n", HTTP1_E_VERSION},
        {"GET a HTTP/1.1\r\n", HTTP1_E_TARGET},
        {"GET http://a/ HTTP/1.1\r\n", HTTP1_E_TARGET},
        {"CONNECT a:1 HTTP/1.1\r\n", HTTP1_E_TARGET},
        {"CONNECT / HTTP/1.1\r\n", HTTP1_E_TARGET},
        {"OPTIONS * HTTP/1.1\r\n", HTTP1_E_TARGET},
        {"GET /#f HTTP/1.1\r\n", HTTP1_E_TARGET},
        {"GET /\x01 HTTP/1.1\r\n", HTTP1_E_TARGET},
        {"GET /\xc3\xa4 HTTP/1.1\r\n", HTTP1_E_TARGET},
        {"GET /\r HTTP/1.1\r\n", HTTP1_E_TARGET},
        {"GET / HTTP/1.1\r\nHost : a\r\n", HTTP1_E_FIELD_NAME},
        {"GET / HTTP/1.1\r\nHost\r\n", HTTP1_E_FIELD_NAME},
        {"GET / HTTP/1.1\r\n: a\r\n", HTTP1_E_FIELD_NAME},
        {"GET / HTTP/1.1\r\nH\xc3st: a\r\n", HTTP1_E_FIELD_NAME},
        {R "A: b\x01\r\n", HTTP1_E_FIELD_VALUE},
        {R "A: b\x7f\r\n", HTTP1_E_FIELD_VALUE},
        {R "A: b\rc\r\n", HTTP1_E_FIELD_VALUE},
        {R "A: b\r\r\n", HTTP1_E_FIELD_VALUE},
        {R " folded\r\n", HTTP1_E_FOLD},
        {"GET / HTTP/1.1\r\n Host: a\r\n", HTTP1_E_FOLD},
        {R "A: b\r\n\tc\r\n", HTTP1_E_FOLD},
        {"GET / HTTP/1.1\r\n\r\n", HTTP1_E_HOST},
        {R "Host: a\r\n\r\n", HTTP1_E_HOST},
        {R "host: b\r\n\r\n", HTTP1_E_HOST},
        {"GET / HTTP/1.1\r\nHost: \r\n\r\n", HTTP1_E_HOST},
        {"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", HTTP1_E_HOST},
        {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", HTTP1_E_HOST},
        {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", HTTP1_E_HOST},
        {R "Authorization: x\r\nauthorization: x\r\n\r\n", HTTP1_E_DOUBLED},
        {P "Content-Type: a\r\nContent-Type: b\r\n\r\n", HTTP1_E_DOUBLED},
        {P "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {P "Content-Length: 1\r\ncontent-length: 2\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {P "Content-Length: 1, 1\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {P "Content-Length: +1\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {P "Content-Length: -1\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {P "Content-Length: 0x1\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {P "Content-Length:\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {P "Content-Length: 9223372036854775808\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {P "Content-Length: 99999999999999999999999999\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {P "Transfer-Encoding: gzip\r\n\r\n", HTTP1_E_TRANSFER},
        {P "Transfer-Encoding: gzip, chunked\r\n\r\n", HTTP1_E_TRANSFER},
        {P "Transfer-Encoding: chunked, chunked\r\n\r\n", HTTP1_E_TRANSFER},
        {P "Transfer-Encoding: \"chunked\"\r\n\r\n", HTTP1_E_TRANSFER},
        {P "Transfer-Encoding: chunked;q=1\r\n\r\n", HTTP1_E_TRANSFER},
        {P "Transfer-Encoding: \x0b"
           "chunked\r\n\r\n",
         HTTP1_E_FIELD_VALUE},
        {P "Transfer-Encoding: identity\r\n\r\n", HTTP1_E_TRANSFER},
        {P "Transfer-Encoding:\r\n\r\n", HTTP1_E_TRANSFER},
        {P "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP1_E_TRANSFER},
        {P "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", HTTP1_E_BOTH_LENGTHS},
        {P "Content-Length: 0\r\ntransfer-encoding: identity\r\n\r\n", HTTP1_E_BOTH_LENGTHS},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP1_E_NO_LENGTH},
        {P "Expect: 200-ok\r\nContent-Length: 1\r\n\r\n", HTTP1_E_EXPECT},
    };
    (void)state;
    check_bad(HTTP1_REQUEST, cases, ARRAY_SIZE(cases));
}

#define C P "Transfer-Encoding: chunked\r\n\r\n"

static void test_refused_chunks(void **state) {
    static const struct bad cases[] = {
        {C "\r\n", HTTP1_E_CHUNK},
        {C "g\r\n", HTTP1_E_CHUNK},
        {C "0x1\r\n", HTTP1_E_CHUNK},
        {C "+1\r\n", HTTP1_E_CHUNK},
        {C " 1\r\n", HTTP1_E_CHUNK},
        {C "1 \r\n", HTTP1_E_CHUNK},
        {C "1 ;a\r\n", HTTP1_E_CHUNK},
        {C "1;a\x01\r\n", HTTP1_E_CHUNK},
        {C "1\n", HTTP1_E_LINE_ENDING},
        {C "1;a\n", HTTP1_E_LINE_ENDING},
        {C "1\r\nab\r\n", HTTP1_E_CHUNK},
        {C "1\r\na\n", HTTP1_E_LINE_ENDING},
        {C "1\r\nax\r\n", HTTP1_E_CHUNK},
        {C "1000000000000000\r\n", HTTP1_E_CHUNK},
        {C "00000000000000001\r\n", HTTP1_E_CHUNK},
        {C "0\r\nbad name: 1\r\n", HTTP1_E_CHUNK},
        {C "0\r\nA: 1\n", HTTP1_E_CHUNK},
        {C "0\r\nA: \x02\r\n", HTTP1_E_CHUNK},
        {C "0\r\n folded\r\n", HTTP1_E_CHUNK},
        {C "0\r\n\rX", HTTP1_E_CHUNK},
        {C "0\r\n:\r\n", HTTP1_E_CHUNK},
    };
    (void)state;
    check_bad(HTTP1_REQUEST, cases, ARRAY_SIZE(cases));
}

static void test_nul_bytes(void **state) {
    static const struct {
        const char *text;
        size_t len;
        enum http1_error error;
    } cases[] = {
        {"GET /\0 HTTP/1.1\r\n", 18, HTTP1_E_TARGET},
        {"G\0T / HTTP/1.1\r\n", 16, HTTP1_E_START_LINE},
        {"GET / HTTP/1.1\r\nHost: a\0\r\n", 26, HTTP1_E_FIELD_VALUE},
        {"GET / HTTP/1.1\r\nHo\0t: a\r\n", 25, HTTP1_E_FIELD_NAME},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct http1_head head;
        http1_head_init(&head);
        struct outcome o = parse_with(HTTP1_REQUEST, 0, NULL, &head, cases[i].text, cases[i].len, 5);
        assert_int_equal(o.error, cases[i].error);
        http1_head_done(&head);
    }
}

static void test_refused_responses(void **state) {
    static const struct bad cases[] = {
        {"HTTP/1.1 99 no\r\n", HTTP1_E_START_LINE},
        {"HTTP/1.1 600 no\r\n", HTTP1_E_START_LINE},
        {"HTTP/1.1  200 OK\r\n", HTTP1_E_START_LINE},
        {"HTTP/1.1 2000 OK\r\n", HTTP1_E_START_LINE},
        {"HTTP/1.1 200 O\x01K\r\n", HTTP1_E_START_LINE},
        {"HTTP/2.0 200 OK\r\n", HTTP1_E_VERSION},
        {"ICY 200 OK....\r\n", HTTP1_E_START_LINE},
        {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", HTTP1_E_CONTENT_LENGTH},
        {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP1_E_BOTH_LENGTHS},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", HTTP1_E_TRANSFER},
        {"HTTP/1.1 204 OK\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP1_E_NO_LENGTH},
        {"HTTP/1.1 204 OK\r\nContent-Length: 1\r\n\r\n", HTTP1_E_NO_LENGTH},
        {"HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n", HTTP1_E_NO_LENGTH},
    };
    (void)state;
    check_bad(HTTP1_RESPONSE, cases, ARRAY_SIZE(cases));
}

static void test_request_is_read(void **state) {
    static const char text[] = "POST /v1/x?a=b HTTP/1.1\r\nHost: h:80\r\nX-Empty:\r\nAuthorization:\tBearer  t \t\r\n"
                               "Content-Length: 5\r\nConnection: Keep-Alive, Foo\r\nX-Utf: \xc3\xa4\r\n\r\nhellorest";
    (void)state;
    for (size_t step = 1; step < sizeof(text); step++) {
        struct http1_head h;
        http1_head_init(&h);
        struct outcome o = parse_with(HTTP1_REQUEST, 0, NULL, &h, text, sizeof(text) - 1, step);
        assert_true(o.head && o.end);
        assert_int_equal(o.body_len, 5);
        assert_memory_equal(o.body, "hello", 5);
        assert_int_equal(o.used, sizeof(text) - 1 - 4);
        assert_string_equal(http1_method(&h), "POST");
        assert_string_equal(http1_target(&h), "/v1/x?a=b");
        assert_string_equal(http1_get(&h, "HOST"), "h:80");
        assert_string_equal(http1_get(&h, "x-empty"), "");
        assert_string_equal(http1_get(&h, "authorization"), "Bearer  t");
        assert_null(http1_get(&h, "Hos"));
        assert_int_equal(h.n_fields, 6);
        assert_string_equal(http1_field_name(&h, 5), "X-Utf");
        assert_true(h.keep_alive && !h.upgrade && !h.expect_continue && h.minor == 1);
        assert_true(http1_has_token(&h, "connection", "foo") && !http1_has_token(&h, "connection", "fo"));
        assert_true(http1_is_hop_by_hop(&h, "FOO") && http1_is_hop_by_hop(&h, "te") &&
                    !http1_is_hop_by_hop(&h, "Host"));
        http1_head_done(&h);
    }
}

static void test_chunks_are_joined(void **state) {
    static const char text[] =
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\nExpect: 100-Continue\r\n\r\n"
        "5\r\nhello\r\n00a;x=\"y z\";q\r\n0123456789\r\n0\r\nX-Sum: 1\r\nY:\r\n\r\nGET";
    (void)state;
    for (size_t step = 1; step < sizeof(text); step++) {
        struct http1_head h;
        http1_head_init(&h);
        struct outcome o = parse_with(HTTP1_REQUEST, 0, NULL, &h, text, sizeof(text) - 1, step);
        assert_true(o.end && h.expect_continue && h.framing == HTTP1_BODY_CHUNKED);
        assert_int_equal(o.body_len, 15);
        assert_memory_equal(o.body, "hello0123456789", 15);
        assert_int_equal(o.used, sizeof(text) - 1 - 3);
        assert_null(http1_get(&h, "X-Sum"));
        http1_head_done(&h);
    }
}

static void test_forms(void **state) {
    static const struct {
        const char *text;
        unsigned flags;
        enum http1_error error;
        enum http1_form form;
    } cases[] = {
        {"GET http://a/x HTTP/1.1\r\nHost: A\r\n\r\n", HTTP1_ALLOW_ABSOLUTE, HTTP1_OK, HTTP1_FORM_ABSOLUTE},
        {"GET http://a?x HTTP/1.1\r\nHost: a\r\n\r\n", HTTP1_ALLOW_ABSOLUTE, HTTP1_OK, HTTP1_FORM_ABSOLUTE},
        {"GET http://a/x HTTP/1.1\r\nHost: b\r\n\r\n", HTTP1_ALLOW_ABSOLUTE, HTTP1_E_HOST, 0},
        {"GET http://u@a/x HTTP/1.1\r\nHost: a\r\n\r\n", HTTP1_ALLOW_ABSOLUTE, HTTP1_E_HOST, 0},
        {"GET ://a/x HTTP/1.1\r\nHost: a\r\n\r\n", HTTP1_ALLOW_ABSOLUTE, HTTP1_E_TARGET, 0},
        {"GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", HTTP1_ALLOW_ABSOLUTE, HTTP1_E_TARGET, 0},
        {"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", HTTP1_ALLOW_AUTHORITY, HTTP1_OK, HTTP1_FORM_AUTHORITY},
        {"CONNECT a:80 HTTP/1.1\r\nHost: b:80\r\n\r\n", HTTP1_ALLOW_AUTHORITY, HTTP1_E_HOST, 0},
        {"CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n", HTTP1_ALLOW_AUTHORITY, HTTP1_E_TARGET, 0},
        {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", HTTP1_ALLOW_ASTERISK, HTTP1_OK, HTTP1_FORM_ASTERISK},
        {"GET * HTTP/1.1\r\nHost: a\r\n\r\n", HTTP1_ALLOW_ASTERISK, HTTP1_E_TARGET, 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct http1_head h;
        http1_head_init(&h);
        struct outcome o =
            parse_with(HTTP1_REQUEST, cases[i].flags, NULL, &h, cases[i].text, strlen(cases[i].text), 1000);
        if (o.error != cases[i].error)
            fail_msg("case %zu: error %d", i, (int)o.error);
        if (!o.error)
            assert_int_equal(h.form, cases[i].form);
        http1_head_done(&h);
    }
}

static void test_keep_alive(void **state) {
    static const struct {
        const char *text;
        bool keep;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: x , CLOSE\r\n\r\n", false},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct http1_head h;
        http1_head_init(&h);
        struct outcome o = parse_with(HTTP1_REQUEST, 0, NULL, &h, cases[i].text, strlen(cases[i].text), 7);
        assert_true(o.end);
        assert_int_equal(h.keep_alive, cases[i].keep);
        http1_head_done(&h);
    }
}

/* A text of n bytes 'a' between two others. */
static char *stretch(const char *before, size_t n, const char *after) {
    size_t b = strlen(before), a = strlen(after);
    char *s = malloc(b + n + a + 1);
    assert_non_null(s);
    memcpy(s, before, b);
    memset(s + b, 'a', n);
    memcpy(s + b + n, after, a + 1);
    return s;
}

static void check_long(char *text, const struct http1_limits *limits, enum http1_error error) {
    struct http1_head h;
    http1_head_init(&h);
    struct outcome o = parse_with(HTTP1_REQUEST, 0, limits, &h, text, strlen(text), 1000);
    assert_int_equal(o.error, error);
    assert_true(h.text.len <= HTTP1_HEAD_MAX);
    http1_head_done(&h);
    free(text);
}

static void test_limits(void **state) {
    struct http1_limits tight = {.head_max = 100, .target_max = 10, .body_max = 5};
    char many[64 * 8 + 200];
    (void)state;
    check_long(stretch("GET /", HTTP1_TARGET_MAX, " HTTP/1.1\r\n"), NULL, HTTP1_E_TARGET_LONG);
    check_long(stretch("GET /", HTTP1_HEAD_MAX, ""), NULL, HTTP1_E_TARGET_LONG);
    check_long(stretch("GET / HTTP/1.1\r\nA: ", HTTP1_HEAD_MAX, ""), NULL, HTTP1_E_HEAD_LONG);
    check_long(stretch("GET / HTTP/1.1\r\nA: ", 100, ""), &tight, HTTP1_E_HEAD_LONG);
    check_long(stretch("GET /", 10, " HTTP/1.1\r\n"), &tight, HTTP1_E_TARGET_LONG);
    check_long(stretch(P "Content-Length: 6\r\n\r\n", 6, ""), &tight, HTTP1_E_BODY_LONG);
    check_long(stretch(P "Content-Length: 5\r\n\r\n", 5, ""), &tight, HTTP1_OK);
    check_long(stretch(C "3\r\naaa\r\n3\r\n", 3, ""), &tight, HTTP1_E_BODY_LONG);
    check_long(stretch(C "3\r\naaa\r\n2\r\n", 2, "\r\n0\r\n\r\n"), &tight, HTTP1_OK);
    check_long(stretch(C "1;", HTTP1_CHUNK_LINE_MAX, "\r\n"), NULL, HTTP1_E_CHUNK_LONG);
    check_long(stretch(C "0\r\nX: ", HTTP1_TRAILER_MAX, "\r\n\r\n"), NULL, HTTP1_E_CHUNK_LONG);
    size_t n = (size_t)snprintf(many, sizeof(many), "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < HTTP1_FIELDS_MAX - 1; i++)
        n += (size_t)snprintf(many + n, sizeof(many) - n, "A: 1\r\n");
    memcpy(many + n, "\r\n", 3);
    check_long(strdup(many), NULL, HTTP1_OK);
    memcpy(many + n, "A: 1\r\n", 7);
    check_long(strdup(many), NULL, HTTP1_E_FIELDS);
}

/* A megabyte of extensions on one-byte chunks is refused early. */
static void test_extension_flood(void **state) {
    struct http1_parser p;
    struct http1_head h;
    struct outcome o;
    char chunk[256];
    int n = 0;
    (void)state;
    http1_head_init(&h);
    http1_parser_init(&p, HTTP1_REQUEST, 0, NULL);
    http1_parser_start(&p, &h);
    feed(&p, C, strlen(C), 1000, &o);
    (void)snprintf(chunk, sizeof(chunk), "1;%0200d\r\nx\r\n", 0);
    do
        feed(&p, chunk, strlen(chunk), 1000, &o);
    while (!o.error && ++n < 5000);
    assert_int_equal(o.error, HTTP1_E_CHUNK_LONG);
    assert_true(n < 50);
    http1_head_done(&h);
}

static void test_response_framing(void **state) {
    static const struct {
        const char *text;
        bool no_body;
        const char *body;
        enum http1_framing framing;
        bool keep;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", false, "ab", HTTP1_BODY_LENGTH, true},
        {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", false, "", HTTP1_BODY_LENGTH, true},
        {"HTTP/1.1 200 \r\nContent-Length: 7\r\n\r\n", true, "", HTTP1_BODY_NONE, true},
        {"HTTP/1.1 204 No\r\n\r\n", false, "", HTTP1_BODY_NONE, true},
        {"HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n", false, "", HTTP1_BODY_NONE, true},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", false, "ab", HTTP1_BODY_CHUNKED,
         true},
        {"HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", false, "", HTTP1_BODY_NONE, true},
        {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", false, "ab", HTTP1_BODY_LENGTH, false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        for (size_t step = 1; step < 40; step += 3) {
            struct http1_parser p;
            struct http1_head h;
            struct outcome o;
            http1_head_init(&h);
            http1_parser_init(&p, HTTP1_RESPONSE, 0, NULL);
            http1_parser_start(&p, &h);
            if (cases[i].no_body)
                http1_parser_no_body(&p);
            feed(&p, cases[i].text, strlen(cases[i].text), step, &o);
            assert_true(o.end);
            assert_int_equal(h.framing, cases[i].framing);
            assert_int_equal(h.keep_alive, cases[i].keep);
            assert_int_equal(o.body_len, strlen(cases[i].body));
            assert_memory_equal(o.body, cases[i].body, o.body_len);
            http1_head_done(&h);
        }
    }
}

static void test_end_of_connection(void **state) {
    static const struct {
        const char *text;
        enum http1_event event;
    } cases[] = {
        {"", HTTP1_EV_MORE},
        {"HTTP/1.1 200 OK\r\n\r\nabc", HTTP1_EV_END},
        {"HTTP/1.1 200 OK\r\n\r\n", HTTP1_EV_END},
        {"HTTP/1.1 200 OK\r\n", HTTP1_EV_ERROR},
        {"H", HTTP1_EV_ERROR},
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", HTTP1_EV_ERROR},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n", HTTP1_EV_ERROR},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct http1_parser p;
        struct http1_head h;
        struct outcome o;
        http1_head_init(&h);
        http1_parser_init(&p, HTTP1_RESPONSE, 0, NULL);
        http1_parser_start(&p, &h);
        feed(&p, cases[i].text, strlen(cases[i].text), 4, &o);
        assert_int_equal(http1_parser_eof(&p), cases[i].event);
        if (cases[i].event == HTTP1_EV_ERROR)
            assert_int_equal(p.error, HTTP1_E_TRUNCATED);
        http1_head_done(&h);
    }
}

static void test_pipelined(void **state) {
    static const char text[] =
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
        "GET /3 HTTP/1.1\r\nHost: a\r\n\r\n";
    static const char *const targets[] = {"/1", "/2", "/3"};
    struct http1_parser p;
    struct http1_head h;
    struct outcome o;
    size_t at = 0;
    (void)state;
    http1_head_init(&h);
    http1_parser_init(&p, HTTP1_REQUEST, 0, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(targets); i++) {
        http1_parser_start(&p, &h);
        assert_true(http1_parser_is_idle(&p));
        feed(&p, text + at, sizeof(text) - 1 - at, 1000, &o);
        assert_true(o.end);
        assert_string_equal(http1_target(&h), targets[i]);
        at += o.used;
    }
    assert_int_equal(at, sizeof(text) - 1);
    http1_head_done(&h);
}

static void test_writing(void **state) {
    _cleanup_buf_ struct buf b = {0};
    struct http1_head h;
    (void)state;
    buf_init(&b, 4096);
    http1_head_init(&h);
    assert_int_equal(http1_put_request_line(&b, "PUT", "/x?y=%20"), 0);
    assert_int_equal(http1_put_field(&b, "Host", "a"), 0);
    assert_int_equal(http1_put_field(&b, "Transfer-Encoding", "chunked"), 0);
    assert_int_equal(http1_put_head_end(&b), 0);
    assert_int_equal(http1_put_chunk(&b, "hello, world. how are you?", 26), 0);
    assert_int_equal(http1_put_chunk(&b, "", 0), 0);
    assert_int_equal(http1_put_last_chunk(&b), 0);
    struct outcome o = parse_with(HTTP1_REQUEST, 0, NULL, &h, b.data, b.len, 3);
    assert_true(o.end && o.body_len == 26);
    http1_head_reset(&h);
    buf_reset(&b);
    assert_int_equal(http1_put_status_line(&b, 404), 0);
    assert_int_equal(http1_put_field_u64(&b, "Content-Length", 18446744073709551615ull), 0);
    assert_string_equal(b.data, "HTTP/1.1 404 Not Found\r\nContent-Length: 18446744073709551615\r\n");
    http1_head_done(&h);
}

static void test_writing_refuses_injection(void **state) {
    _cleanup_buf_ struct buf b = {0};
    (void)state;
    buf_init(&b, 64);
    assert_true(http1_put_field(&b, "A", "x\r\nB: y") < 0);
    assert_true(b.failed);
    b.failed = false;
    assert_true(http1_put_field(&b, "A B", "x") < 0);
    assert_true(http1_put_field(&b, "", "x") < 0);
    assert_true(http1_put_request_line(&b, "GET", "/a b") < 0);
    assert_true(http1_put_request_line(&b, "GET", "/a\r\n") < 0);
    assert_true(http1_put_request_line(&b, "GE T", "/") < 0);
    assert_true(http1_put_request_line(&b, "GET", "") < 0);
    assert_true(http1_put_status_line(&b, 99) < 0);
    assert_int_equal(b.len, 0);
    assert_int_equal(http1_put_field(&b, "Aaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbb"), 0);
    size_t before = b.len;
    assert_true(http1_put_field(&b, "C", "dddddddddddddddddd") < 0);
    assert_int_equal(b.len, before);
    assert_int_equal(strlen(b.data), before);
    assert_true(http1_put_chunk(&b, "eeeeeeeeeeeeeeeeeeee", 20) < 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_requests),
        cmocka_unit_test(test_refused_chunks),
        cmocka_unit_test(test_nul_bytes),
        cmocka_unit_test(test_refused_responses),
        cmocka_unit_test(test_request_is_read),
        cmocka_unit_test(test_chunks_are_joined),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_extension_flood),
        cmocka_unit_test(test_response_framing),
        cmocka_unit_test(test_end_of_connection),
        cmocka_unit_test(test_pipelined),
        cmocka_unit_test(test_writing),
        cmocka_unit_test(test_writing_refuses_injection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
