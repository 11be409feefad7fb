/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's part of a VM's life, without the jail; see harness.h. */
#include "harness.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/text.h"
#include "vmm/driver.h"
#include "vmm/stub.h"
#include "wire/record.h"
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <linux/fs.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static _Noreturn void die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    (void)fprintf(stderr, "harness: ");
    (void)vfprintf(stderr, fmt, ap);
    (void)fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}

static const char *path(char dst[HARNESS_PATH], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static const char *path(char dst[HARNESS_PATH], const char *fmt, ...) {
    va_list ap;
    int n;
    va_start(ap, fmt);
    n = vsnprintf(dst, HARNESS_PATH, fmt, ap);
    va_end(ap);
    if (n < 0 || n >= HARNESS_PATH)
        die("path too long: %s", dst);
    return dst;
}

double harness_now_ms(void) {
    return (double)clock_monotonic_ns() / 1e6;
}

/* --- settings ------------------------------------------------------------------------------------------------------------ */

static const struct option options[] = {
    {"work", required_argument, NULL, 'w'},     {"space-vm", required_argument, NULL, 'v'},
    {"preload", required_argument, NULL, 'p'},  {"qemu", required_argument, NULL, 'q'},
    {"kernel", required_argument, NULL, 'k'},   {"kernel-dir", required_argument, NULL, 'K'},
    {"initrd", required_argument, NULL, 'i'},   {"disk", required_argument, NULL, 'd'},
    {"vcpus", required_argument, NULL, 'c'},    {"memory", required_argument, NULL, 'm'},
    {"probe", required_argument, NULL, 'r'},    {"start", required_argument, NULL, 's'},
    {"accelerator", required_argument, NULL, 'a'}, {"deadline", required_argument, NULL, 't'},
    {NULL, 0, NULL, 0},
};

static void copy(char *dst, size_t size, const char *src) {
    if (!text_copy(dst, size, src))
        die("too long: %s", src);
}

static void set_option(struct harness *h, char key, const char *kernel_dir[1]) {
    switch (key) {
    case 'w': copy(h->work, sizeof(h->work), optarg); break;
    case 'v': copy(h->space_vm, sizeof(h->space_vm), optarg); break;
    case 'p': copy(h->preload, sizeof(h->preload), optarg); break;
    case 'q': copy(h->qemu, sizeof(h->qemu), optarg); break;
    case 'k': copy(h->kernel, sizeof(h->kernel), optarg); break;
    case 'K': kernel_dir[0] = optarg; break;
    case 'i': copy(h->initrd, sizeof(h->initrd), optarg); break;
    case 'd': copy(h->disk, sizeof(h->disk), optarg); break;
    case 'c': h->vcpus = (unsigned)strtoul(optarg, NULL, 10); break;
    case 'm': h->memory_mib = (unsigned)strtoul(optarg, NULL, 10); break;
    case 'r': h->probe = optarg; break;
    case 's': h->start = optarg; break;
    case 'a': copy(h->accelerator, sizeof(h->accelerator), optarg); break;
    case 't': h->deadline_ms = (unsigned)strtoul(optarg, NULL, 10); break;
    default: die("unknown option");
    }
}

void harness_init(struct harness *h, int argc, char **argv) {
    const char *kernel_dir[1] = {"/var/lib/space/kernels"};
    struct vmm_probe probe;
    struct sp_error err = {0};
    int key;
    *h = (struct harness){.vcpus = 1, .memory_mib = 256, .uid = 719000, .deadline_ms = 120000};
    copy(h->qemu, sizeof(h->qemu), "/usr/bin/qemu-system-x86_64");
    copy(h->kernel, sizeof(h->kernel), "stock");
    copy(h->accelerator, sizeof(h->accelerator), "tcg");
    while ((key = getopt_long(argc, argv, "", options, NULL)) != -1)
        set_option(h, (char)key, kernel_dir);
    h->acpi = strcmp(h->kernel, "stock") == 0;
    (void)path(h->kernel_file, "%s/%s/%s", kernel_dir[0], h->kernel, h->acpi ? "vmlinuz" : "vmlinux");
    if (!h->initrd[0])
        (void)path(h->initrd, "%s/%s/initrd.cpio", kernel_dir[0], h->kernel);
    if (!h->work[0] || !h->space_vm[0] || !h->preload[0] || !h->disk[0])
        die("--work, --space-vm, --preload and --disk are needed");
    if (qemu_driver.probe(h->qemu, deadline_in_ms(10000), &probe, &err) < 0)
        die("%s", err.text);
    copy(h->qemu_version, sizeof(h->qemu_version), probe.version);
    h->tsc_khz = host_tsc_khz();
    (void)umask(022);
}

/* --- files --------------------------------------------------------------------------------------------------------------- */

static void reflink(const char *from, const char *to, mode_t mode, uid_t uid) {
    int source = open(from, O_RDONLY | O_CLOEXEC), target = open(to, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (source < 0 || target < 0 || ioctl(target, FICLONE, source) < 0)
        die("reflink %s to %s: %s", from, to, strerror(errno));
    if (fchown(target, uid, uid) < 0)
        die("chown %s: %s", to, strerror(errno));
    (void)close(source);
    (void)close(target);
}

static void make_dir(const char *dir, mode_t mode, uid_t uid) {
    if (mkdir(dir, mode) < 0 && errno != EEXIST)
        die("mkdir %s: %s", dir, strerror(errno));
    if (chown(dir, uid, uid) < 0)
        die("chown %s: %s", dir, strerror(errno));
}

static void link_to(const char *target, const char *name) {
    if (symlink(target, name) < 0)
        die("symlink %s: %s", name, strerror(errno));
}

/* An image from another file system is copied into the work directory once. */
static void import_disk(struct harness *h) {
    char to[HARNESS_PATH], command[3 * HARNESS_PATH];
    pid_t pid;
    int status;
    (void)path(to, "%s/template.img", h->work);
    if (access(to, F_OK) < 0) {
        (void)text_printf(command, sizeof(command), "cp --sparse=always '%s' '%s'", h->disk, to);
        if ((pid = fork()) == 0) {
            execl("/bin/sh", "sh", "-c", command, (char *)NULL);
            _exit(127);
        }
        if (waitpid(pid, &status, 0) < 0 || status != 0)
            die("cp %s failed", h->disk);
    }
    copy(h->disk, sizeof(h->disk), to);
}

/* <dir>/vm as vm_config.h describes it. */
static int make_files(const struct harness *h, const struct harness_vm *vm, const char *snapshot) {
    char a[HARNESS_PATH], b[HARNESS_PATH];
    int devices;
    make_dir(vm->dir, 0755, h->uid);
    make_dir(path(a, "%s/vm", vm->dir), 0755, h->uid);
    link_to(h->kernel_file, path(a, "%s/vm/kernel", vm->dir));
    link_to(h->initrd, path(a, "%s/vm/initrd", vm->dir));
    link_to(h->preload, path(a, "%s/vm/preload.so", vm->dir));
    if (snapshot) {
        reflink(path(a, "%s/disk.img", snapshot), path(b, "%s/vm/disk.img", vm->dir), 0600, h->uid);
        link_to(path(a, "%s/memory", snapshot), path(b, "%s/vm/memory", vm->dir));
        devices = open(path(a, "%s/devices", snapshot), O_RDONLY | O_CLOEXEC);
    } else {
        reflink(h->disk, path(b, "%s/vm/disk.img", vm->dir), 0600, h->uid);
        int memory = open(path(b, "%s/vm/memory", vm->dir), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (memory < 0 || ftruncate(memory, (off_t)h->memory_mib << 20) < 0 || fchown(memory, h->uid, h->uid) < 0)
            die("memory file: %s", strerror(errno));
        (void)close(memory);
        devices = open(path(a, "%s/devices", vm->dir), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    }
    if (devices < 0)
        die("devices: %s", strerror(errno));
    return devices;
}

/* --- descriptors ----------------------------------------------------------------------------------------------------------- */

static int listener(const struct harness_vm *vm, const char *name, int type) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (!text_printf(address.sun_path, sizeof(address.sun_path), "%s/%s", vm->dir, name) || fd < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 64) < 0)
        die("%s: %s", name, strerror(errno));
    return fd;
}

/* A tap that nothing else sees: in a network namespace of its own, kept alive by the descriptor. */
static int make_tap(void) {
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), tun, sock;
    (void)text_copy(request.ifr_name, sizeof(request.ifr_name), "tap0");
    if (home < 0 || unshare(CLONE_NEWNET) < 0)
        die("network namespace: %s (root is needed)", strerror(errno));
    tun = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (tun < 0 || ioctl(tun, TUNSETIFF, &request) < 0)
        die("tap: %s", strerror(errno));
    sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_flags = IFF_UP;
    if (sock < 0 || ioctl(sock, SIOCSIFFLAGS, &request) < 0)
        die("tap up: %s", strerror(errno));
    (void)close(sock);
    if (setns(home, CLONE_NEWNET) < 0)
        die("setns: %s", strerror(errno));
    (void)close(home);
    return tun;
}

/* --- the processes ------------------------------------------------------------------------------------------------------------- */

static json_t *command_json(const char *command) {
    return json_pack("{s:[s, s, s], s:s, s:i}", "argv", "/bin/sh", "-c", command, "user", "root", "timeout_ms", 10000);
}

static char *config_json(const struct harness *h, const struct harness_vm *vm, bool clone, const int fds[5]) {
    char dir[HARNESS_PATH], machine_id[33];
    uint8_t bytes[16];
    json_t *broker, *config;
    char *text;
    random_bytes(bytes, sizeof(bytes));
    text_hex(machine_id, bytes, sizeof(bytes));
    broker = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:{s:i, s:i, s:i, s:i, s:i}}", "id", vm->id, "mode",
                       clone ? "clone" : "template_boot", "kernel", h->kernel, "accelerator", h->accelerator, "vcpus",
                       (int)h->vcpus, "memory_mib", (int)h->memory_mib, "qemu", h->qemu, "vm_dir",
                       path(dir, "%s/vm", vm->dir), "fds", "control", fds[0], "guest", fds[1], "stub", fds[2], "tap",
                       fds[3], "devices", fds[4]);
    config = json_pack("{s:b, s:I, s:s, s:i, s:{s:s, s:s, s:[s]}, s:i, s:i}", "acpi", (int)h->acpi, "tsc_khz",
                       (json_int_t)h->tsc_khz, "qemu_version", h->qemu_version, "generation", 1, "identity", "hostname",
                       "harness", "machine_id", machine_id, "env", "SPACE_TEST=1", "output_window", 262144,
                       "deadline_ms", (int)h->deadline_ms);
    if (!broker || !config)
        die("configuration");
    if (h->probe && !clone)
        (void)json_object_set_new(config, "probe", command_json(h->probe));
    if (h->start && !clone)
        (void)json_object_set_new(config, "start", command_json(h->start));
    json_t *root = json_pack("{s:o, s:o}", "broker", broker, "config", config);
    text = json_print(root);
    json_decref(root);
    return text;
}

