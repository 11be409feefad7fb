/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: placement, one pass of the reconciler, the meaning of reports; each rule, and properties over all inputs. */
#include "model/plan.h"
#include "model/transitions.h"
#include "unit.h"

#define NOW 1000000

static struct plan_node node(const char *id, uint64_t memory, uint64_t used) {
    return (struct plan_node){.id = id,
                              .is_live = true,
                              .vcpus = 8,
                              .memory_mib = memory,
                              .disk_mib = 1000,
                              .max_sandboxes = 100,
                              .used_memory_mib = used};
}

static void test_placement(void **state) {
    struct plan_node nodes[] = {node("a", 1000, 500), node("b", 2000, 500), node("c", 2000, 500)};
    (void)state;
    assert_int_equal(plan_choose_node(nodes, 0, 1, 1), -1);
    assert_int_equal(plan_choose_node(nodes, 3, 1, 512), 1); /* most free; the id decides between equals */
    nodes[1].used_vcpus = 3;
    assert_int_equal(plan_choose_node(nodes, 3, 1, 512), 2); /* fewer vCPUs in use */
    nodes[2].is_live = false;
    assert_int_equal(plan_choose_node(nodes, 3, 1, 512), 1);
    nodes[1].disk_mib = 0;
    assert_int_equal(plan_choose_node(nodes, 3, 1, 512), -1); /* a has 500 left */
    assert_int_equal(plan_choose_node(nodes, 3, 1, 500), 0);
    assert_int_equal(plan_choose_node(nodes, 3, 9, 500), -1); /* more vCPUs than it has */
    assert_int_equal(plan_choose_node(nodes, 3, 8, 500), 0);
    nodes[0].used_sandboxes = 100;
    assert_int_equal(plan_choose_node(nodes, 3, 1, 500), -1);
    nodes[0].used_sandboxes = 0;
    nodes[0].used_memory_mib = 5000; /* over: shrunk after the fact */
    assert_int_equal(plan_choose_node(nodes, 1, 1, 1), -1);
}

static struct plan_sandbox creating(int64_t deadline) {
    return (struct plan_sandbox){.state = SANDBOX_CREATING,
                                 .vcpus = 1,
                                 .memory_mib = 400,
                                 .has_operation = true,
                                 .operation = OPERATION_CREATE,
                                 .deadline_ms = deadline};
}

static void test_pass_assigns_within_capacity(void **state) {
    struct plan_sandbox s[] = {creating(NOW + 1), creating(NOW + 1), creating(NOW + 1), creating(NOW + 1)};
    struct plan_node nodes[] = {node("a", 1000, 0), node("b", 500, 0)};
    struct plan_action actions[4];
    (void)state;
    plan(s, 4, nodes, 2, NOW, actions);
    assert_int_equal(actions[0].verb, PLAN_ASSIGN);
    assert_int_equal(actions[0].node, 0);
    assert_int_equal(actions[1].verb, PLAN_ASSIGN);
    assert_int_equal(actions[2].verb, PLAN_ASSIGN);
    assert_int_equal(actions[3].verb, PLAN_NOTHING); /* it waits */
    assert_int_equal(nodes[0].used_memory_mib, 800);
    assert_int_equal(nodes[1].used_memory_mib, 400);
}

static struct plan_action one(struct plan_sandbox s) {
    struct plan_action action;
    struct plan_node nodes[] = {node("a", 100000, 0)};
    plan(&s, 1, nodes, 1, NOW, &action);
    return action;
}

static void test_pass_rules(void **state) {
    struct plan_sandbox s = creating(NOW);
    (void)state;
    assert_int_equal(one(s).verb, PLAN_FAIL); /* the deadline is now */
    assert_int_equal(one(s).failure, FAILURE_NO_CAPACITY);
    s.has_node = true;
    assert_int_equal(one(s).failure, FAILURE_DEADLINE_EXCEEDED);
    s.state = SANDBOX_RUNNING; /* but never ready */
    assert_int_equal(one(s).failure, FAILURE_DEADLINE_EXCEEDED);
    s.has_operation = false;
    assert_int_equal(one(s).verb, PLAN_NOTHING);
    s = creating(0); /* no deadline */
    s.has_node = true;
    assert_int_equal(one(s).verb, PLAN_NOTHING);
    s = (struct plan_sandbox){.state = SANDBOX_DELETING, .has_operation = true, .operation = OPERATION_DELETE};
    assert_int_equal(one(s).verb, PLAN_FINISH_DELETE);
    s.has_node = true;
    assert_int_equal(one(s).verb, PLAN_NOTHING);
    s.is_released = true;
    assert_int_equal(one(s).verb, PLAN_FINISH_DELETE);
    s.state = SANDBOX_FAILED;
    assert_int_equal(one(s).verb, PLAN_NOTHING);
    s.state = SANDBOX_DELETED;
    assert_int_equal(one(s).verb, PLAN_NOTHING);
}

