/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: every job that was taken ends in exactly one call of `done`: with its result, its error, or that it died. */
#include "base/cleanup.h"
#include "base/log.h"
#include "broker/job.h"
#include "broker/reactor.h"
#include "unit.h"
#include <signal.h>
#include <sys/wait.h>

struct probe {
    int how, value;
    unsigned done;
    int64_t result;
    struct sp_error error;
};

enum { WORK_ANSWERS, WORK_FAILS, WORK_DIES, WORK_EXITS, WORK_HANGS, WORK_SAYS_TOO_MUCH };

static int work(void *arg, json_t **ret_result, struct sp_error *err) {
    struct probe *p = arg;
    switch (p->how) {
    case WORK_ANSWERS:
        p->value = -1; /* the child's copy */
        *ret_result = json_pack("{s:i}", "value", 42);
        return 0;
    case WORK_FAILS:
        return sp_error_field(err, SP_E_CONFLICT, "field", "text with \"quotes\"");
    case WORK_DIES:
        (void)kill(getpid(), SIGKILL);
        return 0;
    case WORK_EXITS:
        _exit(0);
    case WORK_SAYS_TOO_MUCH:
        *ret_result = json_pack("{s:o}", "x", json_stringn("", 0));
        for (int i = 0; i < 10000; i++) {
            char key[16];
            (void)text_printf(key, sizeof(key), "%d", i);
            (void)json_object_set_new(*ret_result, key, json_integer(i));
        }
        return 0;
    default:
        for (;;)
            (void)pause();
    }
}

static void done(void *arg, const json_t *result, const struct sp_error *error) {
    struct probe *p = arg;
    p->done++;
    p->result = json_integer_value(json_object_get(result, "value"));
    if (error)
        p->error = *error;
}

static int reactor;
static struct jobs *jobs;

static int set_up(void **state) {
    (void)state;
    log_set_level(LOG_L_ERROR);
    reactor = reactor_open(NULL);
    jobs = jobs_new(reactor);
    return reactor < 0 ? -1 : 0;
}

static int tear_down(void **state) {
    (void)state;
    jobs = jobs_free(jobs);
    (void)close(reactor);
    return 0;
}

static int add(struct probe *p, uint64_t timeout_ms) {
    const struct job_spec spec = {.name = "probe", .timeout_ms = timeout_ms, .arg = p, .work = work, .done = done};
    return jobs_add(jobs, &spec, &unit_error);
}

static void run_until_idle(void) {
    struct deadline end = deadline_in_ms(20000);
    while (jobs_running(jobs) && !deadline_passed(end)) {
        uint64_t ms = jobs_check_deadlines(jobs);
        assert_ok(reactor_turn(reactor, deadline_in_ms(ms < 20 ? ms : 20), &unit_error));
    }
    assert_int_equal(jobs_running(jobs), 0);
}

static void test_result(void **state) {
    struct probe p = {.how = WORK_ANSWERS, .value = 1};
    (void)state;
    assert_ok(add(&p, 5000));
    run_until_idle();
    assert_int_equal(p.done, 1);
    assert_int_equal(p.result, 42);
    assert_int_equal(p.error.code, SP_OK);
    assert_int_equal(p.value, 1); /* what the job changes stays with it */
}

static void test_error(void **state) {
    struct probe p = {.how = WORK_FAILS};
    (void)state;
    assert_ok(add(&p, 5000));
    run_until_idle();
    assert_int_equal(p.done, 1);
    assert_int_equal(p.error.code, SP_E_CONFLICT);
    assert_string_equal(p.error.field, "field");
    assert_string_equal(p.error.text, "text with \"quotes\"");
}

static void test_death(void **state) {
    static const int ways[] = {WORK_DIES, WORK_EXITS, WORK_SAYS_TOO_MUCH};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        struct probe p = {.how = ways[i]};
        assert_ok(add(&p, 5000));
        run_until_idle();
        assert_int_equal(p.done, 1);
        assert_int_equal(p.error.code, SP_E_INTERNAL);
    }
}

