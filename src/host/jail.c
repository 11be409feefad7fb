/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces at fork, descriptors, and giving up every privilege. The root file system is jail_root.c. */
#include "host/jail.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define PLACE_MAX 64

pid_t jail_fork(const struct jail_clone *how) {
    struct clone_args args = {.flags = how->namespaces, .exit_signal = SIGCHLD};
    long pid;

    if (how->cgroup_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)how->cgroup_fd;
    }
    pid = syscall(SYS_clone3, &args, sizeof(args));
    return pid < 0 ? -errno : (pid_t)pid;
}

void jail_reset_process(void) {
    sigset_t none;
    for (int sig = 1; sig < NSIG; sig++)
        (void)signal(sig, SIG_DFL); /* KILL, STOP and libc's own two refuse, and are what they should be */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setsid();
}

static void set_limit(int resource, uint64_t value) {
    struct rlimit now, next = {.rlim_cur = value, .rlim_max = value};
    if (getrlimit((__rlimit_resource_t)resource, &now) == 0 && now.rlim_max < next.rlim_max)
        next.rlim_cur = next.rlim_max = now.rlim_max;
    (void)setrlimit((__rlimit_resource_t)resource, &next);
}

static void set_limits(const struct jail_identity *identity) {
    set_limit(RLIMIT_CORE, 0);
    set_limit(RLIMIT_MSGQUEUE, 0);
    set_limit(RLIMIT_FSIZE, identity->file_size_max);
    set_limit(RLIMIT_NOFILE, identity->descriptors_max);
    set_limit(RLIMIT_NPROC, identity->processes_max);
}

/* While still root: afterwards not even root's exec would give a capability back. */
static int lock_privileges(struct sp_error *err) {
    unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
                         SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
                         SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return sp_error_errno(err, errno, "prctl", "no_new_privs");
    if (prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) < 0)
        return sp_error_errno(err, errno, "prctl", "securebits");
    for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            return sp_error_errno(err, errno, "prctl", "bounding set");
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        return sp_error_errno(err, errno, "prctl", "ambient set");
    return 0;
}

static int change_ids(uid_t uid, struct sp_error *err) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};

    if (setgroups(0, NULL) < 0)
        return sp_error_errno(err, errno, "setgroups", "no groups");
    if (setresgid(uid, uid, uid) < 0)
        return sp_error_errno(err, errno, "setresgid", "%u", uid);
    if (setresuid(uid, uid, uid) < 0)
        return sp_error_errno(err, errno, "setresuid", "%u", uid);
    if (syscall(SYS_capset, &header, none) < 0)
        return sp_error_errno(err, errno, "capset", "no capabilities");
    return 0;
}

static int check_dropped(uid_t uid, struct sp_error *err) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct have[2] = {{0}};
    uid_t r, e, s;
    gid_t rg, eg, sg;

    if (syscall(SYS_capget, &header, have) < 0 || getresuid(&r, &e, &s) < 0 || getresgid(&rg, &eg, &sg) < 0)
        return sp_error_errno(err, errno, "capget", "looking at what is left");
    if (r != uid || e != uid || s != uid || rg != uid || eg != uid || sg != uid || getgroups(0, NULL) != 0)
        return sp_error_set(err, SP_E_INTERNAL, "the process kept a uid, gid or group");
    for (unsigned i = 0; i < ARRAY_SIZE(have); i++)
        if (have[i].effective || have[i].permitted || have[i].inheritable)
            return sp_error_set(err, SP_E_INTERNAL, "the process kept a capability");
    return 0;
}

int jail_drop(const struct jail_identity *identity, struct sp_error *err) {
    int r;

    assert(identity->uid > 0);
    set_limits(identity);
    r = lock_privileges(err);
    if (r == 0)
        r = change_ids(identity->uid, err);
    if (r == 0)
        r = check_dropped(identity->uid, err);
    if (r < 0 || !identity->filter)
        return r;
    r = jail_filter_load(identity->filter);
    return r < 0 ? sp_error_errno(err, -r, "seccomp", "system call filter") : 0;
}

int jail_place_fds(const int *fds, size_t n, int *keep, size_t n_keep, struct sp_error *err) {
    int high[PLACE_MAX];
    size_t total = n + n_keep;

    assert(total <= PLACE_MAX);
    /* First out of the way of every target, then down. */
    for (size_t i = 0; i < total; i++) {
        high[i] = fcntl(i < n ? fds[i] : keep[i - n], F_DUPFD_CLOEXEC, PLACE_MAX * 2);
        if (high[i] < 0)
            return sp_error_errno(err, errno, "fcntl", "descriptor %zu", i);
    }
    for (size_t i = 0; i < total; i++) {
        int r = i < n ? dup2(high[i], (int)i) : dup3(high[i], (int)i, O_CLOEXEC);
        if (r < 0)
            return sp_error_errno(err, errno, "dup", "descriptor %zu", i);
        if (i >= n)
            keep[i - n] = (int)i;
    }
    if (close_range((unsigned)total, ~0u, 0) < 0)
        return sp_error_errno(err, errno, "close_range", "everything else");
    return 0;
}