static struct plan_sandbox on_node(enum sandbox_state state, bool has_operation, enum operation_kind kind) {
    return (struct plan_sandbox){.state = state, .has_node = true, .has_operation = has_operation, .operation = kind};
}

static void test_reports_of_a_create(void **state) {
    struct plan_sandbox s = on_node(SANDBOX_CREATING, true, OPERATION_CREATE);
    struct observation o = {.state = OBSERVED_CREATING};
    (void)state;
    struct observe_effect e = plan_observe(&s, false, OPERATION_PENDING, &o);
    assert_true(e.changes && e.outcome == OUTCOME_STARTED && e.state == SANDBOX_CREATING);
    e = plan_observe(&s, false, OPERATION_RUNNING, &o);
    assert_false(e.changes);
    o.state = OBSERVED_RUNNING;
    e = plan_observe(&s, false, OPERATION_PENDING, &o);
    assert_true(e.state == SANDBOX_RUNNING && !e.ready && e.outcome == OUTCOME_STARTED);
    o.ready = true;
    e = plan_observe(&s, false, OPERATION_RUNNING, &o);
    assert_true(e.state == SANDBOX_RUNNING && e.ready && e.outcome == OUTCOME_SUCCEEDED && !e.release);
    o = (struct observation){.state = OBSERVED_FAILED, .failure = FAILURE_VMM_FAILED};
    e = plan_observe(&s, false, OPERATION_RUNNING, &o);
    assert_true(e.state == SANDBOX_FAILED && e.failure == FAILURE_VMM_FAILED && e.outcome == OUTCOME_FAILED &&
                !e.release);
}

static void test_reports_of_an_end(void **state) {
    struct plan_sandbox s = on_node(SANDBOX_DELETING, true, OPERATION_DELETE);
    struct observation gone = {.state = OBSERVED_DELETED}, running = {.state = OBSERVED_RUNNING, .ready = true};
    (void)state;
    assert_false(plan_observe(&s, false, OPERATION_RUNNING, &running).changes); /* revives nothing */
    struct observe_effect e = plan_observe(&s, false, OPERATION_RUNNING, &gone);
    assert_true(e.state == SANDBOX_DELETED && e.release && e.outcome == OUTCOME_SUCCEEDED);
    s = on_node(SANDBOX_FAILED, false, OPERATION_CREATE);
    assert_false(plan_observe(&s, false, OPERATION_PENDING, &running).changes);
    e = plan_observe(&s, false, OPERATION_PENDING, &gone);
    assert_true(e.state == SANDBOX_FAILED && e.release && e.outcome == OUTCOME_NONE);
    s.is_released = true;
    assert_false(plan_observe(&s, false, OPERATION_PENDING, &gone).changes);
    s = on_node(SANDBOX_RUNNING, false, OPERATION_CREATE);
    e = plan_observe(&s, true, OPERATION_PENDING, &gone); /* nobody asked for it */
    assert_true(e.state == SANDBOX_FAILED && e.failure == FAILURE_VMM_KILLED && e.release && !e.ready);
}

/* ---- verbs ---- */

static struct plan_sandbox moving(enum operation_kind kind, enum sandbox_state from) {
    struct plan_sandbox s = on_node(verb_moving_state(kind, from), true, kind);
    s.from = from;
    return s;
}

static struct observe_effect said(struct plan_sandbox s, struct observation o) {
    return plan_observe(&s, s.state == SANDBOX_RUNNING, OPERATION_PENDING, &o);
}

static void test_reports_of_verbs(void **state) {
    struct observation running = {.state = OBSERVED_RUNNING, .ready = true}, paused = {.state = OBSERVED_PAUSED};
    struct observation down = {.state = OBSERVED_SUSPENDED, .has_snapshot = true, .snapshot = SNAPSHOT_READY};
    struct observe_effect e = said(moving(OPERATION_PAUSE, SANDBOX_RUNNING), paused);
    (void)state;
    assert_true(e.state == SANDBOX_PAUSED && e.outcome == OUTCOME_SUCCEEDED && !e.ready);
    assert_false(said(moving(OPERATION_PAUSE, SANDBOX_RUNNING), running).changes); /* it has not heard yet */
    e = said(moving(OPERATION_WAKE, SANDBOX_PAUSED), running);
    assert_true(e.state == SANDBOX_RUNNING && e.ready && e.outcome == OUTCOME_SUCCEEDED);
    assert_false(said(moving(OPERATION_WAKE, SANDBOX_PAUSED), paused).changes);
    e = said(moving(OPERATION_SUSPEND, SANDBOX_PAUSED), down);
    assert_true(e.state == SANDBOX_SUSPENDED && e.outcome == OUTCOME_SUCCEEDED);
    down.snapshot = SNAPSHOT_CREATING;
    assert_false(said(moving(OPERATION_SUSPEND, SANDBOX_PAUSED), down).changes);
    down = (struct observation){.state = OBSERVED_PAUSED, .has_snapshot = true, .snapshot = SNAPSHOT_READY};
    e = said(moving(OPERATION_SNAPSHOT, SANDBOX_PAUSED), down);
    assert_true(e.state == SANDBOX_PAUSED && e.outcome == OUTCOME_SUCCEEDED);
    assert_int_equal(said(moving(OPERATION_FORK, SANDBOX_PAUSED), down).outcome,
                     OUTCOME_NONE); /* its children decide */
}

