/* SPDX-License-Identifier: Apache-2.0 */
/* Cursors and the translation of agent records into events: every row, every refusal. */
#include "base/random.h"
#include "gateway/cursor.h"
#include "gateway/translate.h"
#include "unit.h"
#include <inttypes.h>

#define PROCESS "prc_00000000000000000000000001"

static void test_cursor_round_trip(void **state) {
    const struct cursor values[] = {{{0, 0, 0}}, {{1, 22, 333}}, {{CURSOR_OFFSET_MAX, 0, CURSOR_OFFSET_MAX}}};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        char text[CURSOR_TEXT_SIZE];
        struct cursor back;
        assert_true(cursor_parse(cursor_format(text, &values[i]), &back));
        assert_memory_equal(&back, &values[i], sizeof(back));
    }
}

static void test_cursor_refusals(void **state) {
    static const char *const bad[] = {"",
                                      "o",
                                      "o=1",
                                      "o=1,e=2",
                                      "o=1,e=2,p=",
                                      "o=1,e=2,p=3 ",
                                      " ",
                                      "o=1,e=2,p=3,",
                                      "O=1,e=2,p=3",
                                      "o=+1,e=2,p=3",
                                      "o=1,p=2,e=3",
                                      "o=00,e=2,p=3",
                                      "x",
                                      "o=1;e=2;p=3",
                                      "o=1,e=2,p=0x3",
                                      "o=1,e=2,p=\xff",
                                      "o=1,,e=2,p=3",
                                      "o=-1,e=2,p=3",
                                      "o=9223372036854775808,e=0,p=0",
                                      "o=99999999999999999999999,e=0,p=0"};
    struct cursor c = {{7, 7, 7}};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_false(cursor_parse(bad[i], &c));
    assert_int_equal(c.next[0], 7); /* untouched */
}

/* ---- records ---- */

struct fixture {
    struct translator t;
    struct buf in, out;
    struct record_reader reader;
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));
    const struct cursor start = {{0, 0, 0}};
    buf_init(&f->in, 1 << 20);
    buf_init(&f->out, 1 << 20);
    translator_init(&f->t, PROCESS, &start);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    translator_done(&f->t);
    record_reader_done(&f->reader);
    buf_done(&f->in);
    buf_done(&f->out);
    free(f);
    return 0;
}

/* Translates the record in f->in; f->out holds its event afterwards. */
static enum translate_result feed(struct fixture *f) {
    struct view in = {.p = (const uint8_t *)f->in.data, .len = f->in.len};
    struct record rec;
    enum translate_result r;
    assert_int_equal(record_next(&f->reader, &in, &rec), 1);
    buf_reset(&f->out);
    r = translate_record(&f->t, &rec, &f->out);
    assert_false(f->out.failed);
    buf_reset(&f->in);
    return r;
}

static enum translate_result started(struct fixture *f) {
    size_t at = record_begin(&f->in, REC_STARTED);
    record_put_string(&f->in, TAG_PROCESS_ID, PROCESS);
    record_put_u64(&f->in, TAG_PID, 12);
    record_put_u64(&f->in, TAG_STARTED_REALTIME_NS, 1000000000000000000ull);
    record_put_u64(&f->in, TAG_RESUMED, 1);
    assert_int_equal(record_end(&f->in, at), 0);
    return feed(f);
}

static enum translate_result output(struct fixture *f, uint64_t stream, uint64_t offset, const char *data, size_t len) {
    size_t at = record_begin(&f->in, REC_OUTPUT);
    record_put_u64(&f->in, TAG_STREAM, stream);
    record_put_u64(&f->in, TAG_OFFSET, offset);
    record_put_bytes(&f->in, TAG_DATA, data, len);
    assert_int_equal(record_end(&f->in, at), 0);
    return feed(f);
}

