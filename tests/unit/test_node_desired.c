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
        "{\"revision\":1,\"sandboxes\":[{\"id\":\"" ID_A "\",\"generation\":1,\"desired\":\"asleep\"}]}",
        "{\"revision\":1,\"sandboxes\":[],\"snapshots_gone\":[\"snp_x\"]}",
        "{\"revision\":1,\"sandboxes\":[],\"snapshots_gone\":{}}",
        "{\"revision\":1,\"sandboxes\":[],\"pools\":1}",
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

#define SNAPSHOT "snp_00000000000000000000000003"

static void test_what_a_lifecycle_needs(void **state) {
    static const char *const bad[] = {"\"start\":{\"snapshot_id\":\"" ID_A "\"}",
                                      "\"start\":1",
                                      "\"start\":{\"snapshot_id\":\"" SNAPSHOT "\",\"content\":\"half\"}",
                                      "\"snapshot\":{\"id\":\"" SNAPSHOT "\",\"content\":2}",
                                      "\"snapshot\":{\"id\":\"x\"}",
                                      "\"snapshot\":{\"id\":1}"};
    struct desired_list list;
    char text[2048];
    (void)state;
    assert_int_equal(parse("{\"revision\":7,\"sandboxes\":[{\"id\":\"" ID_A
                           "\",\"operation_id\":\"op_1\",\"operation_kind\":\"suspend\",\"start\":{\"snapshot_id\":"
                           "\"" SNAPSHOT "\",\"content\":\"disk\"},\"snapshot\":{\"id\":\"" SNAPSHOT
                           "\",\"kind\":\"suspend\"}," GOOD "}],\"snapshots_gone\":[\"" SNAPSHOT
                           "\"],\"pools\":[{\"pool_id\":\"p\"},{\"pool_id\":\"q\","
                           "\"size\":3,\"template\":{\"digest\":"
                           "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"},\"resources\":"
                           "{\"vcpus\":1,\"memory_mib\":256}}]}",
                           &list),
                     0);
    assert_string_equal(list.items[0].problem, "");
    assert_string_equal(list.items[0].operation_kind, "suspend");
    assert_string_equal(list.items[0].start_snapshot, SNAPSHOT);
    assert_string_equal(list.items[0].snapshot_id, SNAPSHOT);
    assert_string_equal(list.items[0].snapshot_kind, "suspend");
    assert_true(list.items[0].start_boots && !list.items[0].snapshot_is_disk);
    assert_int_equal(list.n_gone, 1);
    assert_int_equal(list.n_pools, 1); /* the malformed one is none */
    assert_string_equal(list.pools[0].id, "q");
    assert_int_equal(list.pools[0].size, 3);
    desired_list_done(&list);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_true(text_printf(text, sizeof(text), "{\"revision\":1,\"sandboxes\":[{\"id\":\"%s\",%s,%s}]}", ID_A,
                                bad[i], GOOD));
        assert_int_equal(parse(text, &list), 0);
        assert_string_not_equal(list.items[0].problem, "");
        desired_list_done(&list);
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

enum flag {
    START = 1, /* start.snapshot_id is there */
    SNAP = 2,  /* a snapshot is wanted */
    KNOWN = 4, /* … and was begun here */
    UNSETTLED = 8,
    FAILED = 16,  /* the operation failed here */
    ROLLBACK = 32 /* the operation's kind */
};

struct decision {
    const char *want, *observed; /* want NULL: not in the list */
    uint64_t generation;
    enum local_state local;
    uint64_t local_generation;
    unsigned flags;
    enum reconcile_action action;
};