static void test_failures_of_verbs(void **state) {
    static const struct {
        enum operation_kind kind;
        enum sandbox_state from, kept, lost;
    } rows[] = {
        {OPERATION_PAUSE, SANDBOX_RUNNING, SANDBOX_RUNNING, SANDBOX_FAILED},
        {OPERATION_SUSPEND, SANDBOX_RUNNING, SANDBOX_RUNNING, SANDBOX_FAILED},
        {OPERATION_SUSPEND, SANDBOX_PAUSED, SANDBOX_PAUSED, SANDBOX_FAILED},
        {OPERATION_WAKE, SANDBOX_PAUSED, SANDBOX_PAUSED, SANDBOX_FAILED},
        {OPERATION_WAKE, SANDBOX_SUSPENDED, SANDBOX_SUSPENDED, SANDBOX_SUSPENDED},
        {OPERATION_WAKE, SANDBOX_FAILED, SANDBOX_FAILED, SANDBOX_FAILED},
        {OPERATION_SNAPSHOT, SANDBOX_RUNNING, SANDBOX_RUNNING, SANDBOX_FAILED},
        {OPERATION_FORK, SANDBOX_SUSPENDED, SANDBOX_SUSPENDED, SANDBOX_SUSPENDED},
        {OPERATION_ROLLBACK, SANDBOX_RUNNING, SANDBOX_FAILED, SANDBOX_FAILED},
        {OPERATION_ROLLBACK, SANDBOX_SUSPENDED, SANDBOX_SUSPENDED, SANDBOX_SUSPENDED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct plan_sandbox s = moving(rows[i].kind, rows[i].from);
        assert_int_equal(plan_after_failure(&s, false), rows[i].kept);
        assert_int_equal(plan_after_failure(&s, true), rows[i].lost);
        s.deadline_ms = NOW;
        struct plan_action a = one(s);
        assert_int_equal(a.verb,
                         rows[i].kept == SANDBOX_FAILED && s.state != SANDBOX_FAILED ? PLAN_FAIL : PLAN_GIVE_UP);
    }
    struct observation o = {.state = OBSERVED_PAUSED, .operation_failed = true, .operation_failure = FAILURE_IO};
    struct observe_effect e = said(moving(OPERATION_SUSPEND, SANDBOX_RUNNING), o);
    assert_true(e.state == SANDBOX_PAUSED && e.outcome == OUTCOME_FAILED && e.failure == FAILURE_IO);
    o = (struct observation){.state = OBSERVED_FAILED, .failure = FAILURE_SNAPSHOT_MISSING};
    e = said(moving(OPERATION_WAKE, SANDBOX_SUSPENDED), o);
    assert_true(e.state == SANDBOX_FAILED && e.outcome == OUTCOME_FAILED);
}

static void test_forks(void **state) {
    struct plan_sandbox s = moving(OPERATION_FORK, SANDBOX_RUNNING), child = creating(NOW + 1);
    (void)state;
    s.children_open = 1;
    assert_int_equal(one(s).verb, PLAN_NOTHING);
    s.children_open = 0;
    assert_int_equal(one(s).verb, PLAN_NOTHING); /* not settled */
    s.is_settled = true;
    assert_int_equal(one(s).verb, PLAN_FINISH_FORK);
    assert_int_equal(one(s).failure, FAILURE_NONE);
    s.children_failed = 1;
    assert_int_equal(one(s).failure, FAILURE_CHILDREN_FAILED);
    child.has_node = child.start_is_gone = true;
    assert_int_equal(one(child).verb, PLAN_FAIL);
    assert_int_equal(one(child).failure, FAILURE_PARENT_GONE);
}

/* Whatever is recorded and whatever is reported: the move is in the table, only running is ready, repeating changes
 * nothing, and nothing that was to go comes back. */
static void check_report(const struct plan_sandbox *s, bool ready, enum operation_state os,
                         const struct observation *o) {
    struct observe_effect e = plan_observe(s, ready, os, o);
    assert_true(sandbox_move_is_allowed(s->state, e.state));
    if (e.ready && !ready)
        assert_int_equal(e.state, SANDBOX_RUNNING);
    if (s->state == SANDBOX_DELETING || s->state == SANDBOX_DELETED || s->state == SANDBOX_FAILED)
        assert_true(e.state == s->state || e.state == SANDBOX_DELETED);
    if (s->state == SANDBOX_SUSPENDED)
        assert_int_equal(e.state, SANDBOX_SUSPENDED);
    if (e.outcome != OUTCOME_NONE)
        assert_true(s->has_operation || e.outcome == OUTCOME_SUCCEEDED);
    if (!e.changes)
        return;
    struct plan_sandbox after = *s;
    after.state = e.state;
    after.is_released = s->is_released || e.release;
    enum operation_state after_os = e.outcome == OUTCOME_STARTED ? OPERATION_RUNNING : os;
    if (e.outcome == OUTCOME_SUCCEEDED || e.outcome == OUTCOME_FAILED)
        after.has_operation = false;
    struct observe_effect again = plan_observe(&after, e.ready, after_os, o);
    if (after.has_operation || e.outcome == OUTCOME_NONE || e.state != SANDBOX_RUNNING)
        assert_false(again.changes);
}

static void test_every_report_in_every_state(void **state) {
    (void)state;
    for (unsigned st = 0; st < SANDBOX_STATE_COUNT_; st++)
        for (unsigned bits = 0; bits < 32; bits++)
            for (unsigned ob = 0; ob < OBSERVED_COUNT_; ob++)
                for (unsigned os = OPERATION_PENDING; os <= OPERATION_RUNNING; os++) {
                    struct plan_sandbox s =
                        on_node((enum sandbox_state)st, bits & 1, bits & 2 ? OPERATION_DELETE : OPERATION_CREATE);
                    bool ready = (bits & 4) && st == SANDBOX_RUNNING;
                    struct observation o = {.state = (enum observed_state)ob,
                                            .ready = bits & 8,
                                            .failure = FAILURE_VMM_KILLED};
                    s.is_released = bits & 16;
                    check_report(&s, ready, (enum operation_state)os, &o);
                }
}

/* Every verb in flight, in every state it can be found in, with every report. */
static void test_every_report_of_every_verb(void **state) {
    static const enum sandbox_state settled[] = {SANDBOX_RUNNING, SANDBOX_PAUSED, SANDBOX_SUSPENDED, SANDBOX_FAILED};
    (void)state;
    for (unsigned k = OPERATION_PAUSE; k < OPERATION_KIND_COUNT_; k++)
        for (unsigned bits = 0; bits < 64; bits++)
            for (unsigned ob = 0; ob < OBSERVED_COUNT_; ob++)
                for (unsigned x = 0; x < SNAPSHOT_STATE_COUNT_; x++) {
                    enum sandbox_state from = settled[bits & 3];
                    if (verb_rule((enum operation_kind)k, from) < VERB_GO)
                        continue;
                    struct plan_sandbox s = moving((enum operation_kind)k, from);
                    struct observation o = {.state = (enum observed_state)ob,
                                            .ready = bits & 8,
                                            .failure = FAILURE_VMM_KILLED,
                                            .operation_failed = bits & 16,
                                            .operation_failure = FAILURE_IO,
                                            .has_snapshot = bits & 32,
                                            .snapshot = (enum snapshot_state)x,
                                            .snapshot_failure = FAILURE_IO};
                    check_report(&s, (bits & 4) && s.state == SANDBOX_RUNNING, OPERATION_PENDING, &o);
                    struct observe_effect e = plan_observe(&s, false, OPERATION_PENDING, &o);
                    if (e.outcome == OUTCOME_SUCCEEDED || e.outcome == OUTCOME_FAILED)
                        assert_false(sandbox_state_row(e.state)->has_operation); /* none is left on its way */
                }
}

static void test_observed_names(void **state) {
    enum observed_state o;
    (void)state;
    assert_true(observed_state_parse("deleted", &o));
    assert_int_equal(o, OBSERVED_DELETED);
    assert_true(observed_state_parse("paused", &o));
    assert_false(observed_state_parse("pausing", &o));
    assert_false(observed_state_parse("", &o));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_placement),
        cmocka_unit_test(test_pass_assigns_within_capacity),
        cmocka_unit_test(test_pass_rules),
        cmocka_unit_test(test_reports_of_a_create),
        cmocka_unit_test(test_reports_of_an_end),
        cmocka_unit_test(test_every_report_in_every_state),
        cmocka_unit_test(test_observed_names),
        cmocka_unit_test(test_reports_of_verbs),
        cmocka_unit_test(test_failures_of_verbs),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_every_report_of_every_verb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
