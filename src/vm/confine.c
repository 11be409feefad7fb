/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space-vm gives up every system call it has no use for, before the VMM has its files: no file by path, no
 * socket to anywhere, no exec, no new process, no executable memory. On top of the jail's own filter.
 */
#include "base/text.h"
#include "vm/track_scan.h"
#include "vm/vm.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CONFINE 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define CONFINE 0
#endif
#endif
#ifndef CONFINE
#define CONFINE 1
#endif

#if CONFINE && defined(__x86_64__)

static const unsigned allowed[] = {
    /* descriptors we hold or get */
    SYS_read,
    SYS_write,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_lseek,
    SYS_close,
    SYS_fcntl,
    SYS_fstat,
    SYS_poll,
    SYS_ppoll,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_sendto,
    SYS_sendmsg,
    SYS_accept4,
    SYS_shutdown,
    SYS_getsockopt,
    SYS_socketpair,
    SYS_pipe2,
    /* the VMM as a child */
    SYS_wait4,
    SYS_waitid,
    SYS_pidfd_send_signal,
    /* memory (without PROT_EXEC), time, randomness, libc */
    SYS_brk,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_futex,
    SYS_clock_gettime,
    SYS_getrandom,
    SYS_restart_syscall,
    SYS_getpid,
    SYS_gettid,
    SYS_tgkill,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_exit,
    SYS_exit_group,
};
/* What libc tries on its own (time zone, terminal) and takes a no for: everything else ends the process. */
static const unsigned refused[] = {SYS_open, SYS_openat, SYS_newfstatat, SYS_readlink, SYS_access};
/* Which memory of the VMM was written (track.c); every other ioctl gets a no. Their numbers are the lower half. */
static const unsigned ioctls[] = {(unsigned)PAGEMAP_SCAN, (unsigned)UFFDIO_REGISTER};
/* Their third argument is a protection. */
static const unsigned without_exec[] = {SYS_mmap, SYS_mprotect};

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, (action))
#define SKIP_UNLESS(value, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (n))

int vm_confine(struct sp_error *err) {
    static const struct sock_filter head[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
    };
    struct sock_filter code[ARRAY_SIZE(head) + 2 * ARRAY_SIZE(allowed) + 2 * ARRAY_SIZE(refused) +
                            5 * ARRAY_SIZE(without_exec) + ARRAY_SIZE(ioctls) + 5];
    struct sock_fprog program;
    size_t n = 0;
    for (; n < ARRAY_SIZE(head); n++)
        code[n] = head[n];
    for (size_t i = 0; i < ARRAY_SIZE(allowed); i++) {
        code[n++] = (struct sock_filter)SKIP_UNLESS(allowed[i], 1);
        code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    }
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        code[n++] = (struct sock_filter)SKIP_UNLESS(refused[i], 1);
        code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | EACCES);
    }
    for (size_t i = 0; i < ARRAY_SIZE(without_exec); i++) {
        code[n++] = (struct sock_filter)SKIP_UNLESS(without_exec[i], 4);
        code[n++] = (struct sock_filter)LOAD(args[2]); /* its lower half: little-endian */
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0);
        code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
        code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
    }
    code[n++] = (struct sock_filter)SKIP_UNLESS(SYS_ioctl, ARRAY_SIZE(ioctls) + 3);
    code[n++] = (struct sock_filter)LOAD(args[1]);
    for (size_t i = 0; i < ARRAY_SIZE(ioctls); i++)
        code[n++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ioctls[i], (uint8_t)(ARRAY_SIZE(ioctls) - i), 0);
    code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | EACCES);
    code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
    program = (struct sock_fprog){.len = (unsigned short)n, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
        return sp_error_errno(err, errno, "seccomp", "space-vm's own filter");
    return 0;
}

#else
int vm_confine(struct sp_error *err) {
    (void)err; /* a sanitizer's run time needs more than can be listed */
    return 0;
}
#endif
