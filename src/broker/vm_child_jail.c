/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The children's side: what runs between the fork and the exec of space-vm, and in the stub until it serves. Root at the
 * beginning, nobody at the end; single-threaded; touches no table of the broker. Order matters and is said where it does.
 */
#include "base/cleanup.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/vm_child_proto.h"
#include "host/jail.h"
#include "host/jail_root.h"
#include "host/tap.h"
#include "vmm/stub.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

#define TAP_NAME "tap0"
#define DESCRIPTORS_MAX 1024
#define PROCESSES_MAX 256
#define FILE_SIZE_MIN (64ull * 1024 * 1024) /* the log has to fit too */
#define FILE_SIZE_BLANK                                                                                                \
    (16ull * 1024 * 1024 * 1024 * 1024) /* of a disk that is not known yet: the file system's own limit */
#define KVM_MAJOR 10
#define KVM_MINOR 232

static _Noreturn void child_fail(int sync, const struct sp_error *error) {
    struct vm_child_message message = {.kind = CHILD_FAILED, .error = *error};
    (void)send(sync, &message, sizeof(message), MSG_NOSIGNAL);
    _exit(1);
}

static void child_ready(int sync, enum vm_child_message_kind kind) {
    struct vm_child_message message = {.kind = kind};
    if (send(sync, &message, sizeof(message), MSG_NOSIGNAL) != (ssize_t)sizeof(message))
        _exit(1);
}

static struct jail_identity child_identity(const struct vm_child_plan *plan) {
    uint64_t size = plan->record->memory_mib * 1024ull * 1024ull;
    if (size < plan->disk_size)
        size = plan->disk_size;
    if (size < FILE_SIZE_MIN)
        size = FILE_SIZE_MIN;
    if (plan->record->mode == MODE_BLANK)
        size = FILE_SIZE_BLANK;
    return (struct jail_identity){.uid = plan->record->uid,
                                  .file_size_max = size,
                                  .descriptors_max = DESCRIPTORS_MAX,
                                  .processes_max = PROCESSES_MAX,
                                  .filter = plan->filter};
}

/* --- the stub ----------------------------------------------------------------------------------------------------- */

/* Neither RAM nor disk: both reach the VMM by descriptor. And nothing of the host's own: its engine's bundle holds it all. */
static int enter_vmm_root(const struct vm_child_plan *plan, struct sp_error *err) {
    const uid_t uid = plan->record->uid;
    const bool kvm = plan->record->accelerator == ACCELERATOR_KVM;
    const struct jail_item all[] = {
        {JAIL_BIND_DIR, "usr", .source = plan->usr},
        {JAIL_LINK_OR_DIR, "lib64", .source = plan->lib64},
        {JAIL_DIR, "vm"},
        {JAIL_FILE, "vm/kernel", .mount_fd = plan->kernel},
        {JAIL_FILE, "vm/initrd", .mount_fd = plan->initrd},
        {JAIL_FILE, "vm/preload.so", .mount_fd = plan->preload},
        {JAIL_DEV, "dev"},
        {JAIL_DEVICE, "dev/null", .device = makedev(1, 3), .mode = 0666},
        /* Last, because left out without it. Owned by the VM: /dev/kvm of the host belongs to a group it is not in. */
        {JAIL_DEVICE, "dev/kvm", .device = makedev(KVM_MAJOR, KVM_MINOR), .owner = uid, .mode = 0600},
    };
    struct jail_item items[ARRAY_SIZE(all)];
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(all) - (kvm ? 0 : 1); i++)
        if (all[i].kind != JAIL_FILE || all[i].mount_fd >= 0)
            items[n++] = all[i];
    return jail_root_enter(items, n, plan->scratch, err);
}

static _Noreturn void stub_main(const struct vm_child_plan *plan, int sock, int sync) {
    const struct jail_identity identity = child_identity(plan);
    const int fds[] = {plan->null, plan->null, plan->null};
    int keep[] = {sock, sync};
    struct sp_error err = {0};
    int r;

    r = enter_vmm_root(plan, &err);
    if (r == 0)
        r = fault_point("stub.root", &err);
    if (r == 0)
        r = jail_place_fds(fds, ARRAY_SIZE(fds), keep, ARRAY_SIZE(keep), &err);
    if (r < 0)
        child_fail(sync, &err);
    r = jail_drop(&identity, &err);
    if (r == 0)
        r = fault_point("stub.drop", &err);
    if (r < 0)
        child_fail(keep[1], &err);
    child_ready(keep[1], CHILD_STUB_READY);
    (void)close(keep[1]);
    vmm_stub_serve(keep[0]);
}

/* --- space-vm ------------------------------------------------------------------------------------------------------- */

static int enter_vm_root(const struct vm_child_plan *plan, struct sp_error *err) {
    /* The loader and its libraries come last and are left out for a static program. */
    static const struct jail_item items[] = {
        {JAIL_PROC, "proc"},
        {JAIL_BIND_DIR, "usr", .source = "/usr"},
        {JAIL_LINK_OR_DIR, "lib", .source = "/lib"},
        {JAIL_LINK_OR_DIR, "lib64", .source = "/lib64"},
    };
    return jail_root_enter(items, plan->program_static ? 1 : ARRAY_SIZE(items), plan->scratch, err);
}

/* The sandbox's network namespace is the one J was born in. It holds the tap and is left behind at once: the tap's
 * descriptor keeps it, and no process of ours is in it. */