static const struct decision decisions[] = {
    {NULL, "", 0, LOCAL_NONE, 0, 0, RECONCILE_NOTHING},
    {NULL, "", 0, LOCAL_COMING, 1, 0, RECONCILE_DELETE},
    {NULL, "", 0, LOCAL_RUNNING, 1, 0, RECONCILE_DELETE},
    {NULL, "", 0, LOCAL_PAUSED, 1, 0, RECONCILE_DELETE},
    {NULL, "", 0, LOCAL_BUSY, 1, 0, RECONCILE_DELETE},
    {NULL, "", 0, LOCAL_STOPPING, 1, 0, RECONCILE_NOTHING},
    {NULL, "", 0, LOCAL_SUSPENDED, 1, 0, RECONCILE_FORGET},
    {NULL, "", 0, LOCAL_FAILED, 1, 0, RECONCILE_FORGET},
    {NULL, "", 0, LOCAL_DELETED, 1, 0, RECONCILE_FORGET},

    {"deleted", "deleting", 1, LOCAL_NONE, 0, 0, RECONCILE_DELETE},
    {"deleted", "deleting", 1, LOCAL_COMING, 1, 0, RECONCILE_DELETE},
    {"deleted", "deleting", 1, LOCAL_RUNNING, 1, 0, RECONCILE_DELETE},
    {"deleted", "deleting", 1, LOCAL_PAUSED, 1, SNAP, RECONCILE_DELETE},
    {"deleted", "deleting", 1, LOCAL_BUSY, 1, SNAP | KNOWN, RECONCILE_DELETE},
    {"deleted", "deleting", 1, LOCAL_STOPPING, 1, 0, RECONCILE_NOTHING},
    {"deleted", "deleting", 1, LOCAL_SUSPENDED, 1, 0, RECONCILE_DELETE},
    {"deleted", "failed", 1, LOCAL_FAILED, 1, 0, RECONCILE_DELETE},
    {"deleted", "deleting", 1, LOCAL_DELETED, 1, 0, RECONCILE_SAY_AGAIN},
    {"deleted", "deleted", 1, LOCAL_DELETED, 1, 0, RECONCILE_NOTHING},

    {"running", "creating", 1, LOCAL_NONE, 0, 0, RECONCILE_START},
    {"running", "creating", 1, LOCAL_NONE, 0, START, RECONCILE_START},
    {"running", "", 1, LOCAL_NONE, 0, 0, RECONCILE_START},
    {"running", "running", 1, LOCAL_NONE, 0, 0, RECONCILE_LOST},
    {"running", "running", 1, LOCAL_NONE, 0, START, RECONCILE_LOST},
    {"running", "running", 2, LOCAL_NONE, 0, START | ROLLBACK, RECONCILE_START},
    {"running", "paused", 2, LOCAL_NONE, 0, START | ROLLBACK, RECONCILE_START},
    {"running", "pausing", 1, LOCAL_NONE, 0, 0, RECONCILE_LOST},
    {"running", "waking", 1, LOCAL_NONE, 0, 0, RECONCILE_LOST}, /* it was resident */
    {"running", "waking", 2, LOCAL_NONE, 0, START, RECONCILE_START},
    {"running", "suspended", 2, LOCAL_NONE, 0, START, RECONCILE_START},
    {"running", "creating", 1, LOCAL_COMING, 1, 0, RECONCILE_NOTHING},
    {"running", "creating", 1, LOCAL_COMING, 0, 0, RECONCILE_NOTHING},
    {"running", "creating", 2, LOCAL_COMING, 1, 0, RECONCILE_RESTART},
    {"running", "running", 1, LOCAL_RUNNING, 1, 0, RECONCILE_NOTHING},
    {"running", "creating", 1, LOCAL_RUNNING, 1, 0, RECONCILE_SAY_AGAIN},
    {"running", "running", 2, LOCAL_RUNNING, 1, 0, RECONCILE_RESTART},
    {"running", "running", 1, LOCAL_RUNNING, 2, 0, RECONCILE_NOTHING}, /* an old list */
    {"running", "running", 1, LOCAL_RUNNING, 1, SNAP, RECONCILE_SNAPSHOT},
    {"running", "running", 1, LOCAL_RUNNING, 1, SNAP | KNOWN, RECONCILE_NOTHING},
    {"running", "running", 1, LOCAL_RUNNING, 1, SNAP | KNOWN | UNSETTLED, RECONCILE_SAY_AGAIN},
    {"running", "running", 1, LOCAL_RUNNING, 1, SNAP | KNOWN | FAILED, RECONCILE_SAY_AGAIN},
    {"running", "waking", 1, LOCAL_PAUSED, 1, 0, RECONCILE_RESUME},
    {"running", "waking", 1, LOCAL_PAUSED, 1, FAILED, RECONCILE_SAY_AGAIN},
    {"running", "running", 2, LOCAL_PAUSED, 1, START | ROLLBACK, RECONCILE_RESTART},
    {"running", "waking", 1, LOCAL_BUSY, 1, 0, RECONCILE_NOTHING},
    {"running", "running", 2, LOCAL_BUSY, 1, START, RECONCILE_RESTART},
    {"running", "waking", 2, LOCAL_SUSPENDED, 1, START, RECONCILE_START},
    {"running", "waking", 1, LOCAL_SUSPENDED, 1, START | FAILED, RECONCILE_SAY_AGAIN},
    {"running", "running", 2, LOCAL_STOPPING, 1, 0, RECONCILE_NOTHING},
    {"running", "creating", 1, LOCAL_FAILED, 1, 0, RECONCILE_SAY_AGAIN},
    {"running", "failed", 1, LOCAL_FAILED, 1, 0, RECONCILE_NOTHING},
    {"running", "creating", 2, LOCAL_FAILED, 1, 0, RECONCILE_START},
    {"running", "running", 1, LOCAL_DELETED, 1, 0, RECONCILE_NOTHING},
    {"running", "running", 2, LOCAL_DELETED, 1, 0, RECONCILE_NOTHING},
    {"running", "waking", 2, LOCAL_DELETED, 1, START, RECONCILE_START}, /* it had failed, and was tidied up */

    {"paused", "pausing", 1, LOCAL_NONE, 0, 0, RECONCILE_LOST},
    {"paused", "paused", 1, LOCAL_NONE, 0, 0, RECONCILE_LOST},
    {"paused", "pausing", 1, LOCAL_COMING, 1, 0, RECONCILE_NOTHING}, /* adopted: it will say what it is */
    {"paused", "pausing", 1, LOCAL_RUNNING, 1, 0, RECONCILE_PAUSE},
    {"paused", "pausing", 1, LOCAL_RUNNING, 1, FAILED, RECONCILE_SAY_AGAIN},
    {"paused", "pausing", 1, LOCAL_BUSY, 1, 0, RECONCILE_NOTHING},
    {"paused", "pausing", 1, LOCAL_PAUSED, 1, 0, RECONCILE_SAY_AGAIN},
    {"paused", "paused", 1, LOCAL_PAUSED, 1, 0, RECONCILE_NOTHING},
    {"paused", "paused", 1, LOCAL_PAUSED, 1, SNAP, RECONCILE_SNAPSHOT},
    {"paused", "paused", 1, LOCAL_PAUSED, 1, SNAP | KNOWN, RECONCILE_NOTHING},
    {"paused", "paused", 1, LOCAL_STOPPING, 1, 0, RECONCILE_NOTHING},
    {"paused", "paused", 1, LOCAL_SUSPENDED, 1, 0, RECONCILE_SAY_AGAIN},
    {"paused", "pausing", 1, LOCAL_FAILED, 1, 0, RECONCILE_SAY_AGAIN},
    {"paused", "failed", 1, LOCAL_FAILED, 1, 0, RECONCILE_NOTHING},
    {"paused", "paused", 1, LOCAL_DELETED, 1, 0, RECONCILE_NOTHING},

    {"suspended", "suspended", 1, LOCAL_NONE, 0, 0, RECONCILE_REST},
    {"suspended", "suspended", 1, LOCAL_NONE, 0, SNAP | START, RECONCILE_REST},
    {"suspended", "suspending", 1, LOCAL_NONE, 0, SNAP, RECONCILE_LOOK},
    {"suspended", "suspending", 1, LOCAL_NONE, 0, 0, RECONCILE_LOST},
    {"suspended", "running", 1, LOCAL_NONE, 0, SNAP, RECONCILE_LOST},
    {"suspended", "suspending", 1, LOCAL_COMING, 0, SNAP, RECONCILE_NOTHING},
    {"suspended", "suspending", 1, LOCAL_RUNNING, 1, SNAP, RECONCILE_SUSPEND},
    {"suspended", "suspending", 1, LOCAL_RUNNING, 1, 0, RECONCILE_SAY_AGAIN},
    {"suspended", "suspending", 1, LOCAL_RUNNING, 1, SNAP | KNOWN | FAILED, RECONCILE_SAY_AGAIN},
    {"suspended", "suspending", 1, LOCAL_PAUSED, 1, SNAP, RECONCILE_SUSPEND},
    {"suspended", "suspending", 1, LOCAL_PAUSED, 1, SNAP | KNOWN | FAILED, RECONCILE_SAY_AGAIN},
    {"suspended", "suspending", 1, LOCAL_BUSY, 1, SNAP | KNOWN, RECONCILE_NOTHING},
    {"suspended", "suspending", 1, LOCAL_STOPPING, 1, SNAP | KNOWN, RECONCILE_NOTHING},
    {"suspended", "suspending", 1, LOCAL_SUSPENDED, 1, SNAP | KNOWN, RECONCILE_SAY_AGAIN},
    {"suspended", "suspended", 1, LOCAL_SUSPENDED, 1, 0, RECONCILE_NOTHING},
    {"suspended", "suspended", 2, LOCAL_COMING, 1, 0, RECONCILE_PUT_BACK},
    {"suspended", "suspended", 2, LOCAL_RUNNING, 1, 0, RECONCILE_PUT_BACK},
    {"suspended", "suspended", 2, LOCAL_PAUSED, 1, 0, RECONCILE_PUT_BACK},
    {"suspended", "suspended", 2, LOCAL_BUSY, 1, 0, RECONCILE_PUT_BACK},
    {"suspended", "suspended", 1, LOCAL_SUSPENDED, 1, SNAP | START, RECONCILE_COPY},
    {"suspended", "suspended", 1, LOCAL_SUSPENDED, 1, SNAP | START | KNOWN | UNSETTLED, RECONCILE_SAY_AGAIN},
    {"suspended", "waking", 1, LOCAL_SUSPENDED, 1, 0, RECONCILE_SAY_AGAIN},
    {"suspended", "suspending", 1, LOCAL_FAILED, 1, SNAP, RECONCILE_SAY_AGAIN},
    {"suspended", "suspended", 1, LOCAL_DELETED, 1, 0, RECONCILE_NOTHING},
};

