/* SPDX-License-Identifier: Apache-2.0 */
/* Control's list, times in it, and the decision for each sandbox: every row of the table. */
#include "base/clock.h"
#include "node/desired.h"
#include "node/reconcile.h"
#include "unit.h"

#define ID_A "sbx_00000000000000000000000001"
#define ID_B "sbx_00000000000000000000000002"
#define GOOD                                                                                                           \
    "\"generation\":1,\"desired\":\"running\",\"observed\":\"creating\",\"template\":{\"digest\":"                     \
    "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\",\"manifest\":{\"user\":\"u\"}},"             \
    "\"resources\":{\"vcpus\":2,\"memory_mib\":512},\"env\":{\"A\":\"1\"},\"hostname\":\"h\",\"machine_id\":"          \
    "\"0123456789abcdef0123456789abcdef\",\"deadline_at\":\"2026-01-31T12:00:00.5Z\""

static int parse(const char *text, struct desired_list *ret) {
    json_t *answer = NULL;
    int r;
    assert_ok(json_parse(text, strlen(text), 65536, &answer, &unit_error));
    r = desired_parse(answer, ret, &unit_error);
    json_decref(answer);
    return r;
}

static void test_a_list(void **state) {
    struct desired_list list;
    const struct desired *d;
    (void)state;
    assert_int_equal(parse("{\"revision\":7,\"sandboxes\":[{\"id\":\"" ID_B "\"," GOOD "},"
                           "{\"id\":\"" ID_A "\",\"generation\":3,\"desired\":\"deleted\",\"observed\":\"failed\"}]}",
                           &list),
                     0);
    assert_string_equal(list.revision, "7");
    assert_int_equal(list.n, 2);
    d = desired_find(&list, ID_B);
    assert_non_null(d);
    assert_string_equal(d->problem, "");
    assert_int_equal(d->want, WANT_RUNNING);
    assert_int_equal(d->vcpus, 2);
    assert_int_equal(d->memory_mib, 512);
    assert_int_equal(d->deadline_ns % NSEC_PER_SEC, NSEC_PER_SEC / 2);
    assert_non_null(json_object_get(d->manifest, "user"));
    d = desired_find(&list, ID_A);
    assert_true(d && d->want == WANT_DELETED && d->generation == 3);
    assert_null(desired_find(&list, "sbx_00000000000000000000000003"));
    desired_list_done(&list);
    assert_null(desired_find(&list, ID_A));
}

static void test_lists_that_are_refused_as_a_whole(void **state) {
    static const char *const bad[] = {
        "{}",
        "{\"revision\":1}",
        "{\"sandboxes\":[]}",
        "{\"revision\":\"a b\",\"sandboxes\":[]}",
        "{\"revision\":\"\",\"sandboxes\":[]}",
        "{\"revision\":1,\"sandboxes\":{}}",
        "{\"revision\":1,\"sandboxes\":[1]}",
        "{\"revision\":1,\"sandboxes\":[{\"id\":\"sbx_x\"," GOOD "}]}",
        "{\"revision\":1,\"sandboxes\":[{\"id\":\"" ID_A "\",\"generation\":1,\"desired\":\"paused\"}]}",
        "{\"revision\":1,\"sandboxes\":[{\"id\":\"" ID_A "\",\"desired\":\"running\"}]}",
        "{\"revision\":1,\"sandboxes\":[{\"id\":\"" ID_A "\"," GOOD "},{\"id\":\"" ID_A "\"," GOOD "}]}",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct desired_list list;
        assert_true(parse(bad[i], &list) < 0);
        assert_null(list.items);
        assert_string_not_equal(unit_error.text, "");
    }
}

static void test_a_bad_row_is_marked(void **state) {
    struct desired_list list;
    (void)state;
    assert_int_equal(parse("{\"revision\":1,\"sandboxes\":[{\"id\":\"" ID_A
                           "\",\"generation\":1,\"desired\":\"running\",\"hostname\":\"h\"}]}",
                           &list),
                     0);
    assert_string_not_equal(list.items[0].problem, "");
    desired_list_done(&list);
}

