/* SPDX-License-Identifier: Apache-2.0 */
/* Promises: timers fire in order and once, anything may be removed from inside a callback, nothing armed sleeps. */
#include "base/clock.h"
#include "guest/loop.h"
#include "unit.h"

static struct loop loop;
static char order[64];
static struct timer timers[4];
static struct source sources[2];
static int fired;

static void note(struct timer *t) {
    size_t n = strlen(order);
    order[n] = (char)('a' + (t - timers));
    order[n + 1] = '\0';
}

static void stop_the_next(struct timer *t) {
    note(t);
    timer_stop(&loop, t + 1);
}

static int set_up(void **state) {
    (void)state;
    memset(timers, 0, sizeof(timers));
    order[0] = '\0';
    fired = 0;
    return loop_init(&loop);
}

static int tear_down(void **state) {
    (void)state;
    return close(loop.epfd);
}

static void timers_in_order(void **state) {
    uint64_t now = clock_monotonic_ns();
    (void)state;
    timer_arm(&loop, &timers[0], now + 30 * NSEC_PER_MSEC, note);
    timer_arm(&loop, &timers[1], now + 10 * NSEC_PER_MSEC, note);
    timer_arm(&loop, &timers[2], now + 20 * NSEC_PER_MSEC, note);
    timer_arm(&loop, &timers[3], now + 5 * NSEC_PER_MSEC, note);
    timer_stop(&loop, &timers[3]);
    timer_arm(&loop, &timers[1], now + 25 * NSEC_PER_MSEC, note); /* again: the new time counts */
    while (loop.first)
        loop_step(&loop, false);
    assert_string_equal(order, "cba");
    assert_true(clock_monotonic_ns() >= now + 30 * NSEC_PER_MSEC);
    assert_false(timer_armed(&timers[0]));
}

static void stopping_another_from_a_callback(void **state) {
    (void)state;
    timer_arm(&loop, &timers[0], 1, stop_the_next);
    timer_arm(&loop, &timers[1], 2, note);
    timer_arm(&loop, &timers[2], 3, note);
    loop_step(&loop, true);
    assert_string_equal(order, "ac");
}

static void remove_both(struct source *s, uint32_t events) {
    (void)s;
    assert_true(events & EPOLLIN);
    fired++;
    loop_remove(&loop, &sources[0]);
    loop_remove(&loop, &sources[1]);
}

static void removed_sources_do_not_fire(void **state) {
    int a[2], b[2];
    (void)state;
    assert_int_equal(pipe(a), 0);
    assert_int_equal(pipe(b), 0);
    assert_int_equal(write(a[1], "x", 1), 1);
    assert_int_equal(write(b[1], "x", 1), 1);
    assert_int_equal(loop_add(&loop, &sources[0], a[0], EPOLLIN, remove_both), 0);
    assert_int_equal(loop_add(&loop, &sources[1], b[0], EPOLLIN, remove_both), 0);
    loop_step(&loop, true);
    assert_int_equal(fired, 1);
    assert_false(loop_has(&sources[0]) || loop_has(&sources[1]));
    loop_remove(&loop, &sources[0]);
    for (int i = 0; i < 2; i++) {
        (void)close(a[i]);
        (void)close(b[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(timers_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stopping_another_from_a_callback, set_up, tear_down),
        cmocka_unit_test_setup_teardown(removed_sources_do_not_fire, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("guest_loop", tests, NULL, NULL);
}
