/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promise: a child gets exactly the descriptors, environment and signal state it should, a failing exec is an
 * error of the start, and no background grandchild or deaf child holds anything up.
 */
#include "io/spawn.h"
#include "unit.h"
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#define SH(script)                                                                                                     \
    (const char *const[]) {                                                                                            \
        "/bin/sh", "-c", script, NULL                                                                                  \
    }

static int run(const char *const *argv, const char *input, uint64_t ms, struct buf *out, int *ret_status) {
    struct spawn_options opt = {.argv = argv};
    return spawn_run(&opt, input, input ? strlen(input) : 0, deadline_in_ms(ms), out, ret_status, &unit_error);
}

static void test_output_and_status(void **state) {
    _cleanup_buf_ struct buf out = {0};
    int status;
    (void)state;
    buf_init(&out, 100);
    assert_ok(run(SH("echo out; echo err >&2"), NULL, 10000, &out, &status));
    assert_string_equal(out.data, "out\nerr\n");
    assert_fails(run(SH("echo first; echo why >&2; exit 3"), NULL, 10000, NULL, &status), SP_E_IO);
    assert_int_equal(WEXITSTATUS(status), 3);
    assert_non_null(strstr(unit_error.text, "exited 3: why"));
    assert_fails(run(SH("kill -9 $$"), NULL, 10000, NULL, &status), SP_E_IO);
    assert_non_null(strstr(unit_error.text, "killed by SIGKILL"));
    buf_reset(&out);
    assert_ok(run(SH("head -c 300000 /dev/zero | tr '\\0' x"), NULL, 10000, &out, NULL));
    assert_int_equal(out.len, 100); /* the rest was dropped, the child not hindered */
}

static void test_input(void **state) {
    _cleanup_buf_ struct buf out = {0};
    (void)state;
    buf_init(&out, 1 << 20);
    char *big = malloc(500001);
    assert_non_null(big);
    memset(big, 'i', 500000);
    big[500000] = '\0';
    assert_ok(run(SH("cat"), big, 10000, &out, NULL));
    assert_int_equal(out.len, 500000);
    assert_ok(run(SH("exit 0"), big, 10000, NULL, NULL)); /* reads none of it: no SIGPIPE, no error */
    free(big);
    buf_reset(&out);
    assert_ok(run(SH("cat; echo end"), NULL, 10000, &out, NULL));
    assert_string_equal(out.data, "end\n");
}

static void test_deadline(void **state) {
    (void)state;
    assert_fails(run(SH("trap '' TERM; sleep 60"), NULL, 100, NULL, NULL), SP_E_TIMEOUT);
    struct deadline before = deadline_in_ms(20000);
    assert_ok(run(SH("sleep 60 & echo hi"), NULL, 60000, NULL, NULL)); /* the grandchild holds the pipe */
    assert_false(deadline_passed(before));
}

