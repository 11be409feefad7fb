/* SPDX-License-Identifier: Apache-2.0 */
/* Promises: a ring holds the last bytes, whole and in order; memory grows on demand, never over window and budget. */
#include "guest/ring.h"
#include "unit.h"

static uint8_t byte_at(uint64_t offset) {
    return (uint8_t)(offset * 131 + offset / 251);
}

static void write_some(struct ring *r, size_t n) {
    uint8_t data[5000];
    while (n > 0) {
        size_t k = n < sizeof(data) ? n : sizeof(data);
        for (size_t i = 0; i < k; i++)
            data[i] = byte_at(r->end + i);
        ring_write(r, data, k);
        n -= k;
    }
}

static void check(const struct ring *r) {
    struct view parts[2];
    size_t n = ring_peek(r, r->base, SIZE_MAX, parts), seen = 0;
    assert_int_equal(n, r->end - r->base);
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; i < parts[p].len; i++)
            assert_int_equal(parts[p].p[i], byte_at(r->base + seen++));
    assert_int_equal(seen, n);
}

static void keeps_the_last_window(void **state) {
    struct ring_budget budget = {.max = 1 << 20};
    struct ring r;
    (void)state;
    assert_int_equal(ring_init(&r, 20000, &budget), 0);
    assert_int_equal(budget.used, RING_FIRST);
    for (int i = 0; i < 200; i++) {
        write_some(&r, (size_t)(i * 37 % 1500) + 1);
        check(&r);
        assert_true(r.cap <= 20000);
    }
    assert_int_equal(r.cap, 20000);
    assert_int_equal(r.end - r.base, 20000);
    write_some(&r, 60000); /* more than all of it at once */
    check(&r);
    ring_drop(&r);
    assert_int_equal(budget.used, 0);
    assert_int_equal(r.base, r.end);
}

static void small_output_stays_small(void **state) {
    struct ring_budget budget = {.max = 1 << 20};
    struct ring r;
    (void)state;
    assert_int_equal(ring_init(&r, 1 << 18, &budget), 0);
    assert_int_equal(ring_room(&r, r.end, 3), 3);
    write_some(&r, 3);
    assert_int_equal(r.cap, RING_FIRST);
    ring_shrink(&r);
    assert_int_equal(r.cap, 3);
    assert_int_equal(budget.used, 3);
    check(&r);
    ring_drop(&r);
    ring_shrink(&r);
    assert_int_equal(budget.used, 0);
}

static void room_is_counted_from_the_slowest(void **state) {
    struct ring_budget budget = {.max = 1 << 20};
    struct ring r;
    (void)state;
    assert_int_equal(ring_init(&r, 8192, &budget), 0);
    write_some(&r, 8000);
    assert_int_equal(ring_room(&r, 0, 5000), 192);
    assert_int_equal(ring_room(&r, 4000, 5000), 4192);
    assert_int_equal(ring_room(&r, r.end, 5000), 5000);
    write_some(&r, 192);
    assert_int_equal(ring_room(&r, 0, 1), 0);
    assert_int_equal(r.base, 0);
    ring_drop(&r);
}

static struct ring *victim;

static void reclaim(struct ring_budget *b, size_t need) {
    (void)b;
    (void)need;
    if (victim)
        ring_drop(victim);
    victim = NULL;
}

static void budget_is_kept_and_reclaimed(void **state) {
    struct ring_budget budget = {.max = 40000, .reclaim = reclaim};
    struct ring a, b;
    (void)state;
    assert_int_equal(ring_init(&a, 32768, &budget), 0);
    write_some(&a, 32768);
    assert_int_equal(budget.used, 32768);
    assert_int_equal(ring_init(&b, 32768, &budget), 0); /* the first bytes are always given */
    write_some(&b, 20000);
    assert_int_equal(b.cap, RING_FIRST); /* no room to grow */
    check(&b);
    victim = &a;
    write_some(&b, 20000);
    assert_int_equal(b.cap, 32768);
    assert_int_equal(a.base, a.end);
    check(&b);
    ring_drop(&b);
    assert_int_equal(budget.used, 0);
}

static void a_dropped_ring_only_counts(void **state) {
    struct ring_budget budget = {.max = 40000};
    struct ring r;
    (void)state;
    assert_int_equal(ring_init(&r, 32768, &budget), 0);
    ring_drop(&r);
    write_some(&r, 100);
    assert_int_equal(r.end, 100);
    assert_int_equal(r.base, 100);
    assert_int_equal(budget.used, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_the_last_window),
        cmocka_unit_test(small_output_stays_small),
        cmocka_unit_test(room_is_counted_from_the_slowest),
        cmocka_unit_test(budget_is_kept_and_reclaimed),
        cmocka_unit_test(a_dropped_ring_only_counts),
    };
    return cmocka_run_group_tests_name("guest_ring", tests, NULL, NULL);
}