static void drop(uid_t uid) {
    if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
        _exit(126);
}

/* In the process that becomes space-vm: makes the stub, then itself. */
static _Noreturn void child(const struct harness *h, const struct harness_vm *vm, bool clone, int fds[5]) {
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
    for (int i = 0; i < 5; i++)
        (void)fcntl(fds[i], F_SETFD, 0);
    pid = fork();
    if (pid < 0)
        _exit(126);
    if (pid == 0) {
        (void)close(stub[0]);
        drop(h->uid);
        vmm_stub_serve(stub[1]);
    }
    (void)close(stub[1]);
    drop(h->uid);
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)text_printf(number, sizeof(number), "%d", config);
    (void)text_printf(pid_text, sizeof(pid_text), "%d", (int)pid);
    execl(h->space_vm, "space-vm", number, pid_text, (char *)NULL);
    _exit(127);
}

static int control_connect(const struct harness_vm *vm) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (!text_printf(address.sun_path, sizeof(address.sun_path), "%s/control.sock", vm->dir) || fd < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        die("control.sock: %s", strerror(errno));
    return fd;
}

void harness_start(const struct harness *h, struct harness_vm *vm, const char *snapshot) {
    int fds[5];
    *vm = (struct harness_vm){.control = -1};
    id_generate(vm->id, snapshot ? "sbx" : "tpb");
    (void)path(vm->dir, "%s/%s", h->work, vm->id);
    fds[4] = make_files(h, vm, snapshot);
    fds[0] = listener(vm, "control.sock", SOCK_SEQPACKET);
    fds[1] = listener(vm, "guest.sock", SOCK_STREAM);
    fds[2] = -1;
    fds[3] = make_tap();
    vm->pid = fork();
    if (vm->pid < 0)
        die("fork: %s", strerror(errno));
    if (vm->pid == 0)
        child(h, vm, snapshot != NULL, fds);
    for (int i = 0; i < 5; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    vm->control = control_connect(vm);
}

/* --- control.sock ------------------------------------------------------------------------------------------------------------------ */

/* Next message, NULL at the end or when time is up; a status replaces the last one. */
static json_t *next_event(struct harness_vm *vm, struct deadline d) {
    static char text[65536];
    struct pollfd p = {.fd = vm->control, .events = POLLIN};
    struct sp_error err = {0};
    json_t *event = NULL;
    ssize_t n;
    if (vm->control < 0 || poll(&p, 1, deadline_poll_ms(d)) <= 0)
        return NULL;
    n = recv(vm->control, text, sizeof(text), 0);
    if (n <= 0) {
        vm->control = close_fd(vm->control);
        return NULL;
    }
    if (json_parse(text, (size_t)n, sizeof(text), &event, &err) < 0)
        die("control.sock: %s", err.text);
    if (strcmp(json_string_value(json_object_get(event, "event")), "status") == 0) {
        json_decref(vm->status);
        vm->status = json_incref(event);
    }
    return event;
}

const char *harness_state(const struct harness_vm *vm) {
    const char *state = vm->status ? json_string_value(json_object_get(vm->status, "state")) : NULL;
    return state ? state : "";
}

static bool is_among(const char *states, const char *state) {
    size_t n = strlen(state);
    for (const char *s = states; n > 0 && (s = strstr(s, state)); s += n)
        if ((s == states || s[-1] == '|') && (s[n] == '\0' || s[n] == '|'))
            return true;
    return false;
}

bool harness_wait_state(struct harness_vm *vm, const char *states, unsigned timeout_ms) {
    struct deadline d = deadline_in_ms(timeout_ms);
    while (!is_among(states, harness_state(vm))) {
        json_t *event = next_event(vm, d);
        if (!event)
            return false;
        json_decref(event);
    }
    return true;
}

double harness_timing(const struct harness_vm *vm, const char *step) {
    const json_t *value = json_object_get(json_object_get(vm->status, "timings"), step);
    return json_is_number(value) ? json_number_value(value) : -1;
}

pid_t harness_vmm_pid(const struct harness_vm *vm) {
    return (pid_t)json_integer_value(json_object_get(vm->status, "vmm_pid"));
}

json_t *harness_request(struct harness_vm *vm, const char *request, const char *event, unsigned timeout_ms) {
    struct deadline d = deadline_in_ms(timeout_ms);
    char text[64];
    (void)text_printf(text, sizeof(text), "{\"request\":\"%s\"}", request);
    if (vm->control < 0 || send(vm->control, text, strlen(text), MSG_NOSIGNAL) < 0)
        return NULL;
    while (event) {
        json_t *message = next_event(vm, d);
        if (!message || strcmp(json_string_value(json_object_get(message, "event")), event) == 0)
            return message;
        json_decref(message);
    }
    return NULL;
}

/* --- guest.sock ----------------------------------------------------------------------------------------------------------------------- */

int harness_connect(const struct harness_vm *vm, unsigned port, char *error, size_t size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 10};
    char line[128];
    size_t n = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!text_printf(address.sun_path, sizeof(address.sun_path), "%s/guest.sock", vm->dir) || fd < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        die("guest.sock: %s", strerror(errno));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    (void)text_printf(line, sizeof(line), "CONNECT %u\n", port);
    (void)send(fd, line, strlen(line), MSG_NOSIGNAL);
    while (n < sizeof(line) - 1 && recv(fd, line + n, 1, 0) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
    if (text_starts_with(line, "OK "))
        return fd;
    (void)text_copy(error, size, line);
    (void)close(fd);
    return -1;
}

static json_t *pong_json(const struct record *rec) {
    json_t *fields = json_object();
    struct view cursor = rec->payload;
    struct record_field f;
    while (record_field_next(&cursor, &f)) {
        uint64_t number;
        char string[256];
        if (record_get_u64(rec, (enum record_tag)f.tag, &number))
            (void)json_object_set_new(fields, record_tag_name(f.tag), json_integer((json_int_t)number));
        else if (record_get_string(rec, (enum record_tag)f.tag, string, sizeof(string)) > 0)
            (void)json_object_set_new(fields, record_tag_name(f.tag), json_string(string));
    }
    return fields;
}

json_t *harness_ping(const struct harness_vm *vm) {
    _cleanup_buf_ struct buf request = {0};
    struct record_reader reader = {0};
    struct record rec;
    char chunk[4096], error[128];
    json_t *fields = NULL;
    int fd = harness_connect(vm, 1, error, sizeof(error));
    if (fd < 0)
        return NULL;
    buf_init(&request, 256);
    (void)record_end(&request, record_begin(&request, REC_PING));
    (void)send(fd, request.data, request.len, MSG_NOSIGNAL);
    while (!fields) {
        ssize_t n = recv(fd, chunk, sizeof(chunk), 0);
        struct view in = {.p = (const uint8_t *)chunk, .len = n > 0 ? (size_t)n : 0};
        int r = n > 0 ? record_next(&reader, &in, &rec) : -1;
        if (r < 0)
            break;
        if (r > 0 && rec.type == REC_PONG)
            fields = pong_json(&rec);
    }
    record_reader_done(&reader);
    (void)close(fd);
    return fields;
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
    static const char *const files[] = {"vm/memory", "devices", "vm/disk.img"}, *const names[] = {"memory", "devices",
                                                                                                "disk.img"};
    struct harness_vm vm;
    make_dir(h->work, 0755, 0);
    import_disk(h);
    (void)path(dir, "%s/snapshot-%s-%u-%u", h->work, h->kernel, h->vcpus, h->memory_mib);
    if (access(dir, F_OK) == 0 && !fresh)
        return dir;
    (void)dir_remove_tree(AT_FDCWD, dir, NULL);
    harness_start(h, &vm, NULL);
    if (!harness_wait_state(&vm, "saved|failed", h->deadline_ms + 5000) || strcmp(harness_state(&vm), "saved") != 0) {
        json_t *console = harness_request(&vm, "console", "console", 1000);
        die("template boot: %s\nconsole (base64): %s", vm.status ? json_dumps(vm.status, 0) : "no status",
            console ? json_string_value(json_object_get(console, "data")) : "none");
    }
    (void)fprintf(stderr, "harness: template %s: %s\n", h->kernel, json_dumps(json_object_get(vm.status, "timings"), 0));
    make_dir(dir, 0755, 0);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        char from[HARNESS_PATH], to[HARNESS_PATH];
        int fd;
        if (rename(path(from, "%s/%s", vm.dir, files[i]), path(to, "%s/%s", dir, names[i])) < 0 ||
            chown(to, 0, 0) < 0 || chmod(to, 0444) < 0 || (fd = open(to, O_RDONLY | O_CLOEXEC)) < 0 || fsync(fd) < 0)
            die("seal %s: %s", to, strerror(errno));
        (void)close(fd);
    }
    vm.control = close_fd(vm.control); /* saved was seen: space-vm ends */
    if (harness_stop(&vm) != 0)
        die("space-vm did not end after the save");
    return dir;
}
