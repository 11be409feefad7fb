/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: a pid is only ever taken for a process together with its start time; the dead and the replaced are gone. */
#include "base/cleanup.h"
#include "host/process.h"
#include "unit.h"
#include <signal.h>
#include <sys/wait.h>

static pid_t sleeper(void) {
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            (void)pause();
    return pid;
}

static void test_self(void **state) {
    struct process_ref a, b;
    (void)state;
    assert_ok(process_ref_get(getpid(), &a, &unit_error));
    assert_ok(process_ref_get(getpid(), &b, &unit_error));
    assert_int_equal(a.pid, getpid());
    assert_true(a.start_time > 0 && a.start_time == b.start_time);
}

static void test_name_with_parentheses(void **state) {
    struct process_ref ref, again;
    char name[16] = ") R 1 (", old[16];
    (void)state;
    assert_ok(process_ref_get(getpid(), &ref, &unit_error));
    FILE *f = fopen("/proc/self/comm", "r+e");
    assert_non_null(f);
    assert_non_null(fgets(old, sizeof(old), f));
    rewind(f);
    assert_true(fputs(name, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_ok(process_ref_get(getpid(), &again, &unit_error));
    assert_int_equal(again.start_time, ref.start_time);
}

static void test_open_kill_wait(void **state) {
    struct process_ref ref;
    _cleanup_close_ int pidfd = -1;
    pid_t pid = sleeper();
    (void)state;
    assert_ok(process_ref_get(pid, &ref, &unit_error));
    assert_ok(process_open(&ref, &pidfd, &unit_error));
    assert_false(process_is_dead(pidfd));
    assert_fails(process_wait_dead(pidfd, deadline_in_ms(20), &unit_error), SP_E_TIMEOUT);
    assert_ok(process_kill(pidfd, &unit_error));
    assert_ok(process_wait_dead(pidfd, deadline_in_ms(5000), &unit_error));
    assert_true(process_is_dead(pidfd)); /* a zombie: nobody has waited for it yet */
    int other = -1;
    assert_fails(process_open(&ref, &other, &unit_error), SP_E_NOT_FOUND);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_fails(process_open(&ref, &other, &unit_error), SP_E_NOT_FOUND);
    assert_ok(process_kill(pidfd, &unit_error)); /* dead already: fine */
    assert_int_equal(other, -1);
}

static void test_another_start_time_is_another_process(void **state) {
    struct process_ref ref;
    int pidfd = -1;
    pid_t pid = sleeper();
    (void)state;
    assert_ok(process_ref_get(pid, &ref, &unit_error));
    ref.start_time++;
    assert_fails(process_open(&ref, &pidfd, &unit_error), SP_E_NOT_FOUND);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

static void test_nonsense(void **state) {
    struct process_ref ref;
    int pidfd = -1;
    (void)state;
    assert_fails(process_ref_get(0, &ref, &unit_error), SP_E_NOT_FOUND);
    assert_fails(process_ref_get(-1, &ref, &unit_error), SP_E_NOT_FOUND);
    assert_fails(process_open(&(struct process_ref){0}, &pidfd, &unit_error), SP_E_NOT_FOUND);
}

static void test_boot_id(void **state) {
    char id[PROCESS_BOOT_ID_SIZE];
    (void)state;
    assert_ok(process_boot_id(id, &unit_error));
    assert_int_equal(strlen(id), PROCESS_BOOT_ID_SIZE - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self),           cmocka_unit_test(test_name_with_parentheses),
        cmocka_unit_test(test_open_kill_wait), cmocka_unit_test(test_another_start_time_is_another_process),
        cmocka_unit_test(test_nonsense),       cmocka_unit_test(test_boot_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
