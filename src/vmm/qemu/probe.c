/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks a QEMU binary what it is: its version and the accelerators built into it. Runs it twice for a moment with a
 * deadline; used at start of a node and by `space doctor`, outside every jail.
 */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "vmm/qemu/qemu.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBE_OUTPUT_MAX 16384

static int probe_spawn(const char *binary, const char *arg1, const char *arg2, int out, pid_t *ret_pid) {
    const char *const argv[] = {binary, arg1, arg2, NULL}, *const env[] = {"LC_ALL=C", NULL};
    union {
        const char *const *in;
        char *const *out;
    } args = {.in = argv}, envs = {.in = env}; /* posix_spawn's old type */
    posix_spawn_file_actions_t actions;
    int r = posix_spawn_file_actions_init(&actions);
    if (r != 0)
        return -r;
    if ((r = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)) == 0 &&
        (r = posix_spawn_file_actions_adddup2(&actions, out, 1)) == 0 &&
        (r = posix_spawn_file_actions_adddup2(&actions, out, 2)) == 0)
        r = posix_spawn(ret_pid, binary, &actions, NULL, args.out, envs.out);
    (void)posix_spawn_file_actions_destroy(&actions);
    return -r;
}

/* Everything until end of file; false when the deadline passed. What does not fit is dropped. */
static bool probe_collect(int fd, struct deadline d, struct buf *out) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char chunk[1024];
        ssize_t n;
        int r = poll(&p, 1, deadline_poll_ms(d));
        if (r == 0)
            return false;
        n = read(fd, chunk, sizeof(chunk));
        if (n == 0 || (n < 0 && errno != EINTR))
            return true;
        if (n > 0)
            (void)buf_append(out, chunk, (size_t)n);
    }
}

static int probe_run(const char *binary, const char *arg1, const char *arg2, struct deadline d, struct buf *out,
                     struct sp_error *err) {
    int fds[2], status = 0, r;
    pid_t pid = 0;
    bool ended;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return sp_error_errno(err, errno, "pipe", "probing %s", binary);
    r = probe_spawn(binary, arg1, arg2, fds[1], &pid);
    (void)close(fds[1]);
    if (r < 0) {
        (void)close(fds[0]);
        return sp_error_errno(err, -r, "spawn", "%s", binary);
    }
    ended = probe_collect(fds[0], d, out);
    (void)close(fds[0]);
    if (!ended)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!ended)
        return sp_error_set(err, SP_E_TIMEOUT, "%s %s does not end", binary, arg1);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return sp_error_set(err, SP_E_VMM, "%s %s failed", binary, arg1);
    return 0;
}

/* "QEMU emulator version 7.2.22 (Debian …)" */
static bool probe_version(const char *text, char *dst, size_t size) {
    static const char lead[] = "QEMU emulator version ";
    const char *start = strstr(text, lead);
    size_t len;
    if (!start)
        return false;
    start += sizeof(lead) - 1;
    len = strspn(start, "0123456789.");
    return len > 0 && len < size && text_printf(dst, size, "%.*s", (int)len, start);
}

static bool kvm_opens(void) {
    _cleanup_close_ int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    return fd >= 0;
}

int qemu_probe(const char *binary, struct deadline d, struct vmm_probe *ret, struct sp_error *err) {
    _cleanup_buf_ struct buf version = {0}, accelerators = {0};
    struct vmm_probe probe = {0};
    int r;
    buf_init(&version, PROBE_OUTPUT_MAX);
    buf_init(&accelerators, PROBE_OUTPUT_MAX);
    r = probe_run(binary, "--version", NULL, d, &version, err);
    if (r < 0)
        return r;
    if (!probe_version(version.data, probe.version, sizeof(probe.version)))
        return sp_error_set(err, SP_E_VMM, "%s is no QEMU", binary);
    r = probe_run(binary, "-accel", "help", d, &accelerators, err);
    if (r < 0)
        return r;
    probe.tcg = strstr(accelerators.data, "\ntcg") != NULL;
    probe.kvm = strstr(accelerators.data, "\nkvm") != NULL && kvm_opens();
    *ret = probe;
    return 0;
}
