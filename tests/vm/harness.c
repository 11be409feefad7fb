/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's part of a VM's life, without the jail; see harness.h. */
#include "harness.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/text.h"
#include "vmm/driver.h"
#include "vmm/stub.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/if_tun.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define FDS 7 /* control guest stub tap memory disk devices */

_Noreturn void harness_die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    (void)fprintf(stderr, "harness: ");
    (void)vfprintf(stderr, fmt, ap);
    (void)fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}

const char *harness_path(char dst[HARNESS_PATH], const char *fmt, ...) {
    va_list ap;
    int n;
    va_start(ap, fmt);
    n = vsnprintf(dst, HARNESS_PATH, fmt, ap);
    va_end(ap);
    if (n < 0 || n >= HARNESS_PATH)
        harness_die("path too long: %s", dst);
    return dst;
}

double harness_now_ms(void) {
    return (double)clock_monotonic_ns() / 1e6;
}

/* --- settings ------------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t offset, size; /* of a string in struct harness; size 0: a number */
    const char *doc;
} flags[] = {
#define TEXT(name_, field, doc_)                                                                                       \
    { name_, offsetof(struct harness, field), sizeof(((struct harness *)0)->field), doc_ }
#define NUMBER(name_, field, doc_)                                                                                     \
    { name_, offsetof(struct harness, field), 0, doc_ }
    TEXT("kernel-dir", kernel_dir, "kernel profile: kernel.json, vmlinux or vmlinuz, modules, perhaps initrd.cpio"),
    TEXT("rootfs", rootfs, "tree the root disk is made of"),
    TEXT("disk", disk, "or a ready image"),
    TEXT("work", work, "directory on a reflink file system; default: a loop-mounted btrfs of its own"),
    TEXT("libexec", libexec, "where space-vm, space-guest and space-vmm-preload.so are; default: beside this program"),
    TEXT("initrd", initrd, "default: the profile's, else made from the agent"),
    TEXT("qemu", qemu, "VMM"),
    TEXT("accelerator", accelerator, "tcg or kvm"),
    TEXT("cpu-model", cpu_model, "default: the driver's for the accelerator"),
    TEXT("probe", probe, "shell command that must pass before the template is saved"),
    TEXT("start", start, "shell command started in the template"),
    NUMBER("vcpus", vcpus, "1"),
    NUMBER("memory-mib", memory_mib, "256"),
    NUMBER("deadline-ms", deadline_ms, "120000"),
    NUMBER("store-mib", store_mib, "16384; size of the btrfs when there is no --work"),
    NUMBER("runs", runs, "20; benchmarks"),
#undef TEXT
#undef NUMBER
};

static _Noreturn void usage(void) {
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        (void)fprintf(stderr, "  --%-12s %s\n", flags[i].name, flags[i].doc);
    exit(2);
}

static void set_flag(struct harness *h, const char *name, const char *value) {
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
        char *field = (char *)h + flags[i].offset;
        uint64_t number = 0;
        if (strcmp(flags[i].name, name) != 0)
            continue;
        if (flags[i].size > 0 ? !text_copy(field, flags[i].size, value) : !text_to_u64(value, 1, 1000000, &number))
            harness_die("--%s: bad value", name);
        if (flags[i].size == 0)
            *(unsigned *)(void *)field = (unsigned)number;
        return;
    }
    usage();
}

static void copy(char *dst, size_t size, const char *src) {
    if (!text_copy(dst, size, src))
        harness_die("too long: %s", src);
}

