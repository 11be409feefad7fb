/* SPDX-License-Identifier: Apache-2.0 */
/* The jail's system call filter: one table row a denied call. */
#include "host/jail_filter.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* By name, not number: libseccomp resolves what it knows, and numbers newer than it are the same on every architecture. */
static const char *const denied[] = {
    /* namespaces and mounts */
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "quotactl",
    "swapon",
    "swapoff",
    "mknod",
    "mknodat",
    /* other processes */
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "pidfd_getfd",
    "process_madvise",
    /* kernel interfaces with a history */
    "bpf",
    "perf_event_open",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "keyctl",
    "add_key",
    "request_key",
    "fanotify_init",
    "name_to_handle_at",
    "open_by_handle_at",
    "lookup_dcookie",
    "memfd_secret",
    /* the host itself */
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "acct",
    "syslog",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "iopl",
    "ioperm",
    "vhangup",
    "nfsservctl",
    "sethostname",
    "setdomainname",
};

static int add_denied(scmp_filter_ctx ctx) {
    int r = 0;
    for (size_t i = 0; i < ARRAY_SIZE(denied) && r == 0; i++) {
        int nr = seccomp_syscall_resolve_name(denied[i]);
        if (nr != __NR_SCMP_ERROR)
            r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), nr, 0);
    }
    return r;
}

static int add_conditional(scmp_filter_ctx ctx) {
    static const int flags[] = {CLONE_NEWNS,   CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC,
                                CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET};
    /* clone3 takes its flags by pointer, so it cannot be judged; ENOSYS makes libc fall back to clone. */
    int r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);

    for (size_t i = 0; i < ARRAY_SIZE(flags) && r == 0; i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, (scmp_datum_t)flags[i], (scmp_datum_t)flags[i]));
    /* AF_VSOCK and AF_ALG are not bound to a network namespace; nothing in a jail needs more than unix sockets. */
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_UNIX));
    /* TIOCSTI types into a terminal. */
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                             SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, 0x5412));
    return r;
}

static int export(scmp_filter_ctx ctx, struct jail_filter *filter, struct sp_error *err) {
    _cleanup_close_ int fd = memfd_create("filter", MFD_CLOEXEC);
    ssize_t n;
    int r;

    if (fd < 0)
        return sp_error_errno(err, errno, "memfd_create", "system call filter");
    r = seccomp_export_bpf(ctx, fd);
    if (r < 0)
        return sp_error_errno(err, -r, "seccomp_export_bpf", "system call filter");
    n = pread(fd, filter->code, sizeof(filter->code), 0);
    if (n <= 0 || n == (ssize_t)sizeof(filter->code) || n % (ssize_t)sizeof(filter->code[0]) != 0)
        return sp_error_set(err, SP_E_INTERNAL, "the system call filter has an unexpected size");
    filter->program =
        (struct sock_fprog){.len = (unsigned short)((size_t)n / sizeof(filter->code[0])), .filter = filter->code};
    return 0;
}

int jail_filter_build(struct jail_filter *filter, struct sp_error *err) {
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    int r;

    if (!ctx)
        return sp_error_set(err, SP_E_INTERNAL, "seccomp_init failed");
    r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a binary tree instead of a long list */
    if (r == 0)
        r = add_denied(ctx);
    if (r == 0)
        r = add_conditional(ctx);
    r = r < 0 ? sp_error_errno(err, -r, "seccomp_rule_add", "system call filter") : export(ctx, filter, err);
    seccomp_release(ctx);
    return r;
}

int jail_filter_load(const struct jail_filter *filter) {
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter->program) < 0 ? -errno : 0;
}
