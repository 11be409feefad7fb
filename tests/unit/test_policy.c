/* SPDX-License-Identifier: Apache-2.0 */
/* The policies: each rule, their order, what counts as use, the tiers of checkpoints, and the JSON form. */
#include "model/policy.h"
#include "unit.h"

#define BORN 1000000
#define S 1000

static struct policy_view idle(enum sandbox_state state, int64_t seconds) {
    return (struct policy_view){.state = state, .now_ms = BORN + seconds * S, .born_ms = BORN, .active_ms = BORN};
}

static bool does(const struct lifecycle_policy *p, struct policy_view v, enum operation_kind kind,
                 enum operation_reason reason) {
    struct policy_action a = policy_decide(p, &v);
    return a.acts && a.kind == kind && a.reason == reason;
}

static void test_idle(void **state) {
    struct lifecycle_policy p = {.idle_pause_s = 10, .idle_suspend_s = 60, .delete_after_s = 100};
    struct policy_view v = idle(SANDBOX_RUNNING, 9);
    (void)state;
    assert_false(policy_decide(&p, &v).acts);
    assert_true(does(&p, idle(SANDBOX_RUNNING, 10), OPERATION_PAUSE, REASON_IDLE_PAUSE));
    assert_false(does(&p, idle(SANDBOX_PAUSED, 59), OPERATION_PAUSE, REASON_IDLE_PAUSE));
    assert_true(does(&p, idle(SANDBOX_PAUSED, 60), OPERATION_SUSPEND, REASON_IDLE_SUSPEND));
    assert_true(does(&p, idle(SANDBOX_RUNNING, 60), OPERATION_SUSPEND, REASON_IDLE_SUSPEND));
    v = idle(SANDBOX_SUSPENDED, 99);
    assert_false(policy_decide(&p, &v).acts);
    assert_true(does(&p, idle(SANDBOX_SUSPENDED, 100), OPERATION_DELETE, REASON_DELETE_AFTER));
    assert_true(does(&p, idle(SANDBOX_FAILED, 100), OPERATION_DELETE, REASON_DELETE_AFTER));
    v = idle(SANDBOX_RUNNING, 1000);
    v.active_ms = v.now_ms - 9 * S;
    assert_false(policy_decide(&p, &v).acts);
}

static void test_what_counts_as_use(void **state) {
    struct lifecycle_policy p = {.idle_pause_s = 10, .idle_suspend_s = 60};
    struct policy_view v = idle(SANDBOX_RUNNING, 1000);
    (void)state;
    v.streams = 1;
    assert_false(policy_decide(&p, &v).acts);
    v.streams = 0;
    v.processes = 1;
    assert_false(policy_decide(&p, &v).acts);
    v.state = SANDBOX_PAUSED; /* its processes stand still */
    assert_true(does(&p, v, OPERATION_SUSPEND, REASON_IDLE_SUSPEND));
    v.streams = 1;
    assert_false(policy_decide(&p, &v).acts);
}

static void test_life(void **state) {
    struct lifecycle_policy p = {.max_life_s = 100, .idle_pause_s = 10};
    struct policy_view v = idle(SANDBOX_RUNNING, 100);
    (void)state;
    v.streams = v.processes = 5;
    assert_true(does(&p, v, OPERATION_DELETE, REASON_MAX_LIFE));
    assert_true(does(&p, idle(SANDBOX_FAILED, 100), OPERATION_DELETE, REASON_MAX_LIFE));
    for (unsigned s = 0; s < SANDBOX_STATE_COUNT_; s++) {
        v = idle((enum sandbox_state)s, 100000);
        bool settled = s == SANDBOX_RUNNING || s == SANDBOX_PAUSED || s == SANDBOX_SUSPENDED || s == SANDBOX_FAILED;
        assert_int_equal(policy_decide(&p, &v).acts, settled);
    }
}