static void test_timeout(void **state) {
    struct probe p = {.how = WORK_HANGS};
    (void)state;
    assert_ok(add(&p, 50));
    run_until_idle();
    assert_int_equal(p.done, 1);
    assert_int_equal(p.error.code, SP_E_TIMEOUT);
}

/* Reaped by someone else, as the broker's SIGCHLD handler does. */
static void test_reaped_before_it_is_finished(void **state) {
    struct probe p = {.how = WORK_ANSWERS};
    int status;
    (void)state;
    assert_ok(add(&p, 5000));
    pid_t pid = waitpid(-1, &status, 0);
    assert_true(pid > 0);
    assert_true(jobs_note_exit(jobs, pid, status));
    assert_false(jobs_note_exit(jobs, pid, status));
    assert_false(jobs_note_exit(jobs, 1, 0));
    run_until_idle();
    assert_int_equal(p.done, 1);
    assert_int_equal(p.result, 42);
}

static void test_more_than_run_at_once(void **state) {
    static struct probe probes[40];
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(probes); i++) {
        probes[i] = (struct probe){.how = i % 2 ? WORK_FAILS : WORK_ANSWERS};
        assert_ok(add(&probes[i], 20000));
    }
    run_until_idle();
    for (size_t i = 0; i < ARRAY_SIZE(probes); i++)
        assert_int_equal(probes[i].done, 1);
}

static void test_full_queue(void **state) {
    static struct probe probes[1100];
    size_t n = 0;
    (void)state;
    while (n < ARRAY_SIZE(probes)) {
        probes[n] = (struct probe){.how = WORK_HANGS};
        if (add(&probes[n], 60000) < 0)
            break;
        n++;
    }
    assert_true(n > 1000 && n < ARRAY_SIZE(probes));
    assert_int_equal(unit_error.code, SP_E_UNAVAILABLE);
    jobs = jobs_free(jobs); /* kills what runs, forgets what waits */
    for (size_t i = 0; i < n; i++)
        assert_int_equal(probes[i].done, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    jobs = jobs_new(reactor);
}

/* One that runs is ended soon, one that waits is not begun, others are left alone, and a deadline is never put off. */
static void test_hurry(void **state) {
    static struct probe hangs[8];
    struct probe waits = {.how = WORK_ANSWERS}, other = {.how = WORK_ANSWERS}, last = {.how = WORK_HANGS};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(hangs); i++) {
        hangs[i] = (struct probe){.how = WORK_HANGS};
        assert_ok(add(&hangs[i], 60000));
    }
    assert_ok(add(&other, 60000));
    assert_ok(add(&waits, 60000));
    jobs_hurry(jobs, &waits, 1000);
    assert_int_equal(waits.done, 1);
    assert_int_equal(waits.error.code, SP_E_CONFLICT);
    assert_ok(add(&last, 100)); /* the queue's end is in order */
    jobs_hurry(jobs, &other, 1000);
    assert_int_equal(other.error.code, SP_E_CONFLICT);
    for (size_t i = 0; i < ARRAY_SIZE(hangs); i++) {
        jobs_hurry(jobs, &hangs[i], 20);
        jobs_hurry(jobs, &hangs[i], 60000);
    }
    run_until_idle();
    for (size_t i = 0; i < ARRAY_SIZE(hangs); i++)
        assert_true(hangs[i].done == 1 && hangs[i].error.code == SP_E_TIMEOUT);
    assert_true(waits.done == 1 && other.done == 1 && last.done == 1);
    jobs_hurry(jobs, &last, 0); /* nothing of that kind */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_result),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_hurry),
        cmocka_unit_test(test_reaped_before_it_is_finished),
        cmocka_unit_test(test_more_than_run_at_once),
        cmocka_unit_test(test_full_queue),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