/* Profile, ACPI and kernel file out of kernel.json. */
static void read_profile(struct harness *h) {
    char name[HARNESS_PATH];
    _cleanup_free_ char *text = NULL;
    _cleanup_json_ json_t *profile = NULL;
    struct sp_error err = {0};
    const char *kernel = NULL;
    size_t len;
    if (file_read(AT_FDCWD, harness_path(name, "%s/kernel.json", h->kernel_dir), 4096, &text, &len, &err) < 0 ||
        json_parse(text, len, 4096, &profile, &err) < 0 ||
        json_get_string(profile, "", "profile", 1, sizeof(h->kernel) - 1, &kernel, &err) < 0 ||
        json_get_opt_bool(profile, "", "acpi", false, &h->acpi, &err) < 0)
        harness_die("kernel.json: %s", err.text);
    copy(h->kernel, sizeof(h->kernel), kernel);
    (void)harness_path(h->kernel_file, "%s/vmlinux", h->kernel_dir);
    if (access(h->kernel_file, R_OK) < 0)
        (void)harness_path(h->kernel_file, "%s/vmlinuz", h->kernel_dir);
}

void harness_init(struct harness *h, int argc, char **argv) {
    struct vmm_probe probe;
    struct sp_error err = {0};
    ssize_t n;
    *h = (struct harness){
        .vcpus = 1, .memory_mib = 256, .uid = 719000, .deadline_ms = 120000, .store_mib = 16384, .runs = 20};
    copy(h->qemu, sizeof(h->qemu), "/usr/bin/qemu-system-x86_64");
    copy(h->accelerator, sizeof(h->accelerator), "tcg");
    n = readlink("/proc/self/exe", h->libexec, sizeof(h->libexec) - 1);
    if (n > 0)
        *strrchr(h->libexec, '/') = '\0';
    for (int i = 1; i < argc; i += 2) {
        if (!text_starts_with(argv[i], "--") || i + 1 >= argc)
            usage();
        set_flag(h, argv[i] + 2, argv[i + 1]);
    }
    if (!h->kernel_dir[0] || (!h->rootfs[0] && !h->disk[0]))
        usage();
    (void)umask(022);
    read_profile(h);
    (void)harness_path(h->space_vm, "%s/space-vm", h->libexec);
    (void)harness_path(h->preload, "%s/space-vmm-preload.so", h->libexec);
    if (qemu_driver.probe(h->qemu, deadline_in_ms(10000), &probe, &err) < 0)
        harness_die("%s", err.text);
    copy(h->qemu_version, sizeof(h->qemu_version), probe.version);
    h->tsc_khz = host_tsc_khz();
    harness_prepare(h);
}

/* --- files --------------------------------------------------------------------------------------------------------------- */

