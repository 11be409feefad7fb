/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: times print as RFC 3339, and deadlines neither wrap nor round down to a busy loop. */
#include "base/clock.h"
#include "unit.h"
#include <limits.h>

static void monotonic_does_not_go_back(void **state) {
    uint64_t a = clock_monotonic_ns(), b = clock_monotonic_ns();
    (void)state;
    assert_true(b >= a);
    assert_true(clock_realtime_ns() > 1600000000ull * NSEC_PER_SEC);
}

static void prints_rfc3339(void **state) {
    char s[CLOCK_RFC3339_SIZE];
    (void)state;
    assert_string_equal(clock_rfc3339(s, 0), "1970-01-01T00:00:00.000Z");
    assert_string_equal(clock_rfc3339(s, 951825599ull * NSEC_PER_SEC + 999999999), "2000-02-29T11:59:59.999Z");
    assert_string_equal(clock_rfc3339(s, UINT64_MAX), "2554-07-21T23:34:33.709Z");
}

static void deadline_passes(void **state) {
    struct deadline now = deadline_in_ms(0), later = deadline_in_ms(60000);
    (void)state;
    assert_true(deadline_passed(now));
    assert_int_equal(deadline_poll_ms(now), 0);
    assert_false(deadline_passed(later));
    assert_in_range(deadline_poll_ms(later), 50000, 60000);
}

static void deadline_saturates(void **state) {
    (void)state;
    assert_true(deadline_in_ms(UINT64_MAX).at_ns == UINT64_MAX);
    assert_true(deadline_in_ms(UINT64_MAX / NSEC_PER_MSEC).at_ns == UINT64_MAX);
    assert_int_equal(deadline_poll_ms(deadline_in_ms(UINT64_MAX)), INT_MAX);
}

static void poll_time_rounds_up(void **state) {
    struct deadline d = {clock_monotonic_ns() + 60 * NSEC_PER_SEC};
    (void)state;
    /* One nanosecond left is one millisecond of poll, or the loop would spin. */
    while (!deadline_passed(d) && deadline_poll_ms(d) > 59000) {
        d.at_ns -= 30 * NSEC_PER_SEC;
        assert_true(deadline_poll_ms(d) >= 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(monotonic_does_not_go_back),
        cmocka_unit_test(prints_rfc3339),
        cmocka_unit_test(deadline_passes),
        cmocka_unit_test(deadline_saturates),
        cmocka_unit_test(poll_time_rounds_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
