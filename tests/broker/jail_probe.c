/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that looks around in the broker's jails: run in the place of space-vm, it reports what it can reach, starts
 * itself as the VMM through the stub (it is /vm/preload.so there), collects that one's report, and answers on the
 * control socket. Static, so that it needs nothing of what it looks for. Tests only; trusts its input.
 *
 * Commands, one a message: "report" → {"vm": …, "vmm": …, "config": …}; "exit" → ends; "exit_vmm" → ends the VMM.
 * As a template boot it writes a pattern into memory, disk and devices first, so that there is something to seal.
 *
 * It also answers what the broker asks of a space-vm: `load`, and `snapshot` by writing a page of memory, device state and a
 * block of the disk. "behave WORD" makes the next one of these go wrong; "state" says what became of them.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIDS_TRIED 200000          /* signal 0 to each; the kernel's own maximum would take seconds */
#define SCATTERED_PAGES (64 * 256) /* all of 64 MiB: every other one is written */
#define FD_CONTROL 3               /* as the broker numbers them; the test compares with the configuration */
#define FD_STUB 5
#define FD_MEMORY 8
#define FD_DISK 9
#define FD_DEVICES 10
#define VMM_FD_MEMORY 3 /* in the VMM */
#define VMM_FD_DISK 4
#define REPORT_MAX 65536

static char report[REPORT_MAX];
static size_t report_len;

__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(report + report_len, sizeof(report) - report_len, fmt, ap);
    va_end(ap);
    if (n > 0 && report_len + (size_t)n < sizeof(report))
        report_len += (size_t)n;
}

static const char *separator(bool *first) {
    const char *s = *first ? "" : ", ";
    *first = false;
    return s;
}

/* --- who am I ------------------------------------------------------------------------------------------------------ */

static void report_identity(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2] = {{0}};
    struct utsname name;
    uid_t r, e, s;
    gid_t rg, eg, sg;
    unsigned bounding = 0;

    (void)getresuid(&r, &e, &s);
    (void)getresgid(&rg, &eg, &sg);
    (void)syscall(SYS_capget, &header, caps);
    for (unsigned long c = 0; prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; c++)
        bounding += prctl(PR_CAPBSET_READ, c, 0, 0, 0) == 1;
    (void)uname(&name);
    say("\"pid\": %d, \"ppid\": %d, \"uids\": [%u, %u, %u], \"gids\": [%u, %u, %u], \"groups\": %d, ", getpid(),
        getppid(), r, e, s, rg, eg, sg, getgroups(0, NULL));
    say("\"caps\": %u, \"bounding\": %u, \"no_new_privs\": %d, \"seccomp\": %d, \"securebits\": %d, \"hostname\": "
        "\"%s\", ",
        caps[0].effective | caps[0].permitted | caps[0].inheritable | caps[1].effective | caps[1].permitted |
            caps[1].inheritable,
        bounding, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_SECCOMP, 0, 0, 0, 0),
        prctl(PR_GET_SECUREBITS, 0, 0, 0, 0), name.nodename);
}

static void report_limits(void) {
    const struct {
        const char *name;
        int resource;
    } rows[] = {{"core", RLIMIT_CORE}, {"fsize", RLIMIT_FSIZE}, {"nofile", RLIMIT_NOFILE}, {"nproc", RLIMIT_NPROC}};
    bool first = true;

    say("\"limits\": {");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rlimit limit = {0};
        (void)getrlimit((__rlimit_resource_t)rows[i].resource, &limit);
        say("%s\"%s\": %llu", separator(&first), rows[i].name, (unsigned long long)limit.rlim_max);
    }
    say("}, ");
}

/* --- what can I reach ------------------------------------------------------------------------------------------------ */

static void report_processes(void) {
    bool first = true;
    say("\"processes\": [");
    for (pid_t pid = 1; pid <= PIDS_TRIED; pid++)
        if (pid != getpid() && (kill(pid, 0) == 0 || errno == EPERM))
            say("%s%d", separator(&first), pid);
    say("], ");
}

