/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: a buffer never holds more than its maximum, never loses what it held, and is always NUL-ended. */
#include "base/buf.h"
#include "unit.h"
#include <errno.h>

static void check_invariant(const struct buf *b) {
    assert_non_null(b->data);
    assert_true(b->len <= b->max);
    assert_int_equal(b->data[b->len], '\0');
}

static void empty_buffer_is_a_string(void **state) {
    struct buf b;
    (void)state;
    buf_init(&b, 10);
    assert_string_equal(b.data, "");
    buf_consume(&b, 0);
    buf_reset(&b);
    check_invariant(&b);
    buf_done(&b);
    check_invariant(&b);
    buf_done(&b);
}

static void done_accepts_a_zeroed_struct(void **state) {
    struct buf b = {0};
    (void)state;
    buf_done(&b);
    assert_int_equal(buf_append_str(&b, "x"), -E2BIG);
}

static void appends_in_every_form(void **state) {
    struct buf b;
    (void)state;
    buf_init(&b, 100);
    assert_int_equal(buf_append(&b, "ab", 2), 0);
    assert_int_equal(buf_append_str(&b, "cd"), 0);
    assert_int_equal(buf_append_byte(&b, 'e'), 0);
    assert_int_equal(buf_printf(&b, "%d-%s", 42, "x"), 0);
    assert_int_equal(buf_printf(&b, "%s", ""), 0);
    assert_string_equal(b.data, "abcde42-x");
    assert_int_equal(b.len, 9);
    check_invariant(&b);
    buf_done(&b);
}

static void maximum_is_exact_and_failure_is_sticky(void **state) {
    struct buf b;
    (void)state;
    buf_init(&b, 4);
    assert_int_equal(buf_append_str(&b, "abcd"), 0);
    assert_int_equal(buf_append_byte(&b, 'e'), -E2BIG);
    assert_true(b.failed);
    assert_string_equal(b.data, "abcd");
    buf_consume(&b, 2);
    assert_int_equal(buf_append_str(&b, "xyz"), -E2BIG);
    assert_int_equal(buf_printf(&b, "%s", "xyz"), -E2BIG);
    assert_int_equal(buf_append_str(&b, "xy"), 0);
    assert_string_equal(b.data, "cdxy");
    assert_true(b.failed);
    buf_reset(&b);
    assert_false(b.failed);
    assert_string_equal(b.data, "");
    assert_int_equal(buf_append(&b, "x", SIZE_MAX), -E2BIG);
    buf_done(&b);
}

static void reserve_and_commit(void **state) {
    struct buf b;
    char *p;
    (void)state;
    buf_init(&b, 300);
    p = buf_reserve(&b, 200);
    assert_non_null(p);
    memset(p, 'x', 200);
    buf_commit(&b, 150);
    assert_int_equal(b.len, 150);
    check_invariant(&b);
    assert_null(buf_reserve(&b, 151));
    assert_false(b.failed);
    assert_non_null(buf_reserve(&b, 150));
    buf_done(&b);
}

/* A long stream through a small buffer: content stays right and memory stays small. */
static void streaming_reuses_memory(void **state) {
    struct buf b;
    uint8_t next_in = 0, next_out = 0;
    size_t seen = 0;
    (void)state;
    buf_init(&b, 1000);
    for (int round = 0; round < 5000; round++) {
        size_t put = (size_t)(round * 7919 % 333), take;
        for (size_t i = 0; i < put && b.len < b.max; i++)
            assert_int_equal(buf_append_byte(&b, next_in++), 0);
        take = (size_t)(round * 104729 % 391);
        if (take > b.len)
            take = b.len;
        for (size_t i = 0; i < take; i++)
            assert_int_equal((uint8_t)b.data[i], next_out++);
        seen += take;
        buf_consume(&b, take);
        check_invariant(&b);
        assert_true(b.cap <= b.max);
    }
    assert_true(seen > 100000);
    buf_done(&b);
}

static void steal_gives_a_string(void **state) {
    struct buf b;
    char *s;
    (void)state;
    buf_init(&b, 100);
    s = buf_steal(&b);
    assert_string_equal(s, "");
    free(s);
    (void)buf_append_str(&b, "hello world");
    buf_consume(&b, 6);
    s = buf_steal(&b);
    assert_string_equal(s, "world");
    free(s);
    assert_int_equal(b.len, 0);
    assert_int_equal(buf_append_str(&b, "again"), 0);
    assert_string_equal(b.data, "again");
    buf_done(&b);
}

static void integers_round_trip(void **state) {
    struct buf b;
    struct view v, part;
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    (void)state;
    buf_init(&b, 100);
    (void)buf_append_byte(&b, 0xfe);
    (void)buf_put_u16(&b, 0x1234);
    (void)buf_put_u32(&b, 0xdeadbeef);
    (void)buf_put_u64(&b, 0x0123456789abcdefull);
    (void)buf_append_str(&b, "tail");
    assert_memory_equal(b.data + 1, "\x34\x12\xef\xbe\xad\xde", 6);
    v = (struct view){(const uint8_t *)b.data, b.len};
    assert_true(view_u8(&v, &u8) && u8 == 0xfe);
    assert_true(view_u16(&v, &u16) && u16 == 0x1234);
    assert_true(view_u32(&v, &u32) && u32 == 0xdeadbeef);
    assert_true(view_u64(&v, &u64) && u64 == 0x0123456789abcdefull);
    assert_true(view_take(&v, 4, &part));
    assert_memory_equal(part.p, "tail", 4);
    assert_int_equal(v.len, 0);
    buf_done(&b);
}

static void cursor_stops_at_the_end(void **state) {
    static const uint8_t bytes[7] = {0};
    struct view v = {bytes, 0}, part = {NULL, 99};
    uint8_t u8 = 1;
    uint16_t u16 = 1;
    uint32_t u32 = 1;
    uint64_t u64 = 1;
    (void)state;
    assert_false(view_u8(&v, &u8));
    v.len = 1;
    assert_false(view_u16(&v, &u16));
    v.len = 3;
    assert_false(view_u32(&v, &u32));
    v.len = 7;
    assert_false(view_u64(&v, &u64));
    assert_false(view_take(&v, 8, &part));
    assert_false(view_take(&v, SIZE_MAX, &part));
    assert_true(u8 == 1 && u16 == 1 && u32 == 1 && u64 == 1 && part.len == 99);
    assert_ptr_equal(v.p, bytes);
    assert_int_equal(v.len, 7);
    v = (struct view){NULL, 0};
    assert_true(view_take(&v, 0, &part));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_buffer_is_a_string), cmocka_unit_test(done_accepts_a_zeroed_struct),
        cmocka_unit_test(appends_in_every_form),    cmocka_unit_test(maximum_is_exact_and_failure_is_sticky),
        cmocka_unit_test(reserve_and_commit),       cmocka_unit_test(streaming_reuses_memory),
        cmocka_unit_test(steal_gives_a_string),     cmocka_unit_test(integers_round_trip),
        cmocka_unit_test(cursor_stops_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