static enum translate_result gap(struct fixture *f, uint64_t stream, uint64_t from, uint64_t to) {
    size_t at = record_begin(&f->in, REC_GAP);
    record_put_u64(&f->in, TAG_STREAM, stream);
    record_put_u64(&f->in, TAG_FROM, from);
    record_put_u64(&f->in, TAG_TO, to);
    assert_int_equal(record_end(&f->in, at), 0);
    return feed(f);
}

static enum translate_result exited(struct fixture *f, uint64_t code, uint64_t signal, const char *reason) {
    size_t at = record_begin(&f->in, REC_EXITED);
    record_put_u64(&f->in, TAG_EXIT_CODE, code);
    record_put_u64(&f->in, TAG_SIGNAL, signal);
    record_put_u64(&f->in, TAG_DURATION_MS, 42);
    record_put_string(&f->in, TAG_REASON, reason);
    assert_int_equal(record_end(&f->in, at), 0);
    return feed(f);
}

static void test_events_of_a_command(void **state) {
    struct fixture *f = *state;
    assert_int_equal(started(f), TRANSLATE_STARTED);
    assert_true(f->t.resumed && f->t.pid == 12);
    assert_string_equal(f->out.data, "event: process_started\nid: o=0,e=0,p=0\ndata: {\"process_id\":\"" PROCESS
                                     "\",\"started_at\":\"2001-09-09T01:46:40.000Z\"}\n\n");
    assert_int_equal(output(f, STREAM_STDERR, 0, "ab", 2), TRANSLATE_OUTPUT);
    assert_string_equal(f->out.data, "event: stderr\nid: o=0,e=2,p=0\ndata: {\"offset\":0,\"data\":\"YWI=\"}\n\n");
    assert_int_equal(gap(f, STREAM_STDERR, 2, 10), TRANSLATE_OUTPUT);
    assert_string_equal(f->out.data,
                        "event: gap\nid: o=0,e=10,p=0\ndata: {\"stream\":\"stderr\",\"from\":2,\"to\":10}\n\n");
    assert_int_equal(exited(f, 3, 0, "exited"), TRANSLATE_EXITED);
    assert_string_equal(
        f->out.data, "event: process_exited\nid: o=0,e=10,p=0\ndata: {\"exit_code\":3,\"signal\":null,\"oom_killed\":"
                     "false,\"reason\":\"exited\",\"duration_ms\":42,\"output_may_continue\":false}\n\n");
    assert_true(f->t.ended);
}

static void test_largest_output_fits(void **state) {
    static char data[RECORD_MAX_OUTPUT];
    struct fixture *f = *state;
    started(f);
    f->t.cursor.next[2] = CURSOR_OFFSET_MAX - sizeof(data);
    assert_int_equal(output(f, STREAM_PTY, CURSOR_OFFSET_MAX - sizeof(data), data, sizeof(data)), TRANSLATE_OUTPUT);
    assert_true(f->out.len <= TRANSLATE_EVENT_MAX);
    assert_int_equal(output(f, STREAM_PTY, CURSOR_OFFSET_MAX, data, 1), TRANSLATE_VIOLATION);
}

static void test_full_buffer_is_said(void **state) {
    struct fixture *f = *state;
    struct record rec;
    struct view in;
    size_t at;
    started(f);
    at = record_begin(&f->in, REC_OUTPUT);
    record_put_u64(&f->in, TAG_STREAM, 1);
    record_put_u64(&f->in, TAG_OFFSET, 0);
    record_put_bytes(&f->in, TAG_DATA, "abc", 3);
    record_end(&f->in, at);
    in = (struct view){.p = (const uint8_t *)f->in.data, .len = f->in.len};
    assert_int_equal(record_next(&f->reader, &in, &rec), 1);
    buf_done(&f->out);
    buf_init(&f->out, 10);
    (void)translate_record(&f->t, &rec, &f->out);
    assert_true(f->out.failed);
}