static enum desired_want want_of(const char *name) {
    static const char *const names[] = {"running", "paused", "suspended", "deleted"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(names[i], name) == 0)
            return (enum desired_want)i;
    fail_msg("%s", name);
    return WANT_DELETED;
}

static void test_every_decision(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(decisions); i++) {
        const struct decision *row = &decisions[i];
        struct desired d = {.generation = row->generation, .operation_id = "op_1"};
        const struct local local = {.state = row->local,
                                    .generation = row->local_generation,
                                    .operation_failed = row->flags & FAILED,
                                    .snapshot_known = row->flags & KNOWN,
                                    .snapshot_unsettled = row->flags & UNSETTLED};
        enum reconcile_action action;
        if (row->want)
            d.want = want_of(row->want);
        assert_true(text_copy(d.observed, sizeof(d.observed), row->observed));
        assert_true(text_copy(d.operation_kind, sizeof(d.operation_kind), row->flags & ROLLBACK ? "rollback" : "x"));
        assert_true(text_copy(d.start_snapshot, sizeof(d.start_snapshot), row->flags & START ? SNAPSHOT : ""));
        assert_true(text_copy(d.snapshot_id, sizeof(d.snapshot_id), row->flags & SNAP ? SNAPSHOT : ""));
        action = reconcile(row->want ? &d : NULL, &local);
        if (action != row->action)
            fail_msg("row %zu: %s", i, reconcile_action_name(action));
    }
}

/* Every state meets every want: a row that was forgotten would be found here. */
static void test_no_pair_is_left_out(void **state) {
    bool seen[WANT_DELETED + 2][LOCAL_DELETED + 1] = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(decisions); i++)
        seen[decisions[i].want ? want_of(decisions[i].want) : WANT_DELETED + 1][decisions[i].local] = true;
    for (size_t want = 0; want < ARRAY_SIZE(seen); want++)
        for (size_t local = 0; local < ARRAY_SIZE(seen[0]); local++)
            if (!seen[want][local])
                fail_msg("no row for want %zu, local state %zu", want, local);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_list),
        cmocka_unit_test(test_lists_that_are_refused_as_a_whole),
        cmocka_unit_test(test_what_a_lifecycle_needs),
        cmocka_unit_test(test_a_bad_row_is_marked),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_every_decision),
        cmocka_unit_test(test_no_pair_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