void harness_reflink(const char *from, const char *to, mode_t mode, uid_t uid) {
    int source = open(from, O_RDONLY | O_CLOEXEC), target = open(to, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (source < 0 || target < 0 || ioctl(target, FICLONE, source) < 0)
        harness_die("reflink %s to %s: %s", from, to, strerror(errno));
    if (fchown(target, uid, uid) < 0)
        harness_die("chown %s: %s", to, strerror(errno));
    (void)close(source);
    (void)close(target);
}

void harness_make_dir(const char *dir, mode_t mode, uid_t uid) {
    if (mkdir(dir, mode) < 0 && errno != EEXIST)
        harness_die("mkdir %s: %s", dir, strerror(errno));
    if (chown(dir, uid, uid) < 0)
        harness_die("chown %s: %s", dir, strerror(errno));
}

static void link_to(const char *target, const char *name) {
    if (symlink(target, name) < 0)
        harness_die("symlink %s: %s", name, strerror(errno));
}

static int open_file(const char *name, int how) {
    int fd = open(name, how | O_CLOEXEC, 0600);
    if (fd < 0)
        harness_die("%s: %s", name, strerror(errno));
    return fd;
}

void harness_open_snapshot(const struct harness *h, const struct harness_vm *vm, const char *snapshot, int fds[3]) {
    char a[HARNESS_PATH], b[HARNESS_PATH];
    harness_reflink(harness_path(a, "%s/disk.img", snapshot), harness_path(b, "%s/disk.img", vm->dir), 0600, h->uid);
    fds[0] = open_file(harness_path(a, "%s/memory", snapshot), O_RDONLY);
    fds[1] = open_file(b, O_RDWR);
    fds[2] = open_file(harness_path(a, "%s/devices", snapshot), O_RDONLY);
}

static void make_boot_files(const struct harness *h, const struct harness_vm *vm, int fds[3]) {
    char b[HARNESS_PATH];
    fds[0] = open_file(harness_path(b, "%s/memory", vm->dir), O_RDWR | O_CREAT);
    if (ftruncate(fds[0], (off_t)h->memory_mib << 20) < 0)
        harness_die("memory file: %s", strerror(errno));
    harness_reflink(h->disk, harness_path(b, "%s/disk.img", vm->dir), 0600, h->uid);
    fds[1] = open_file(b, O_RDWR);
    fds[2] = open_file(harness_path(b, "%s/devices", vm->dir), O_WRONLY | O_CREAT);
}

static void make_disk_boot_files(const struct harness *h, const struct harness_vm *vm, const char *snapshot,
                                 int fds[3]) {
    char a[HARNESS_PATH], b[HARNESS_PATH];
    int fd = open_file(harness_path(b, "%s/memory", vm->dir), O_RDWR | O_CREAT);
    if (ftruncate(fd, (off_t)h->memory_mib << 20) < 0)
        harness_die("memory file: %s", strerror(errno));
    (void)close(fd);
    fds[0] = open_file(b, O_RDONLY);
    harness_reflink(harness_path(a, "%s/disk.img", snapshot), harness_path(b, "%s/disk.img", vm->dir), 0600, h->uid);
    fds[1] = open_file(b, O_RDWR);
}

/* <dir>/vm as vm_config.h describes it, and memory, disk and devices as descriptors. */
static void make_files(const struct harness *h, const struct harness_vm *vm, const char *snapshot, int fds[3]) {
    char a[HARNESS_PATH];
    harness_make_dir(vm->dir, 0755, h->uid);
    harness_make_dir(harness_path(a, "%s/vm", vm->dir), 0755, h->uid);
    link_to(h->preload, harness_path(a, "%s/vm/preload.so", vm->dir));
    if (vm->blank)
        return;
    if (snapshot && !vm->boots) {
        harness_open_snapshot(h, vm, snapshot, fds);
        return;
    }
    link_to(h->kernel_file, harness_path(a, "%s/vm/kernel", vm->dir));
    link_to(h->initrd, harness_path(a, "%s/vm/initrd", vm->dir));
    if (vm->boots) {
        make_disk_boot_files(h, vm, snapshot, fds);
        return;
    }
    make_boot_files(h, vm, fds);
}

/* --- descriptors ----------------------------------------------------------------------------------------------------------- */

static int listener(const struct harness_vm *vm, const char *name, int type) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (!text_printf(address.sun_path, sizeof(address.sun_path), "%s/%s", vm->dir, name) || fd < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 64) < 0)
        harness_die("%s: %s", name, strerror(errno));
    return fd;
}

/* A tap that nothing else sees: in a network namespace of its own, kept alive by the descriptor. */
static int make_tap(void) {
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), tun, sock;
    (void)text_copy(request.ifr_name, sizeof(request.ifr_name), "tap0");
    if (home < 0 || unshare(CLONE_NEWNET) < 0)
        harness_die("network namespace: %s (root is needed)", strerror(errno));
    tun = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (tun < 0 || ioctl(tun, TUNSETIFF, &request) < 0)
        harness_die("tap: %s", strerror(errno));
    sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_flags = IFF_UP;
    if (sock < 0 || ioctl(sock, SIOCSIFFLAGS, &request) < 0)
        harness_die("tap up: %s", strerror(errno));
    (void)close(sock);
    if (setns(home, CLONE_NEWNET) < 0)
        harness_die("setns: %s", strerror(errno));
    (void)close(home);
    return tun;
}

/* --- the processes ------------------------------------------------------------------------------------------------------------- */