static void report_interfaces(void) {
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool first = true;
    say("\"interfaces\": [");
    for (int i = 1; i < 256; i++) {
        struct ifreq req = {.ifr_ifindex = i};
        if (ioctl(fd, SIOCGIFNAME, &req) < 0)
            continue;
        (void)ioctl(fd, SIOCGIFFLAGS, &req);
        say("%s{\"name\": \"%s\", \"up\": %s}", separator(&first), req.ifr_name,
            req.ifr_flags & IFF_UP ? "true" : "false");
    }
    say("], ");
    (void)close(fd);
}

/* The name of the error with which the kernel refuses each of these, "" when it does not. */
static void report_refusals(void) {
    static char stack[16384];
    const int families[] = {AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_VSOCK, AF_ALG};
    const char *const family_names[] = {"inet", "inet6", "netlink", "packet", "vsock", "alg"};
    bool first = true;

    (void)stack;
    say("\"refused\": {");
#define TRY(name, call) say("%s\"%s\": \"%s\"", separator(&first), name, (call) < 0 ? strerrorname_np(errno) : "")
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        TRY(family_names[i], socket(families[i], SOCK_DGRAM | SOCK_CLOEXEC, 0));
    TRY("unshare_user", unshare(CLONE_NEWUSER));
    TRY("unshare_mount", unshare(CLONE_NEWNS));
    TRY("mount", mount("t", "/", "tmpfs", 0, NULL));
    TRY("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
    TRY("ptrace", ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    TRY("bpf", syscall(SYS_bpf, 0, NULL, 0));
    TRY("keyctl", syscall(SYS_keyctl, 0, 0, 0, 0, 0));
    TRY("io_uring", syscall(SYS_io_uring_setup, 8, NULL));
    TRY("perf", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    TRY("clone3", syscall(SYS_clone3, NULL, 0));
    TRY("setuid", setresuid(0, 0, 0));
    TRY("mknod", mknod("/null", S_IFCHR | 0666, 0x103));
    TRY("chroot", chroot("/"));
    say("}, ");
}

static void report_file(const char *path, const struct stat *st, bool *first) {
    const char *type = S_ISREG(st->st_mode)    ? "file"
                       : S_ISDIR(st->st_mode)  ? "dir"
                       : S_ISLNK(st->st_mode)  ? "link"
                       : S_ISCHR(st->st_mode)  ? "char"
                       : S_ISSOCK(st->st_mode) ? "socket"
                                               : "other";
    bool writable = false, readable = false;
    int fd;

    if (S_ISDIR(st->st_mode)) {
        char inside[600];
        (void)snprintf(inside, sizeof(inside), "%s/probe", path);
        fd = open(inside, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        writable = fd >= 0 || access(path, W_OK) == 0;
        readable = access(path, R_OK) == 0;
    } else if (S_ISREG(st->st_mode) || S_ISCHR(st->st_mode)) {
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        writable = fd >= 0;
        if (fd >= 0)
            (void)close(fd);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        readable = fd >= 0;
    } else {
        return;
    }
    if (fd >= 0)
        (void)close(fd);
    say("%s{\"path\": \"%s\", \"type\": \"%s\", \"uid\": %u, \"mode\": %u, \"size\": %lld, \"readable\": %s, "
        "\"writable\": %s}",
        separator(first), path, type, st->st_uid, st->st_mode & 07777, (long long)st->st_size,
        readable ? "true" : "false", writable ? "true" : "false");
}

/* Everything but what is below /usr and /proc. */
static void report_tree(const char *path, bool *first) {
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        char below[512];
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        (void)snprintf(below, sizeof(below), "%s/%s", strcmp(path, "/") == 0 ? "" : path, entry->d_name);
        if (lstat(below, &st) < 0)
            continue;
        report_file(below, &st, first);
        if (S_ISDIR(st.st_mode) && strcmp(below, "/usr") != 0 && strcmp(below, "/proc") != 0)
            report_tree(below, first);
    }
    if (dir)
        (void)closedir(dir);
}

static void report_files(void) {
    struct statvfs vfs = {0};
    struct stat st;
    bool first = true;

    say("\"files\": [");
    if (stat("/", &st) == 0)
        report_file("/", &st, &first);
    report_tree("/", &first);
    say("], \"usr_read_only\": %s, ", statvfs("/usr", &vfs) == 0 ? vfs.f_flag & ST_RDONLY ? "true" : "false" : "null");
}

static void report_descriptors(void) {
    bool first = true;
    say("\"fds\": {");
    for (int fd = 0; fd < 1024; fd++) {
        struct stat st;
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fstat(fd, &st) < 0)
            continue;
        say("%s\"%d\": {\"kind\": \"%s\", \"access\": %d, \"size\": %lld}", separator(&first), fd,
            S_ISREG(st.st_mode)    ? "file"
            : S_ISCHR(st.st_mode)  ? "char"
            : S_ISSOCK(st.st_mode) ? "socket"
            : S_ISFIFO(st.st_mode) ? "pipe"
            : S_ISDIR(st.st_mode)  ? "dir"
                                   : "other",
            flags & O_ACCMODE, (long long)st.st_size);
    }
    say("}, ");
}

static void report_mounts(void) {
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char line[1024];
    bool first = true;

    say("\"mounts\": [");
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        say("%s\"%s\"", separator(&first), line);
    }
    say("]");
    if (f)
        (void)fclose(f);
}

static void report_all(void) {
    say("{");
    report_descriptors(); /* before the others open any */
    report_identity();
    report_limits();
    report_processes();
    report_interfaces();
    report_refusals();
    report_files();
    report_mounts();
    say("}");
}

/* --- as the VMM ---------------------------------------------------------------------------------------------------- */

static void write_pattern(int fd, off_t at, const char *text) {
    (void)!pwrite(fd, text, strlen(text), at);
}

static _Noreturn void vmm_main(bool boot) {
    if (boot) {
        write_pattern(VMM_FD_MEMORY, 0, "guest memory, first page");
        write_pattern(VMM_FD_MEMORY, 3 * 1024 * 1024, "guest memory, further up");
        write_pattern(VMM_FD_DISK, 8192, "written by the guest");
    }
    report_all();
    say("\n");
    (void)!write(1, report, report_len);
    for (;;)
        (void)pause();
}

/* --- as space-vm --------------------------------------------------------------------------------------------------- */

static void send_fds(int sock, const char *text, const int *fds, size_t n) {
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(8 * sizeof(int))];
    } control = {0};
    char copy[256];
    struct iovec iov = {.iov_base = copy, .iov_len = strlen(text)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

    memcpy(copy, text, strlen(text));
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n * sizeof(int));
    memcpy(CMSG_DATA(c), fds, n * sizeof(int));
    (void)!sendmsg(sock, &msg, MSG_NOSIGNAL);
}

