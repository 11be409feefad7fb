/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting, waiting for and ending child programs. Between fork and exec the child makes only async-signal-safe calls
 * (the parent may have threads) and reports what fails through a CLOEXEC pipe. Running one to its end with its output
 * gathered is in spawn_run.c.
 */
#include "io/spawn.h"
#include "base/cleanup.h"
#include "io/unix_socket.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define SPAWN_HANDLES_MAX (SPAWN_FDS_MAX + 4) /* stdin, stdout, stderr, the report pipe */

/* What the child could not do; order as in step_names. */
enum step { STEP_SESSION, STEP_DEATH_SIGNAL, STEP_CWD, STEP_FDS, STEP_IDS, STEP_EXEC };
static const char *const step_names[] = {"setsid", "prctl", "chdir", "dup2", "setuid", "execve"};

struct report {
    int step, err_no;
};

struct plan { /* made before fork */
    const struct spawn_options *opt;
    const char *program;
    char *const *argv, *const *env;
    struct spawn_fd fds[SPAWN_HANDLES_MAX]; /* the first three are stdin, stdout, stderr; source -1: /dev/null */
    size_t n_fds;
    int report_fd;
    pid_t parent;
};

static void reset_signals(void) {
    sigset_t none;
    for (int i = 1; i < NSIG; i++)
        (void)signal(i, SIG_DFL); /* fails for SIGKILL and SIGSTOP */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Sources go out of the way of every target first, then everything becomes CLOEXEC but the targets. */
static bool arrange_fds(struct plan *plan) {
    int above = 3;
    for (size_t i = 0; i < plan->n_fds; i++)
        if (plan->fds[i].target >= above)
            above = plan->fds[i].target + 1;
    int report = fcntl(plan->report_fd, F_DUPFD_CLOEXEC, above);
    if (report < 0)
        return false;
    plan->report_fd = report;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < plan->n_fds; i++) {
        int source = plan->fds[i].source >= 0 ? plan->fds[i].source : null;
        plan->fds[i].source = fcntl(source, F_DUPFD_CLOEXEC, above);
        if (plan->fds[i].source < 0)
            return false;
    }
    if (close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
        return false;
    for (size_t i = 0; i < plan->n_fds; i++)
        if (dup2(plan->fds[i].source, plan->fds[i].target) < 0)
            return false;
    return true;
}

static bool set_ids(const struct spawn_options *opt) {
    return setgroups(0, NULL) == 0 && setresgid(opt->gid, opt->gid, opt->gid) == 0 &&
           setresuid(opt->uid, opt->uid, opt->uid) == 0;
}

static enum step prepare_child(struct plan *plan) {
    const struct spawn_options *opt = plan->opt;
    reset_signals();
    if (!arrange_fds(plan))
        return STEP_FDS;
    if (opt->new_session && setsid() < 0)
        return STEP_SESSION;
    if (opt->cwd && chdir(opt->cwd) < 0)
        return STEP_CWD;
    if (opt->set_ids && !set_ids(opt))
        return STEP_IDS;
    /* After the ids changed: that clears it. */
    if (opt->parent_death_signal && prctl(PR_SET_PDEATHSIG, opt->parent_death_signal) < 0)
        return STEP_DEATH_SIGNAL;
    if (opt->parent_death_signal && getppid() != plan->parent)
        (void)raise(opt->parent_death_signal);
    (void)execve(plan->program, plan->argv, plan->env);
    return STEP_EXEC;
}

static _Noreturn void run_child(struct plan *plan) {
    struct report report;
    report.step = (int)prepare_child(plan);
    report.err_no = errno;
    (void)!write(plan->report_fd, &report, sizeof(report));
    _exit(127);
}

static int check(const struct spawn_options *opt, struct sp_error *err) {
    const char *program = opt->program ? opt->program : opt->argv[0];
    if (!program || !strchr(program, '/'))
        return sp_error_set(err, SP_E_INVALID, "program must be a path: %.200s", program ? program : "(none)");
    if (opt->n_fds > SPAWN_FDS_MAX)
        return sp_error_set(err, SP_E_INVALID, "more than %d descriptors for a child", SPAWN_FDS_MAX);
    for (size_t i = 0; i < opt->n_fds; i++)
        if (opt->fds[i].target < 3 || opt->fds[i].target > 1000 || opt->fds[i].source < 0)
            return sp_error_set(err, SP_E_INVALID, "bad descriptor number for a child");
    return 0;
}

static void make_plan(struct plan *plan, const struct spawn_options *opt) {
    plan->opt = opt;
    plan->program = opt->program ? opt->program : opt->argv[0];
    /* execve takes pointers to non-const and changes nothing. */
    plan->argv = (char *const *)(uintptr_t)opt->argv;
    plan->env = opt->env ? (char *const *)(uintptr_t)opt->env : environ;
    plan->fds[0] = (struct spawn_fd){opt->stdin_fd > 2 ? opt->stdin_fd : -1, 0};
    plan->fds[1] = (struct spawn_fd){opt->stdout_fd > 2 ? opt->stdout_fd : opt->stdout_fd == SPAWN_NULL ? -1 : 1, 1};
    plan->fds[2] = (struct spawn_fd){opt->stderr_fd > 2 ? opt->stderr_fd : opt->stderr_fd == SPAWN_NULL ? -1 : 2, 2};
    /* The caller's own may be closed. */
    for (int i = 1; i <= 2; i++)
        if (plan->fds[i].source == i && fcntl(i, F_GETFD) < 0)
            plan->fds[i].source = -1;
    plan->n_fds = 3;
    for (size_t i = 0; i < opt->n_fds; i++)
        plan->fds[plan->n_fds++] = opt->fds[i];
    plan->parent = getpid();
}

/* Reads what the child could not do, and reaps it then. 0: it runs the program. */
static int read_report(int fd, pid_t pid, const struct plan *plan, struct sp_error *err) {
    struct report report = {0};
    ssize_t n;
    do
        n = read(fd, &report, sizeof(report));
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return 0;
    (void)waitpid(pid, NULL, 0);
    if (n != sizeof(report) || report.step < 0 || report.step > STEP_EXEC)
        return sp_error_set(err, SP_E_INTERNAL, "cannot start %s", plan->program);
    return sp_error_errno(err, report.err_no, step_names[report.step], "cannot start %s", plan->program);
}

int spawn_start(const struct spawn_options *opt, struct child *ret, struct sp_error *err) {
    struct plan plan;
    int ends[2];
    sigset_t all, before;
    int r = check(opt, err);
    if (r < 0)
        return r;
    make_plan(&plan, opt);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return sp_error_errno(err, errno, "pipe2", "cannot start %s", plan.program);
    _cleanup_close_ int report_read = ends[0];
    plan.report_fd = ends[1];
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before); /* no handler of ours runs in the child */
    pid_t pid = fork();
    if (pid == 0)
        run_child(&plan);
    int fork_errno = errno;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    (void)close(ends[1]);
    if (pid < 0)
        return sp_error_errno(err, fork_errno, "fork", "cannot start %s", plan.program);
    r = read_report(report_read, pid, &plan, err);
    if (r < 0)
        return r;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        r = sp_error_errno(err, errno, "pidfd_open", "cannot watch %s", plan.program);
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        return r;
    }
    *ret = (struct child){.pid = pid, .pidfd = pidfd};
    return 0;
}