static void test_start_errors(void **state) {
    struct spawn_options opt = {.argv = (const char *const[]){"/nonexistent/x", NULL}};
    struct child child = CHILD_NONE;
    (void)state;
    assert_fails(spawn_start(&opt, &child, &unit_error), SP_E_NOT_FOUND);
    assert_string_equal(unit_error.op, "execve");
    opt.argv = (const char *const[]){"sh", NULL};
    assert_fails(spawn_start(&opt, &child, &unit_error), SP_E_INVALID);
    opt.argv = SH("true");
    opt.cwd = "/nonexistent";
    assert_fails(spawn_start(&opt, &child, &unit_error), SP_E_NOT_FOUND);
    assert_string_equal(unit_error.op, "chdir");
    assert_int_equal(child.pid, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing was left behind */
    assert_int_equal(errno, ECHILD);
}

/* Descriptors land on their numbers even when they trade places, and nothing else is open. */
static void test_descriptors(void **state) {
    _cleanup_buf_ struct buf out = {0};
    int a[2], b[2], extra;
    char text[32] = {0};
    (void)state;
    buf_init(&out, 4096);
    assert_int_equal(pipe(a), 0);
    assert_int_equal(pipe(b), 0);
    extra = open("/dev/null", O_RDONLY); /* not CLOEXEC, and yet not inherited */
    struct spawn_fd fds[] = {{a[1], b[1]}, {b[1], a[1]}, {a[1], 3}};
    char script[128];
    (void)snprintf(script, sizeof(script), "echo to-a >&%d; echo to-b >&%d; ls /proc/$$/fd | tr '\\n' ' '", b[1], a[1]);
    struct spawn_options opt = {.argv = SH(script), .fds = fds, .n_fds = 3};
    assert_ok(spawn_run(&opt, NULL, 0, deadline_in_ms(10000), &out, NULL, &unit_error));
    assert_true(read(a[0], text, sizeof(text)) == 5 && memcmp(text, "to-a\n", 5) == 0);
    assert_true(read(b[0], text, sizeof(text)) == 5 && memcmp(text, "to-b\n", 5) == 0);
    char wanted[64];
    (void)snprintf(wanted, sizeof(wanted), "0 1 2 3 %d %d ", a[1] < b[1] ? a[1] : b[1], a[1] < b[1] ? b[1] : a[1]);
    if (a[1] > 3 && b[1] > 3)
        assert_true(strstr(out.data, wanted) == out.data || strstr(out.data, "0 1 10 2 3") == out.data);
    for (int i = 0; i < 2; i++) {
        (void)close(a[i]);
        (void)close(b[i]);
    }
    (void)close(extra);
}

static void test_environment_and_directory(void **state) {
    _cleanup_buf_ struct buf out = {0};
    struct spawn_options opt = {.argv = SH("pwd; echo $A; echo $HOME"),
                                .env = (const char *const[]){"A=b c", NULL},
                                .cwd = "/"};
    (void)state;
    buf_init(&out, 4096);
    assert_ok(spawn_run(&opt, NULL, 0, deadline_in_ms(10000), &out, NULL, &unit_error));
    assert_string_equal(out.data, "/\nb c\n\n");
}

/* Blocked and ignored signals of the parent do not reach the child. */
static void test_signal_state(void **state) {
    _cleanup_buf_ struct buf out = {0};
    sigset_t set, before;
    (void)state;
    buf_init(&out, 4096);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    (void)signal(SIGPIPE, SIG_IGN);
    assert_ok(run((const char *const[]){"/bin/grep", "-E", "Sig(Blk|Ign|Cgt)", "/proc/self/status", NULL}, NULL, 10000,
                  &out, NULL));
    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    assert_non_null(strstr(out.data, "SigBlk:\t0000000000000000"));
    assert_non_null(strstr(out.data, "SigIgn:\t0000000000000000"));
}

static void test_stop_and_reap(void **state) {
    struct spawn_options opt = {.argv = SH("trap 'exit 7' TERM; echo; while :; do sleep 0.05; done"),
                                .stdout_fd = SPAWN_NULL,
                                .new_session = true};
    struct child child = CHILD_NONE;
    int status = 0;
    (void)state;
    assert_ok(spawn_start(&opt, &child, &unit_error));
    assert_int_equal(spawn_reap(&child, &status, &unit_error), 0);
    assert_fails(spawn_wait(&child, deadline_in_ms(50), &status, &unit_error), SP_E_TIMEOUT);
    assert_int_equal(getsid(child.pid), child.pid);
    assert_ok(spawn_stop(&child, 10000, &status, &unit_error));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_true(child.pid == 0 && child.pidfd == -1);
    opt.argv = SH("trap '' TERM; while :; do sleep 0.05; done");
    assert_ok(spawn_start(&opt, &child, &unit_error));
    assert_fails(spawn_wait(&child, deadline_in_ms(100), &status, &unit_error), SP_E_TIMEOUT);
    assert_ok(spawn_stop(&child, 50, &status, &unit_error));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    pid_t pid;
    {
        _cleanup_child_ struct child scoped = CHILD_NONE;
        assert_ok(spawn_start(&opt, &scoped, &unit_error));
        pid = scoped.pid;
    }
    assert_int_equal(kill(pid, 0), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_output_and_status), cmocka_unit_test(test_input),
        cmocka_unit_test(test_deadline),          cmocka_unit_test(test_start_errors),
        cmocka_unit_test(test_descriptors),       cmocka_unit_test(test_environment_and_directory),
        cmocka_unit_test(test_signal_state),      cmocka_unit_test(test_stop_and_reap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
