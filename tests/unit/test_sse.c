/* SPDX-License-Identifier: Apache-2.0 */
/* The promise: what the encoder writes the decoder reads back in any segmentation, and neither breaks its bounds. */
#include "unit.h"
#include "wire/sse.h"

#define EVENTS_MAX 8
struct got {
    unsigned n, comments;
    bool error;
    char event[EVENTS_MAX][SSE_NAME_MAX + 1], id[EVENTS_MAX][SSE_ID_MAX + 1], data[EVENTS_MAX][256];
};

static struct got decode(const char *text, size_t len, size_t step, size_t max, bool *ret_partial) {
    struct sse_decoder d;
    struct got got = {0};
    size_t at = 0;
    sse_decoder_init(&d, max);
    while (at < len && !got.error) {
        size_t used, piece = len - at < step ? len - at : step;
        switch (sse_decoder_feed(&d, text + at, piece, &used)) {
        case SSE_EVENT:
            assert_true(got.n < EVENTS_MAX);
            assert_true(text_copy(got.event[got.n], sizeof(got.event[0]), d.event));
            assert_true(text_copy(got.id[got.n], sizeof(got.id[0]), d.id));
            assert_true(text_copy(got.data[got.n], sizeof(got.data[0]), d.data.data));
            got.n++;
            break;
        case SSE_COMMENT:
            got.comments++;
            break;
        case SSE_ERROR:
            got.error = true;
            break;
        case SSE_MORE:
            assert_int_equal(used, piece);
            break;
        }
        at += used;
    }
    if (ret_partial)
        *ret_partial = sse_decoder_is_partial(&d);
    sse_decoder_done(&d);
    return got;
}

static void test_round_trip(void **state) {
    _cleanup_buf_ struct buf b = {0};
    (void)state;
    buf_init(&b, 4096);
    assert_int_equal(sse_put_event(&b, "stdout", "12.0", "{\"a\":1}", 7), 0);
    assert_int_equal(sse_put_comment(&b, "alive"), 0);
    assert_int_equal(sse_put_event(&b, NULL, NULL, "one\ntwo\r\nthree\rfour\n", 20), 0);
    assert_int_equal(sse_put_event(&b, "end", "13", "", 0), 0);
    for (size_t step = 1; step <= b.len; step++) {
        bool partial;
        struct got got = decode(b.data, b.len, step, 1024, &partial);
        assert_false(got.error || partial);
        assert_int_equal(got.n, 3);
        assert_int_equal(got.comments, 1);
        assert_string_equal(got.event[0], "stdout");
        assert_string_equal(got.id[0], "12.0");
        assert_string_equal(got.data[0], "{\"a\":1}");
        assert_string_equal(got.event[1], "message");
        assert_string_equal(got.id[1], "12.0");
        assert_string_equal(got.data[1], "one\ntwo\nthree\nfour\n");
        assert_string_equal(got.event[2], "end");
        assert_string_equal(got.data[2], "");
    }
}

static void test_standard_cases(void **state) {
    static const struct {
        const char *text;
        unsigned n;
        const char *first;
    } cases[] = {
        {"data: a\n\n", 1, "a"},
        {"data:a\r\rdata: b\r\r", 2, "a"},
        {"data:  a\r\n\r\n", 1, " a"},
        {"data\n\n", 1, ""},
        {"data\ndata\n\n", 1, "\n"},
        {"\xef\xbb\xbf"
         "data: bom\n\n",
         1, "bom"},
        {"event: x\n\n", 0, NULL},
        {"event: x\n\ndata: y\n\n", 1, "y"},
        {"retry: 5\nfoo: bar\nDATA: no\ndata: z\n\n", 1, "z"},
        {"data: cut", 0, NULL},
        {"data: cut\n", 0, NULL},
        {"\n\n\n", 0, NULL},
        {"", 0, NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        for (size_t step = 1; step < 20; step += 6) {
            struct got got = decode(cases[i].text, strlen(cases[i].text), step, 1024, NULL);
            if (got.error || got.n != cases[i].n)
                fail_msg("case %zu: %u events", i, got.n);
            if (got.n)
                assert_string_equal(got.data[0], cases[i].first);
        }
    }
}

static void test_partial(void **state) {
    bool partial;
    (void)state;
    (void)decode("data: cut", 9, 9, 1024, &partial);
    assert_true(partial);
    (void)decode("data: a\n\ndata: b\n", 17, 20, 1024, &partial);
    assert_true(partial);
    (void)decode("event: e\n", 9, 20, 1024, &partial);
    assert_true(partial);
    (void)decode("data: a\n\n: x\n", 13, 20, 1024, &partial);
    assert_false(partial);
}

static void test_bounds(void **state) {
    char text[4096];
    struct got got;
    (void)state;
    memset(text, 'a', sizeof(text));
    memcpy(text, "data: ", 6);
    got = decode(text, sizeof(text), 100, 256, NULL);
    assert_true(got.error);
    size_t n = 0;
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "data: 1234\n");
    got = decode(text, n, 100, 64, NULL);
    assert_true(got.error);
    got = decode("data: a\0b\n\n", 11, 100, 64, NULL);
    assert_true(got.error);
    n = (size_t)snprintf(text, sizeof(text), "event: %0100d\n", 1);
    got = decode(text, n, 100, 512, NULL);
    assert_true(got.error);
    n = (size_t)snprintf(text, sizeof(text), "id: %0200d\n", 1);
    got = decode(text, n, 100, 512, NULL);
    assert_true(got.error);
}

static void test_encoder_refuses(void **state) {
    _cleanup_buf_ struct buf b = {0};
    (void)state;
    buf_init(&b, 40);
    assert_true(sse_put_event(&b, "a\nb", NULL, "", 0) < 0);
    assert_true(b.failed);
    assert_true(sse_put_event(&b, NULL, "a\rb", "", 0) < 0);
    assert_true(sse_put_comment(&b, "a\nb") < 0);
    assert_int_equal(b.len, 0);
    buf_reset(&b);
    assert_int_equal(sse_put_event(&b, "e", NULL, "x", 1), 0);
    size_t before = b.len;
    assert_true(sse_put_event(&b, "eeeeeeeee", NULL, "xxxxxxxxxxxxxxxxxxxxxxx", 23) < 0);
    assert_int_equal(b.len, before);
    assert_int_equal(strlen(b.data), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_standard_cases),  cmocka_unit_test(test_partial),
        cmocka_unit_test(test_bounds),     cmocka_unit_test(test_encoder_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
