/* SPDX-License-Identifier: Apache-2.0 */
/* space-vm: one per live VM, started by the broker inside its jail (vm_config.h). Reads its configuration, runs its life. */
#include "base/fdio.h"
#include "base/log.h"
#include "base/text.h"
#include "vm/vm.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct vm the_vm; /* large, and one per process */

static int setup_signals(struct vm *vm, struct sp_error *err) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    (void)signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return sp_error_errno(err, errno, "sigprocmask", "start");
    vm->fd_signal = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return vm->fd_signal < 0 ? sp_error_errno(err, errno, "signalfd", "start") : 0;
}

static int setup(struct vm *vm, int argc, char **argv, struct sp_error *err) {
    uint64_t fd = 0, pid = 0;
    int r = vm_init(vm, err);
    if (r < 0)
        return r;
    if (argc != 3 || !text_to_u64(argv[1], 3, 65535, &fd) || !text_to_u64(argv[2], 1, INT32_MAX, &pid))
        return sp_error_set(err, SP_E_INVALID, "usage: space-vm CONFIG_FD STUB_PID (started by space-broker)");
    if ((r = vm_config_read((int)fd, &vm->config, err)) < 0)
        return r;
    (void)close((int)fd);
    vm->vmm_pid = (pid_t)pid;
    vm->vmm_pidfd = (int)syscall(SYS_pidfd_open, vm->vmm_pid, 0);
    if (vm->vmm_pidfd < 0)
        return sp_error_errno(err, errno, "pidfd_open", "the VMM stub");
    if ((r = fd_set_nonblocking(vm->config.fd_control, true)) < 0 ||
        (r = fd_set_nonblocking(vm->config.fd_guest, true)) < 0)
        return sp_error_set(err, SP_E_INVALID, "an inherited listener is missing");
    return setup_signals(vm, err);
}

static enum log_level level_from_environment(void) {
    const char *name = getenv("SPACE_LOG_LEVEL");
    enum log_level level = LOG_L_INFO;
    if (name)
        (void)log_level_from_name(name, &level);
    return level;
}

int main(int argc, char **argv) {
    struct sp_error err = {0};
    int status = 1;
    log_init("space-vm", level_from_environment());
    if (setup(&the_vm, argc, argv, &err) < 0)
        log_error(LOG_L_ERROR, "start_failed", &err, NULL);
    else
        status = vm_run(&the_vm);
    vm_done(&the_vm);
    return status;
}