static void assert_violation(struct fixture *f, enum translate_result r) {
    assert_int_equal(r, TRANSLATE_VIOLATION);
    assert_non_null(f->t.violation);
    assert_non_null(strstr(f->out.data, "event: error\n"));
    assert_non_null(strstr(f->out.data, "\"code\": \"guest_protocol\"")
                        ?: strstr(f->out.data, "\"code\":\"guest_protocol\""));
    assert_true(f->t.ended);
}

static void test_output_before_start(void **state) {
    assert_violation(*state, output(*state, 1, 0, "x", 1));
}
static void test_exit_before_start(void **state) {
    assert_violation(*state, exited(*state, 0, 0, "exited"));
}
static void test_started_twice(void **state) {
    started(*state);
    assert_violation(*state, started(*state));
}
static void test_hole(void **state) {
    started(*state);
    assert_violation(*state, output(*state, 1, 1, "x", 1));
}
static void test_empty_output(void **state) {
    started(*state);
    assert_violation(*state, output(*state, 1, 0, "", 0));
}
static void test_stream_zero(void **state) {
    started(*state);
    assert_violation(*state, output(*state, 0, 0, "x", 1));
}
static void test_stream_beyond(void **state) {
    started(*state);
    assert_violation(*state, output(*state, 1ull << 32 | 1, 0, "x", 1)); /* would be 1 if it were cut to 32 bits */
}
static void test_gap_of_nothing(void **state) {
    started(*state);
    assert_violation(*state, gap(*state, 1, 0, 0));
}
static void test_gap_elsewhere(void **state) {
    started(*state);
    assert_violation(*state, gap(*state, 1, 5, 9));
}
static void test_exit_code_too_large(void **state) {
    started(*state);
    assert_violation(*state, exited(*state, 256, 0, "exited"));
}
static void test_reason_with_line_break(void **state) {
    started(*state);
    assert_violation(*state, exited(*state, 0, 0, "a\nb"));
}

static void test_unknown_types_are_skipped(void **state) {
    struct fixture *f = *state;
    size_t at;
    started(f);
    at = record_begin(&f->in, (enum record_type)900);
    record_put_u64(&f->in, (enum record_tag)900, 1);
    record_end(&f->in, at);
    assert_int_equal(feed(f), TRANSLATE_NOTHING);
    assert_int_equal(f->out.len, 0);
}

static void test_error_text_is_escaped(void **state) {
    struct fixture *f = *state;
    size_t at = record_begin(&f->in, REC_ERROR);
    record_put_string(&f->in, TAG_CODE, "no_user");
    record_put_string(&f->in, TAG_MESSAGE, "a\n\ndata: \"x\"\xff");
    record_end(&f->in, at);
    assert_int_equal(feed(f), TRANSLATE_FAILED);
    assert_non_null(strstr(f->out.data, "start_failed"));
    assert_null(strstr(f->out.data, "\n\ndata"));
    assert_string_equal(f->t.code, "no_user");
}

#define WITH_FIXTURE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cursor_round_trip),
        cmocka_unit_test(test_cursor_refusals),
        WITH_FIXTURE(test_events_of_a_command),
        WITH_FIXTURE(test_largest_output_fits),
        WITH_FIXTURE(test_full_buffer_is_said),
        WITH_FIXTURE(test_output_before_start),
        WITH_FIXTURE(test_exit_before_start),
        WITH_FIXTURE(test_started_twice),
        WITH_FIXTURE(test_hole),
        WITH_FIXTURE(test_empty_output),
        WITH_FIXTURE(test_stream_zero),
        WITH_FIXTURE(test_stream_beyond),
        WITH_FIXTURE(test_gap_of_nothing),
        WITH_FIXTURE(test_gap_elsewhere),
        WITH_FIXTURE(test_exit_code_too_large),
        WITH_FIXTURE(test_reason_with_line_break),
        WITH_FIXTURE(test_unknown_types_are_skipped),
        WITH_FIXTURE(test_error_text_is_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