/* Runs this program as the VMM and reads its report up to the newline. */
static size_t run_vmm(bool boot, bool blank, char *dst, size_t size) {
    int out[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    size_t len = 0;

    if (pipe2(out, O_CLOEXEC) < 0)
        return 0;
    send_fds(FD_STUB,
             boot ? "{\"argv\":[\"/vm/preload.so\",\"vmm\",\"boot\"],\"env\":[]}"
                  : "{\"argv\":[\"/vm/preload.so\",\"vmm\"],\"env\":[]}",
             (int[]){null >= 0 ? null : 0, out[1], 2, FD_MEMORY, FD_DISK}, blank ? 3 : 5);
    (void)close(out[1]);
    while (len < size - 1) {
        ssize_t n = read(out[0], dst + len, size - 1 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
        if (dst[len - 1] == '\n')
            break;
    }
    dst[len] = '\0';
    return len;
}

static struct {
    int disk;
    bool paused;
    unsigned snapshots;
    char behave[32], committed[64], snapshot[64];
} vm = {.disk = FD_DISK};

/* The text of a field, cut. Good enough for what the broker prints. */
static void field(const char *json, const char *key, char *dst, size_t size) {
    char want[64];
    const char *at;
    size_t len;

    (void)snprintf(want, sizeof(want), "\"%s\":", key);
    at = strstr(json, want);
    dst[0] = '\0';
    if (!at)
        return;
    at += strlen(want);
    at += *at == '"';
    len = strcspn(at, "\",}");
    (void)snprintf(dst, size, "%.*s", (int)len, at);
}

static bool behaves(const char *how) {
    bool yes = strcmp(vm.behave, how) == 0;
    if (yes)
        vm.behave[0] = '\0';
    return yes;
}

__attribute__((format(printf, 2, 3))) static void tell(int fd, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)!send(fd, text, (size_t)n, MSG_NOSIGNAL);
}

static ssize_t receive(int sock, char *data, size_t size, int *fds, size_t *n_fds) {
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(8 * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = data, .iov_len = size - 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof(control.room)};
    ssize_t n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);

    *n_fds = 0;
    for (struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&msg) : NULL; c; c = CMSG_NXTHDR(&msg, c))
        if (c->cmsg_type == SCM_RIGHTS) {
            *n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(fds, CMSG_DATA(c), *n_fds * sizeof(int));
        }
    data[n > 0 ? n : 0] = '\0';
    return n;
}