static int make_network(int *ret_tap, struct sp_error *err) {
    int r = tap_create(TAP_NAME, ret_tap, err);
    if (r < 0)
        return r;
    if (unshare(CLONE_NEWNET) < 0)
        return sp_error_errno(err, errno, "unshare", "network namespace of space-vm");
    return fault_point("vm.network", err);
}

static int fork_stub(const struct vm_child_plan *plan, int sync, int *ret_sock, pid_t *ret_pid, struct sp_error *err) {
    const struct jail_clone how = {.namespaces =
                                       CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET,
                                   .cgroup_fd = -1};
    int pair[2];
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return sp_error_errno(err, errno, "socketpair", "VMM stub");
    pid = jail_fork(&how);
    if (pid == 0) {
        (void)close(pair[0]);
        stub_main(plan, pair[1], sync);
    }
    (void)close(pair[1]);
    if (pid < 0)
        return sp_error_errno(err, -pid, "clone3", "VMM stub");
    *ret_sock = pair[0];
    *ret_pid = pid;
    return 0;
}

static int set_up(const struct vm_child_plan *plan, int sync, int fds[VM_FD_COUNT_], pid_t *ret_stub,
                  struct sp_error *err) {
    int r = cgroup_entry_join_self(plan->cgroup);
    if (r < 0)
        return sp_error_errno(err, -r, "cgroup", "entering the control group");
    jail_reset_process();
    if (sethostname("space", 5) < 0)
        return sp_error_errno(err, errno, "sethostname", "space");
    r = fault_point("vm.cgroup", err);
    if (r == 0)
        r = make_network(&fds[VM_FD_TAP], err);
    if (r == 0)
        r = fork_stub(plan, sync, &fds[VM_FD_STUB], ret_stub, err);
    if (r == 0)
        r = enter_vm_root(plan, err);
    return r < 0 ? r : fault_point("vm.root", err);
}

/* The environment of space-vm: its log level, and what a sanitizer of a test build is told. */
static char **make_environment(const struct vm_child_plan *plan) {
    static const char *const passed[] = {"ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"};
    static char texts[ARRAY_SIZE(passed) + 1][256], *env[ARRAY_SIZE(texts) + 1];
    size_t n = 0;

    if (text_printf(texts[n], sizeof(texts[n]), "SPACE_LOG_LEVEL=%s", plan->log_level))
        n++;
    for (size_t i = 0; plan->pass_sanitizer_options && i < ARRAY_SIZE(passed); i++) {
        const char *value = getenv(passed[i]);
        if (value && text_printf(texts[n], sizeof(texts[n]), "%s=%s", passed[i], value))
            n++;
    }
    for (size_t i = 0; i < n; i++)
        env[i] = texts[i];
    return env;
}

/* Until the job says go. The stub says nothing before it is asked, so anything on its socket is its end. */
static void wait_for_go(int sync) {
    struct pollfd fds[] = {{.fd = sync, .events = POLLIN}, {.fd = VM_FD_STUB, .events = POLLIN}};
    struct sp_error err;
    char go;

    while (poll(fds, ARRAY_SIZE(fds), -1) < 0)
        if (errno != EINTR)
            _exit(1);
    if (fds[1].revents) {
        (void)sp_error_set(&err, SP_E_VMM, "the VMM stub died while it was set up");
        child_fail(sync, &err);
    }
    if (recv(sync, &go, 1, 0) != 1)
        _exit(1); /* the job is gone; the end of this process takes the stub along */
}

static _Noreturn void execute(const struct vm_child_plan *plan, int program, int sync, pid_t stub) {
    struct sp_error err = {0};
    char config_text[16], stub_text[16];
    char *argv[] = {(char[]){"space-vm"}, config_text, stub_text, NULL};

    (void)text_printf(config_text, sizeof(config_text), "%d", VM_FD_CONFIG);
    (void)text_printf(stub_text, sizeof(stub_text), "%d", (int)stub);
    child_ready(sync, CHILD_VM_READY);
    wait_for_go(sync);
    if (fault_point("vm.exec", &err) == 0) {
        (void)execveat(program, "", argv, make_environment(plan), AT_EMPTY_PATH);
        (void)sp_error_errno(&err, errno, "execveat", "space-vm");
    }
    child_fail(sync, &err);
}

_Noreturn void vm_child_main(const struct vm_child_plan *plan, int sync) {
    const struct jail_identity identity = child_identity(plan);
    int fds[VM_FD_COUNT_] = {plan->null,
                             plan->null,
                             plan->log,
                             [VM_FD_CONTROL] = plan->control,
                             [VM_FD_GUEST] = plan->guest,
                             [VM_FD_STUB] = -1,
                             [VM_FD_TAP] = -1,
                             [VM_FD_CONFIG] = plan->config,
                             [VM_FD_MEMORY] = plan->memory,
                             [VM_FD_DISK] = plan->disk,
                             [VM_FD_DEVICES] = plan->devices};
    const size_t n_fds = plan->record->mode == MODE_BLANK  ? VM_FD_COUNT_BLANK
                         : plan->record->mode == MODE_BOOT ? VM_FD_COUNT_BOOT
                                                           : VM_FD_COUNT_;
    int keep[] = {plan->program, sync};
    struct sp_error err = {0};
    pid_t stub = -1;
    int r = set_up(plan, sync, fds, &stub, &err);

    if (r == 0)
        r = jail_place_fds(fds, n_fds, keep, ARRAY_SIZE(keep), &err);
    if (r < 0)
        child_fail(sync, &err);
    r = jail_drop(&identity, &err);
    if (r == 0)
        r = fault_point("vm.drop", &err);
    if (r < 0)
        child_fail(keep[1], &err);
    execute(plan, keep[0], keep[1], stub);
}
