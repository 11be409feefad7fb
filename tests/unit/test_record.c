/* SPDX-License-Identifier: Apache-2.0 */
/* Promises: what is built is read back whatever the cuts; nothing over a limit or malformed is ever handed out. */
#include "unit.h"
#include "wire/record.h"
#include <errno.h>

static struct buf sample(void) {
    struct buf b;
    buf_init(&b, 1 << 20);
    size_t at = record_begin(&b, REC_ATTACH);
    record_put_string(&b, TAG_PROCESS_ID, "p1");
    record_put_string(&b, TAG_ARGV, "sh");
    record_put_string(&b, TAG_ARGV, "");
    record_put_string(&b, TAG_ARGV, "-c");
    record_put_u64(&b, TAG_TIMEOUT_MS, UINT64_MAX);
    assert_int_equal(record_end(&b, at), 0);
    return b;
}

static void check_sample(const struct record *rec) {
    char id[16];
    uint64_t v;
    struct view cursor = rec->payload, item;
    assert_int_equal(rec->type, REC_ATTACH);
    assert_int_equal(record_get_string(rec, TAG_PROCESS_ID, id, sizeof(id)), 1);
    assert_string_equal(id, "p1");
    assert_true(record_get_u64(rec, TAG_TIMEOUT_MS, &v));
    assert_true(v == UINT64_MAX);
    assert_int_equal(record_count(rec, TAG_ARGV), 3);
    assert_true(record_list_next(&cursor, TAG_ARGV, &item) && item.len == 2);
    assert_true(record_list_next(&cursor, TAG_ARGV, &item) && item.len == 0);
    assert_true(record_list_next(&cursor, TAG_ARGV, &item) && item.len == 2);
    assert_false(record_list_next(&cursor, TAG_ARGV, &item));
    assert_null(record_missing(rec));
    assert_int_equal(record_get_string(rec, TAG_CWD, id, sizeof(id)), 0);
    assert_int_equal(record_get_string(rec, TAG_PROCESS_ID, id, 2), -E2BIG);
    assert_string_equal(id, "");
    assert_int_equal(record_get_u64_or(rec, TAG_STDIN, 9), 9);
}

static void round_trip_in_every_cut(void **state) {
    struct buf b = sample();
    (void)state;
    for (size_t cut = 0; cut <= b.len; cut++) {
        struct record_reader r = {0};
        struct record rec;
        struct view in = {(const uint8_t *)b.data, cut};
        int k = record_next(&r, &in, &rec);
        assert_int_equal(in.len, 0);
        assert_int_equal(k, cut == b.len ? 1 : 0);
        if (k == 0) {
            in = (struct view){(const uint8_t *)b.data + cut, b.len - cut};
            assert_int_equal(record_next(&r, &in, &rec), 1);
        }
        check_sample(&rec);
        assert_int_equal(record_next(&r, &in, &rec), 0);
        record_reader_done(&r);
    }
    buf_done(&b);
}

static void byte_by_byte_many_records(void **state) {
    struct buf b = sample();
    struct record_reader r = {0};
    struct record rec;
    size_t n = b.len;
    int seen = 0;
    (void)state;
    for (int k = 0; k < 3; k++)
        (void)buf_append(&b, memcpy((char[512]){0}, b.data, n), n);
    for (size_t i = 0; i < b.len; i++) {
        struct view in = {(const uint8_t *)b.data + i, 1};
        if (record_next(&r, &in, &rec) == 1) {
            check_sample(&rec);
            seen++;
        }
    }
    assert_int_equal(seen, 4);
    record_reader_done(&r);
    buf_done(&b);
}

static int read_raw(const struct buf *b) {
    struct record_reader r = {0};
    struct record rec;
    struct view in = {(const uint8_t *)b->data, b->len};
    int k = record_next(&r, &in, &rec);
    record_reader_done(&r);
    return k;
}