/* Waits for a request of the snapshot under way; false: the broker is gone. */
static bool next_is(int sock, const char *want) {
    char data[512], request[32];
    int fds[8];
    size_t n;
    if (receive(sock, data, sizeof(data), fds, &n) <= 0)
        return false;
    field(data, "request", request, sizeof(request));
    return strcmp(request, want) == 0;
}

/* Memory comes read-write, device state write-only; the disk is the VM's own. */
static bool snapshot(int sock, const char *seq, const char *key, bool stop, const int *fds) {
    unsigned n = ++vm.snapshots;
    bool stays = false;
    char text[64];

    (void)snprintf(text, sizeof(text), "snapshot %u", n);
    tell(sock, "{\"event\":\"status\",\"state\":\"running\"}");
    if (behaves("refuse")) {
        tell(sock,
             "{\"event\":\"done\",\"seq\":%s,\"ok\":false,\"error\":{\"code\":\"guest_busy\",\"message\":\"not now\"}}",
             seq);
        stays = true;
        goto out;
    }
    if (behaves("garbage")) {
        tell(sock, "{\"event\":\"snapshot\",\"seq\":%s,", seq);
        goto out;
    }
    if (behaves("hang"))
        for (;;)
            (void)pause();
    (void)!pwrite(fds[0], text, strlen(text), (off_t)n * 1024 * 1024);
    for (off_t page = behaves("scatter") ? 0 : SCATTERED_PAGES; page < SCATTERED_PAGES; page += 2)
        (void)!pwrite(fds[0], text, strlen(text), page * 4096);
    tell(sock, "{\"event\":\"snapshot\",\"seq\":%s,\"step\":\"copied\",\"pages\":1}", seq);
    if (!next_is(sock, "snapshot_stop") || behaves("die"))
        goto out;
    (void)!pwrite(fds[0], text, strlen(text), (off_t)n * 1024 * 1024 + 8192);
    if (!behaves("no_devices"))
        (void)!write(fds[1], "device state", 12);
    tell(sock, "{\"event\":\"snapshot\",\"seq\":%s,\"step\":\"stopped\"}", seq);
    if (!next_is(sock, "snapshot_go"))
        goto out;
    if (!behaves("keep"))
        for (size_t i = 0; i < 2; i++)
            (void)close(fds[i]);
    vm.paused = vm.paused || stop;
    (void)snprintf(vm.snapshot, sizeof(vm.snapshot), "%s", key);
    tell(sock, "{\"event\":\"done\",\"seq\":%s,\"ok\":true,\"pages\":2,\"ranges_file_bytes\":8192,\"stall_us\":1234}",
         seq);
    return true;
out:
    for (size_t i = 0; i < 2; i++)
        (void)close(fds[i]);
    return stays;
}

/* The disk alone: nothing comes with the request, and nothing is left behind but the broker's clone. */
static bool snapshot_disk(int sock, const char *seq) {
    vm.snapshots++;
    tell(sock, "{\"event\":\"snapshot\",\"seq\":%s,\"step\":\"copied\",\"pages\":0}", seq);
    if (!next_is(sock, "snapshot_stop") || behaves("die"))
        return false;
    tell(sock, "{\"event\":\"snapshot\",\"seq\":%s,\"step\":\"stopped\"}", seq);
    if (!next_is(sock, "snapshot_go"))
        return false;
    tell(sock, "{\"event\":\"done\",\"seq\":%s,\"ok\":true,\"pages\":0,\"ranges_file_bytes\":0,\"stall_us\":321}", seq);
    return true;
}