static void test_checkpoints(void **state) {
    struct lifecycle_policy p = {.checkpoint_s = 60};
    struct policy_view v = idle(SANDBOX_RUNNING, 60);
    (void)state;
    assert_true(does(&p, v, OPERATION_SNAPSHOT, REASON_CHECKPOINT));
    v.checkpoint_ms = v.now_ms - 59 * S;
    assert_false(policy_decide(&p, &v).acts);
    v.checkpoint_ms = v.now_ms - 60 * S;
    assert_true(policy_decide(&p, &v).acts);
    v.state = SANDBOX_PAUSED;
    assert_false(policy_decide(&p, &v).acts);
}

static void test_tiers(void **state) {
    /* One each half hour over three days, newest first. */
    struct lifecycle_policy p = {.keep_last = 3, .keep_hourly = 4, .keep_daily = 2};
    int64_t taken[144];
    bool keep[144];
    unsigned n = 0, i;
    (void)state;
    for (i = 0; i < 144; i++)
        taken[i] = (int64_t)1800000 * (1000 + 143 - i);
    policy_keep(&p, taken, 144, keep);
    for (i = 0; i < 144; i++)
        n += keep[i];
    assert_true(keep[0] && keep[1] && keep[2] && !keep[143]);
    assert_in_range(n, 5, 9);
    for (i = 1; i < 144; i++)
        if (keep[i] && i > 8)
            assert_true(taken[i] / 86400000 != taken[i - 1] / 86400000); /* the newest of its day */
    p = (struct lifecycle_policy){.keep_last = 1};
    policy_keep(&p, taken, 144, keep);
    for (i = 0; i < 144; i++)
        assert_int_equal(keep[i], i == 0);
    policy_keep(&p, taken, 0, keep);
}

static void test_json(void **state) {
    struct lifecycle_policy p = lifecycle_policy_default(), again = {0};
    json_t *patch = json_pack("{s:i, s:n, s:b, s:{s:i, s:i}}", "idle_pause_after_s", 60, "idle_suspend_after_s",
                              "wake_on_traffic", 0, "checkpoint", "every_s", 600, "keep_daily", 7);
    (void)state;
    assert_int_equal(p.idle_suspend_s, 21600);
    assert_int_equal(lifecycle_policy_idle_s(&p), 21600);
    lifecycle_policy_merge(&p, patch);
    assert_true(p.idle_pause_s == 60 && p.idle_suspend_s == 0 && !p.wake_on_traffic && p.checkpoint_s == 600 &&
                p.keep_last == 1 && p.keep_daily == 7);
    assert_int_equal(lifecycle_policy_idle_s(&p), 60);
    json_t *printed = lifecycle_policy_print(&p);
    lifecycle_policy_merge(&again, printed);
    assert_memory_equal(&p, &again, sizeof(p));
    assert_true(json_is_null(json_object_get(printed, "idle_suspend_after_s")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(printed, "checkpoint"), "content")), "full");
    json_decref(printed);
    json_decref(patch);
    patch = json_pack("{s:{s:i, s:s}}", "checkpoint", "every_s", 60, "content", "disk");
    lifecycle_policy_merge(&p, patch);
    assert_true(p.checkpoint_content == CONTENT_DISK && p.checkpoint_s == 60 && p.keep_daily == 0);
    printed = lifecycle_policy_print(&p);
    lifecycle_policy_merge(&again, printed);
    assert_memory_equal(&p, &again, sizeof(p));
    json_decref(printed);
    json_decref(patch);
    patch = json_pack("{s:{s:i}}", "checkpoint", "every_s", 60);
    lifecycle_policy_merge(&p, patch);
    assert_int_equal(p.checkpoint_content, CONTENT_FULL);
    json_decref(patch);
    patch = json_pack("{s:n}", "checkpoint");
    lifecycle_policy_merge(&p, patch);
    assert_int_equal(p.checkpoint_s, 0);
    json_decref(patch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle),  cmocka_unit_test(test_what_counts_as_use),
        cmocka_unit_test(test_life),  cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_tiers), cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