static void malformed_is_refused(void **state) {
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 18);
    /* Length over the limit. */
    buf_put_u32(&b, RECORD_MAX_PAYLOAD + 1), buf_put_u16(&b, 1), buf_put_u16(&b, 0);
    assert_int_equal(read_raw(&b), -EPROTO);
    /* The reserved half is not zero. */
    buf_reset(&b);
    buf_put_u32(&b, 0), buf_put_u16(&b, 1), buf_put_u16(&b, 1);
    assert_int_equal(read_raw(&b), -EPROTO);
    /* A field runs past the payload. */
    buf_reset(&b);
    buf_put_u32(&b, 9), buf_put_u16(&b, 1), buf_put_u16(&b, 0);
    buf_put_u16(&b, TAG_DATA), buf_put_u16(&b, 0), buf_put_u32(&b, 2), buf_append_byte(&b, 'x');
    assert_int_equal(read_raw(&b), -EPROTO);
    /* Half a field header. */
    buf_reset(&b);
    buf_put_u32(&b, 4), buf_put_u16(&b, 1), buf_put_u16(&b, 0), buf_put_u32(&b, 1);
    assert_int_equal(read_raw(&b), -EPROTO);
    /* An integer of 4 bytes, a string with NUL. */
    buf_reset(&b);
    size_t at = record_begin(&b, REC_PING);
    record_put_bytes(&b, TAG_PID, "1234", 4);
    assert_int_equal(record_end(&b, at), 0);
    assert_int_equal(read_raw(&b), -EPROTO);
    buf_reset(&b);
    at = record_begin(&b, REC_PING);
    record_put_bytes(&b, TAG_CWD, "a\0b", 3);
    assert_int_equal(record_end(&b, at), 0);
    assert_int_equal(read_raw(&b), -EPROTO);
    /* Unknown types and tags pass. */
    buf_reset(&b);
    at = record_begin(&b, (enum record_type)999);
    record_put_bytes(&b, (enum record_tag)999, "a\0b", 3);
    assert_int_equal(record_end(&b, at), 0);
    assert_int_equal(read_raw(&b), 1);
    buf_done(&b);
}

static void too_big_leaves_the_buffer(void **state) {
    struct buf b = sample();
    size_t len = b.len;
    char big[40000] = {0};
    (void)state;
    size_t at = record_begin(&b, REC_DATA);
    record_put_bytes(&b, TAG_DATA, big, sizeof(big));
    record_put_bytes(&b, TAG_DATA, big, sizeof(big));
    assert_int_equal(record_end(&b, at), -E2BIG);
    assert_int_equal(b.len, len);
    assert_int_equal(read_raw(&b), 1);
    buf_done(&b);
}

static void missing_names_the_field(void **state) {
    struct buf b;
    struct record_reader r = {0};
    struct record rec;
    (void)state;
    buf_init(&b, 4096);
    size_t at = record_begin(&b, REC_RESIZE);
    record_put_string(&b, TAG_PROCESS_ID, "x");
    record_put_u64(&b, TAG_COLS, 80);
    record_end(&b, at);
    struct view in = {(const uint8_t *)b.data, b.len};
    assert_int_equal(record_next(&r, &in, &rec), 1);
    assert_string_equal(record_missing(&rec), "rows");
    record_reader_done(&r);
    buf_done(&b);
}

static void output_header_is_a_record(void **state) {
    struct buf b;
    struct record_reader r = {0};
    struct record rec;
    struct view data;
    uint8_t head[RECORD_OUTPUT_OVERHEAD];
    (void)state;
    buf_init(&b, 4096);
    record_output_header(head, STREAM_STDERR, 1234567890123, 5);
    buf_append(&b, head, sizeof(head));
    buf_append(&b, "hello", 5);
    struct view in = {(const uint8_t *)b.data, b.len};
    assert_int_equal(record_next(&r, &in, &rec), 1);
    assert_int_equal(rec.type, REC_OUTPUT);
    assert_int_equal(record_get_u64_or(&rec, TAG_STREAM, 0), STREAM_STDERR);
    assert_true(record_get_u64_or(&rec, TAG_OFFSET, 0) == 1234567890123);
    assert_true(record_get_bytes(&rec, TAG_DATA, &data) && data.len == 5 && memcmp(data.p, "hello", 5) == 0);
    record_reader_done(&r);
    buf_done(&b);
}

static void names_are_the_specs(void **state) {
    (void)state;
    assert_string_equal(record_type_name(REC_EXITED), "EXITED");
    assert_string_equal(record_type_name(11), "?");
    for (uint16_t tag = 1; tag < TAG_COUNT_; tag++)
        assert_string_not_equal(record_tag_name(tag), "?");
    assert_string_equal(record_tag_name(0), "?");
    assert_string_equal(record_tag_name(TAG_COUNT_), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip_in_every_cut), cmocka_unit_test(byte_by_byte_many_records),
        cmocka_unit_test(malformed_is_refused),    cmocka_unit_test(too_big_leaves_the_buffer),
        cmocka_unit_test(missing_names_the_field), cmocka_unit_test(output_header_is_a_record),
        cmocka_unit_test(names_are_the_specs),
    };
    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