static void test_times(void **state) {
    static const struct {
        const char *text;
        uint64_t ns; /* 0: refused */
    } rows[] = {
        {"1970-01-01T00:00:01Z", 1000000000ull},
        {"2001-09-09T01:46:40.123Z", 1000000000123000000ull},
        {"2001-09-09T01:46:40.1234567891Z", 1000000000123456789ull},
        {"2001-09-09T01:46:40+00:00", 1000000000000000000ull},
        {"2001-09-09T01:46:40", 0},
        {"2001-09-09 01:46:40Z", 0},
        {"2001-09-09T01:46:40.Z", 0},
        {"2001-13-09T01:46:40Z", 0},
        {"2001-09-09T24:46:40Z", 0},
        {"01-09-09T01:46:40Z", 0},
        {"2001-09-09T01:46:40+02:00", 0},
        {"", 0},
        {"soon", 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint64_t ns = 0;
        assert_int_equal(desired_time_parse(rows[i].text, &ns), rows[i].ns != 0);
        if (rows[i].ns)
            assert_int_equal(ns, rows[i].ns);
    }
}

static void test_every_decision(void **state) {
    static const struct {
        const char *want, *observed; /* want NULL: not in the list */
        uint64_t generation;
        enum local_state local;
        uint64_t local_generation;
        enum reconcile_action action;
    } rows[] = {
        {NULL, "", 0, LOCAL_NONE, 0, RECONCILE_NOTHING},
        {NULL, "", 0, LOCAL_COMING, 1, RECONCILE_DELETE},
        {NULL, "", 0, LOCAL_RUNNING, 1, RECONCILE_DELETE},
        {NULL, "", 0, LOCAL_STOPPING, 1, RECONCILE_NOTHING},
        {NULL, "", 0, LOCAL_FAILED, 1, RECONCILE_FORGET},
        {NULL, "", 0, LOCAL_DELETED, 1, RECONCILE_FORGET},

        {"deleted", "deleting", 1, LOCAL_NONE, 0, RECONCILE_DELETE},
        {"deleted", "deleting", 1, LOCAL_COMING, 1, RECONCILE_DELETE},
        {"deleted", "deleting", 1, LOCAL_RUNNING, 1, RECONCILE_DELETE},
        {"deleted", "deleting", 1, LOCAL_STOPPING, 1, RECONCILE_NOTHING},
        {"deleted", "failed", 1, LOCAL_FAILED, 1, RECONCILE_DELETE},
        {"deleted", "deleting", 1, LOCAL_DELETED, 1, RECONCILE_SAY_AGAIN},
        {"deleted", "deleted", 1, LOCAL_DELETED, 1, RECONCILE_NOTHING},

        {"running", "creating", 1, LOCAL_NONE, 0, RECONCILE_START},
        {"running", "", 1, LOCAL_NONE, 0, RECONCILE_START},
        {"running", "running", 1, LOCAL_NONE, 0, RECONCILE_LOST},
        {"running", "creating", 1, LOCAL_COMING, 1, RECONCILE_NOTHING},
        {"running", "creating", 1, LOCAL_COMING, 0, RECONCILE_NOTHING},
        {"running", "creating", 2, LOCAL_COMING, 1, RECONCILE_RESTART},
        {"running", "running", 1, LOCAL_RUNNING, 1, RECONCILE_NOTHING},
        {"running", "creating", 1, LOCAL_RUNNING, 1, RECONCILE_SAY_AGAIN},
        {"running", "running", 2, LOCAL_RUNNING, 1, RECONCILE_RESTART},
        {"running", "running", 1, LOCAL_RUNNING, 2, RECONCILE_NOTHING}, /* an old list */
        {"running", "running", 2, LOCAL_STOPPING, 1, RECONCILE_NOTHING},
        {"running", "creating", 1, LOCAL_FAILED, 1, RECONCILE_SAY_AGAIN},
        {"running", "failed", 1, LOCAL_FAILED, 1, RECONCILE_NOTHING},
        {"running", "creating", 2, LOCAL_FAILED, 1, RECONCILE_START},
        {"running", "running", 1, LOCAL_DELETED, 1, RECONCILE_NOTHING},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct desired d = {.generation = rows[i].generation};
        const struct local local = {.state = rows[i].local, .generation = rows[i].local_generation};
        enum reconcile_action action;
        if (rows[i].want) {
            d.want = rows[i].want[0] == 'r' ? WANT_RUNNING : WANT_DELETED;
            assert_true(text_copy(d.observed, sizeof(d.observed), rows[i].observed));
        }
        action = reconcile(rows[i].want ? &d : NULL, &local);
        if (action != rows[i].action)
            fail_msg("row %zu: %s", i, reconcile_action_name(action));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_list),
        cmocka_unit_test(test_lists_that_are_refused_as_a_whole),
        cmocka_unit_test(test_a_bad_row_is_marked),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_every_decision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