int spawn_reap(struct child *c, int *ret_status, struct sp_error *err) {
    int status;
    pid_t pid;
    do
        pid = waitpid(c->pid, &status, WNOHANG);
    while (pid < 0 && errno == EINTR);
    if (pid < 0)
        return sp_error_errno(err, errno, "waitpid", "child %d", (int)c->pid);
    if (pid == 0)
        return 0;
    c->pid = 0;
    c->pidfd = close_fd(c->pidfd);
    if (ret_status)
        *ret_status = status;
    return 1;
}

int spawn_wait(struct child *c, struct deadline d, int *ret_status, struct sp_error *err) {
    for (;;) {
        int r = fd_wait(c->pidfd, POLLIN, d, NULL, err);
        if (r == 0)
            r = spawn_reap(c, ret_status, err);
        if (r != 0)
            return r < 0 ? r : 0;
    }
}

int spawn_kill(const struct child *c, int signum, struct sp_error *err) {
    if (c->pid == 0)
        return 0;
    if (syscall(SYS_pidfd_send_signal, c->pidfd, signum, NULL, 0) < 0 && errno != ESRCH)
        return sp_error_errno(err, errno, "pidfd_send_signal", "child %d", (int)c->pid);
    return 0;
}

int spawn_stop(struct child *c, uint64_t grace_ms, int *ret_status, struct sp_error *err) {
    struct sp_error wait_error = {0};
    if (c->pid == 0)
        return 0;
    int r = spawn_kill(c, SIGTERM, err);
    if (r == 0)
        r = spawn_wait(c, deadline_in_ms(grace_ms), ret_status, &wait_error);
    if (r == 0 || wait_error.code != SP_E_TIMEOUT)
        return r;
    r = spawn_kill(c, SIGKILL, err);
    return r < 0 ? r : spawn_wait(c, (struct deadline){UINT64_MAX}, ret_status, err);
}

void child_done(struct child *c) {
    if (c->pid > 0) {
        (void)spawn_kill(c, SIGKILL, NULL);
        (void)spawn_wait(c, (struct deadline){UINT64_MAX}, NULL, NULL);
    }
    c->pid = 0;
    c->pidfd = close_fd(c->pidfd);
}

const char *spawn_status_text(char dst[64], int status) {
    if (WIFEXITED(status))
        (void)snprintf(dst, 64, "exited %d", WEXITSTATUS(status));
    else if (WIFSIGNALED(status) && sigabbrev_np(WTERMSIG(status)))
        (void)snprintf(dst, 64, "killed by SIG%.20s", sigabbrev_np(WTERMSIG(status)));
    else
        (void)snprintf(dst, 64, "killed by signal %d", WTERMSIG(status));
    return dst;
}