static json_t *command_json(const char *command) {
    return json_pack("{s:[s, s, s], s:s, s:i}", "argv", "/bin/sh", "-c", command, "user", "root", "timeout_ms", 10000);
}

json_t *harness_config(const struct harness *h, bool template_boot) {
    char machine_id[33];
    uint8_t bytes[16];
    json_t *config;
    random_bytes(bytes, sizeof(bytes));
    text_hex(machine_id, bytes, sizeof(bytes));
    config = json_pack("{s:b, s:I, s:i, s:{s:s, s:s, s:[s]}, s:i, s:i}", "acpi", (int)h->acpi, "tsc_khz",
                       (json_int_t)h->tsc_khz, "generation", 1, "identity", "hostname", "harness", "machine_id",
                       machine_id, "env", "SPACE_TEST=1", "output_window", 262144, "deadline_ms", (int)h->deadline_ms);
    if (!config)
        harness_die("configuration");
    if (h->cpu_model[0])
        (void)json_object_set_new(config, "cpu_model", json_string(h->cpu_model));
    if (h->probe[0] && template_boot)
        (void)json_object_set_new(config, "probe", command_json(h->probe));
    if (h->start[0] && template_boot)
        (void)json_object_set_new(config, "start", command_json(h->start));
    return config;
}

static char *config_json(const struct harness *h, const struct harness_vm *vm, bool clone, const int fds[FDS]) {
    static const char *const names[FDS] = {"control", "guest", "stub", "tap", "memory", "disk", "devices"};
    char dir[HARNESS_PATH], *text;
    json_t *config = harness_config(h, !clone && !vm->blank), *numbers = json_object();
    for (size_t i = 0; i < FDS; i++)
        if (fds[i] >= 0)
            (void)json_object_set_new(numbers, names[i], json_integer(fds[i]));
    json_t *broker = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:s, s:o}", "id", vm->id, "mode",
                               vm->blank   ? "blank"
                               : vm->boots ? "boot"
                               : clone     ? "clone"
                                           : "template_boot",
                               "kernel", h->kernel, "accelerator", h->accelerator, "vcpus", (int)h->vcpus, "memory_mib",
                               (int)h->memory_mib, "qemu", h->qemu, "qemu_version", h->qemu_version, "vm_dir",
                               harness_path(dir, "%s/vm", vm->dir), "fds", numbers);
    if (vm->blank) {
        (void)json_object_del(config, "generation");
        (void)json_object_del(config, "identity");
    }
    json_t *root = json_pack("{s:o, s:o}", "broker", broker, "config", config);
    text = json_print(root);
    json_decref(root);
    return text;
}

static void drop(uid_t uid) {
    if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
        _exit(126);
}

static void refuse_userfaultfd(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = ARRAY_SIZE(code), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        _exit(126);
}

/* In the process that becomes space-vm: makes the stub, then itself. */
static _Noreturn void child(const struct harness *h, const struct harness_vm *vm, bool clone, int fds[FDS]) {
    int stub[2], config = memfd_create("vm-config", 0);
    char number[16], pid_text[16];
    char *text;
    pid_t pid;
    if (config < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, stub) < 0)
        _exit(126);
    fds[2] = stub[0];
    text = config_json(h, vm, clone, fds);
    if (fd_write_all(config, text, strlen(text), NULL) < 0)
        _exit(126);
    for (int i = 0; i < FDS; i++)
        if (fds[i] >= 0)
            (void)fcntl(fds[i], F_SETFD, 0);
    pid = fork();
    if (pid < 0)
        _exit(126);
    if (pid == 0) {
        (void)close(stub[0]);
        drop(h->uid);
        if (h->no_userfaultfd)
            refuse_userfaultfd();
        vmm_stub_serve(stub[1]);
    }
    (void)close(stub[1]);
    drop(h->uid);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); /* a test that dies leaves no VM */
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)text_printf(number, sizeof(number), "%d", config);
    (void)text_printf(pid_text, sizeof(pid_text), "%d", (int)pid);
    execl(h->space_vm, "space-vm", number, pid_text, (char *)NULL);
    _exit(127);
}