/* false: the connection is to be closed. */
static bool on_request(int sock, const char *data, const int *fds, size_t n_fds) {
    char request[32], seq[24], key[64], then[16];

    field(data, "request", request, sizeof(request));
    field(data, "seq", seq, sizeof(seq));
    field(data, "snapshot", key, sizeof(key));
    field(data, "then", then, sizeof(then));
    if (strcmp(request, "load") == 0 && n_fds == 3) {
        if (behaves("refuse")) {
            tell(sock, "{\"event\":\"done\",\"seq\":%s,\"ok\":false,\"error\":{\"code\":\"io\",\"message\":\"no\"}}",
                 seq);
            return true;
        }
        vm.disk = fds[1];
        (void)snprintf(vm.snapshot, sizeof(vm.snapshot), "%s", key);
        tell(sock, "{\"event\":\"done\",\"seq\":%s,\"ok\":true}", seq);
        return true;
    }
    if (strcmp(request, "snapshot") == 0 && n_fds == 2)
        return snapshot(sock, seq, key, strcmp(then, "stop") == 0, fds);
    if (strcmp(request, "snapshot_disk") == 0 && n_fds == 0)
        return snapshot_disk(sock, seq);
    if (strcmp(request, "snapshot_committed") == 0) {
        (void)snprintf(vm.committed, sizeof(vm.committed), "%s", key);
        tell(sock, "{\"event\":\"done\",\"seq\":%s,\"ok\":true}", seq);
        return true;
    }
    return false;
}

static void on_command(int fd, const char *command, const char *answer, pid_t vmm) {
    char block[64];
    unsigned n;
    int status = 0;

    if (strcmp(command, "report") == 0)
        (void)!send(fd, answer, strlen(answer), MSG_NOSIGNAL);
    else if (strcmp(command, "exit") == 0)
        _exit(0);
    else if (strncmp(command, "behave ", 7) == 0) {
        (void)snprintf(vm.behave, sizeof(vm.behave), "%s", command + 7);
        tell(fd, "{}");
    } else if (sscanf(command, "write %u", &n) == 1) {
        (void)snprintf(block, sizeof(block), "disk %u", n);
        (void)!pwrite(vm.disk, block, strlen(block), (off_t)n * 256 * 1024);
        tell(fd, "{}");
    } else if (strcmp(command, "state") == 0)
        tell(fd, "{\"paused\":%s,\"snapshots\":%u,\"snapshot\":\"%s\",\"committed\":\"%s\"}",
             vm.paused ? "true" : "false", vm.snapshots, vm.snapshot, vm.committed);
    else if (strcmp(command, "exit_vmm") == 0) {
        (void)kill(vmm, SIGKILL);
        (void)waitpid(vmm, &status, 0);
        (void)!send(fd, "{\"dead\": true}", 14, MSG_NOSIGNAL);
    }
}

static void serve(const char *answer, pid_t vmm) {
    static char data[65536];
    for (;;) {
        int fd = accept4(FD_CONTROL, NULL, NULL, SOCK_CLOEXEC), fds[8];
        size_t n_fds;

        while (fd >= 0 && receive(fd, data, sizeof(data), fds, &n_fds) > 0)
            if (data[0] != '{')
                on_command(fd, data, answer, vmm);
            else if (!on_request(fd, data, fds, n_fds))
                break;
        if (fd >= 0)
            (void)close(fd);
    }
}

int main(int argc, char **argv) {
    static char config[65536], vmm_report[REPORT_MAX], answer[3 * REPORT_MAX];
    ssize_t n;
    bool boot, blank;

    if (argc >= 2 && strcmp(argv[1], "vmm") == 0)
        vmm_main(argc == 3);
    if (argc != 3)
        return 64;
    report_all();
    n = read((int)strtol(argv[1], NULL, 10), config, sizeof(config) - 1);
    boot = n > 0 && strstr(config, "\"mode\":\"template_boot\"");
    blank = n > 0 && strstr(config, "\"mode\":\"blank\"");
    if (run_vmm(boot, blank, vmm_report, sizeof(vmm_report)) == 0)
        (void)snprintf(vmm_report, sizeof(vmm_report), "null");
    if (boot)
        (void)!write(FD_DEVICES, "device state", 12);
    (void)snprintf(answer, sizeof(answer), "{\"vm\": %s, \"vmm\": %s, \"config\": %s, \"stub_pid\": %s}", report,
                   vmm_report, n > 0 ? config : "null", argv[2]);
    serve(answer, (pid_t)strtol(argv[2], NULL, 10));
}
