/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the child does between clone and exec. It shares the agent's memory and thread pointer while the agent runs on,
 * so it may not touch errno, the heap or anything else of libc: system calls by hand, and writes only to its own stack.
 * All signals are blocked (inherited) until just before exec; their handlers were reset by CLONE_CLEAR_SIGHAND.
 */
#include "guest/spawn_child.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define NOFILE_SOFT 1024u
#define NOFILE_HARD 524288u

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNINSTRUMENTED __attribute__((no_sanitize("address", "undefined", "thread"), no_stack_protector))
#else
#define UNINSTRUMENTED __attribute__((no_stack_protector))
#endif

#if defined(__x86_64__)
UNINSTRUMENTED static inline long call(long nr, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return ret;
}
#else
/* Without CLONE_VM (see spawn.c) the child has memory of its own, so libc's errno is harmless. */
#include <unistd.h>
static inline long call(long nr, long a, long b, long c, long d) {
    long ret = syscall(nr, a, b, c, d);
    return ret < 0 ? -errno : ret;
}
#endif

UNINSTRUMENTED _Noreturn static void give_up(const struct spawn_plan *p, enum spawn_stage stage, long err, int code) {
    struct spawn_status status = {(int32_t)stage, (int32_t)-err};
    (void)call(SYS_write, p->status_fd, (long)&status, sizeof(status), 0);
    for (;;)
        (void)call(SYS_exit_group, code, 0, 0, 0);
}

UNINSTRUMENTED static long become_user(const struct spawn_plan *p) {
    long r = call(SYS_setgroups, (long)p->n_groups, (long)p->groups, 0, 0);
    if (r == 0)
        r = call(SYS_setresgid, p->gid, p->gid, p->gid, 0);
    if (r == 0)
        r = call(SYS_setresuid, p->uid, p->uid, p->uid, 0);
    return r;
}

UNINSTRUMENTED static long set_up(const struct spawn_plan *p) {
    struct rlimit files = {NOFILE_SOFT, NOFILE_HARD};
    long r = 0;

    if (p->join_cgroup) {
        static const char path[] = "cgroup.procs", self[] = "0";
        r = call(SYS_openat, p->cgroup_fd, (long)path, O_WRONLY | O_CLOEXEC, 0);
        if (r < 0 || (r = call(SYS_write, r, (long)self, 1, 0)) < 0)
            return r;
    }
    if ((r = call(SYS_setsid, 0, 0, 0, 0)) < 0)
        return r;
    if (p->tty && (r = call(SYS_ioctl, p->fds[0], TIOCSCTTY, 0, 0)) < 0)
        return r;
    for (int i = 0; i < 3; i++)
        if ((r = call(SYS_dup3, p->fds[i], i, 0, 0)) < 0)
            return r;
    if (call(SYS_prlimit64, 0, RLIMIT_NOFILE, (long)&files, 0) <
        0) { /* the hard limit is lower and may not be raised */
        (void)call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&files);
        files.rlim_cur = files.rlim_max < NOFILE_SOFT ? files.rlim_max : NOFILE_SOFT;
        (void)call(SYS_prlimit64, 0, RLIMIT_NOFILE, (long)&files, 0);
    }
    return become_user(p);
}

/* Tries every candidate. Returns the error to report: access denied wins over not found. */
UNINSTRUMENTED static long try_exec(const struct spawn_plan *p) {
    long result = -ENOENT;

    for (size_t i = 0; i < p->n_candidates; i++) {
        long r = call(SYS_execve, (long)p->candidates[i], (long)p->argv, (long)p->env, 0);
        if (r == -ENOEXEC) {
            p->shell_argv[1] = (char *)(uintptr_t)p->candidates[i];
            r = call(SYS_execve, (long)p->shell_argv[0], (long)p->shell_argv, (long)p->env, 0);
            return r == -ENOENT ? -ENOEXEC : r;
        }
        if (r == -EACCES)
            result = r;
        else if (r != -ENOENT && r != -ENOTDIR)
            return r;
    }
    return result;
}

UNINSTRUMENTED _Noreturn void spawn_child(void *plan) {
    const struct spawn_plan *p = plan;
    static const unsigned char no_signals[8];
    long r = set_up(p);

    if (r < 0)
        give_up(p, SPAWN_SETUP, r, 126);
    r = call(SYS_chdir, (long)p->cwd, 0, 0, 0);
    if (r < 0)
        give_up(p, SPAWN_CWD, r, 126);
    (void)call(SYS_rt_sigprocmask, SIG_SETMASK, (long)no_signals, 0, 8);
    r = try_exec(p);
    give_up(p, SPAWN_EXEC, r, r == -ENOENT || r == -ENOTDIR ? 127 : 126);
}