void harness_new(struct harness_vm *vm, bool clone, const char *work) {
    *vm = (struct harness_vm){.control = -1};
    id_generate(vm->id, clone ? "sbx" : "tpb");
    (void)harness_path(vm->dir, "%s/%s", work, vm->id);
    vm->tap = make_tap();
}

void harness_start(const struct harness *h, struct harness_vm *vm, const char *snapshot) {
    int fds[FDS] = {-1, -1, -1, -1, -1, -1, -1};
    make_files(h, vm, snapshot, fds + 4);
    fds[0] = listener(vm, "control.sock", SOCK_SEQPACKET);
    fds[1] = listener(vm, "guest.sock", SOCK_STREAM);
    fds[3] = TAKE_FD(vm->tap);
    vm->pid = fork();
    if (vm->pid < 0)
        harness_die("fork: %s", strerror(errno));
    if (vm->pid == 0)
        child(h, vm, snapshot != NULL, fds);
    for (int i = 0; i < FDS; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    vm->control = harness_control_connect(vm);
}

/* --- the end ------------------------------------------------------------------------------------------------------------------------------ */

int harness_stop(struct harness_vm *vm) {
    struct deadline d = deadline_in_ms(20000);
    int status = -1, result = -1;
    (void)harness_request(vm, "stop", NULL, 0);
    vm->control = close_fd(vm->control);
    for (;;) {
        pid_t r = waitpid(vm->pid, &status, WNOHANG);
        if (r == vm->pid && WIFEXITED(status))
            result = WEXITSTATUS(status);
        if (r != 0)
            break;
        if (deadline_passed(d))
            (void)kill(vm->pid, SIGKILL);
        (void)usleep(2000);
    }
    json_decref(vm->status);
    vm->status = NULL;
    (void)dir_remove_tree(AT_FDCWD, vm->dir, NULL);
    return result;
}

const char *harness_snapshot(struct harness *h, bool fresh) {
    static char dir[HARNESS_PATH];
    static const char *const files[] = {"memory", "devices", "disk.img"};
    struct harness_vm vm;
    (void)harness_path(dir, "%s/snapshot-%s-%u-%u", h->work, h->kernel, h->vcpus, h->memory_mib);
    if (access(dir, F_OK) == 0 && !fresh)
        return dir;
    (void)dir_remove_tree(AT_FDCWD, dir, NULL);
    harness_new(&vm, false, h->work);
    harness_start(h, &vm, NULL);
    if (!harness_wait_state(&vm, "saved|failed", h->deadline_ms + 5000) || strcmp(harness_state(&vm), "saved") != 0) {
        json_t *console = harness_request(&vm, "console", "console", 1000);
        harness_die("template boot: %s\nconsole (base64): %s", vm.status ? json_dumps(vm.status, 0) : "no status",
                    console ? json_string_value(json_object_get(console, "data")) : "none");
    }
    _cleanup_free_ char *timings = json_dumps(json_object_get(vm.status, "timings"), 0);
    (void)fprintf(stderr, "harness: template %s: %s\n", h->kernel, timings);
    harness_make_dir(dir, 0755, 0);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        char from[HARNESS_PATH], to[HARNESS_PATH];
        int fd;
        if (rename(harness_path(from, "%s/%s", vm.dir, files[i]), harness_path(to, "%s/%s", dir, files[i])) < 0 ||
            chown(to, 0, 0) < 0 || chmod(to, 0444) < 0 || (fd = open(to, O_RDONLY | O_CLOEXEC)) < 0 || fsync(fd) < 0)
            harness_die("seal %s: %s", to, strerror(errno));
        (void)close(fd);
    }
    vm.control = close_fd(vm.control); /* saved was seen: space-vm ends */
    if (harness_stop(&vm) != 0)
        harness_die("space-vm did not end after the save");
    return dir;
}
