/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that looks around in the broker's jails: run in the place of space-vm, it reports what it can reach, starts
 * itself as the VMM through the stub (it is /vm/preload.so there), collects that one's report, and answers on the
 * control socket. Static, so that it needs nothing of what it looks for. Tests only; trusts its input.
 *
 * Commands, one a message: "report" → {"vm": …, "vmm": …, "config": …}; "exit" → ends; "exit_vmm" → ends the VMM.
 * As a template boot it writes a pattern into memory, disk and devices first, so that there is something to seal.
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

#define PIDS_TRIED 200000 /* signal 0 to each; the kernel's own maximum would take seconds */
#define FD_CONTROL 3      /* as the broker numbers them; the test compares with the configuration */
#define FD_STUB 5
#define FD_DEVICES 7
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

static void write_pattern(const char *path, off_t at, const char *text) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)!pwrite(fd, text, strlen(text), at);
    (void)close(fd);
}

static _Noreturn void vmm_main(bool boot) {
    if (boot) {
        write_pattern("/vm/memory", 0, "guest memory, first page");
        write_pattern("/vm/memory", 3 * 1024 * 1024, "guest memory, further up");
        write_pattern("/vm/disk.img", 8192, "written by the guest");
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
        char room[CMSG_SPACE(3 * sizeof(int))];
    } control = {0};
    char copy[256];
    struct iovec iov = {.iov_base = copy, .iov_len = strlen(text)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof(control.room)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

    memcpy(copy, text, strlen(text));
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n * sizeof(int));
    memcpy(CMSG_DATA(c), fds, n * sizeof(int));
    (void)!sendmsg(sock, &msg, MSG_NOSIGNAL);
}

/* Runs this program as the VMM and reads its report up to the newline. */
static size_t run_vmm(bool boot, char *dst, size_t size) {
    int out[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    size_t len = 0;

    if (pipe2(out, O_CLOEXEC) < 0)
        return 0;
    send_fds(FD_STUB,
             boot ? "{\"argv\":[\"/vm/preload.so\",\"vmm\",\"boot\"],\"env\":[]}"
                  : "{\"argv\":[\"/vm/preload.so\",\"vmm\"],\"env\":[]}",
             (int[]){null >= 0 ? null : 0, out[1], 2}, 3);
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

static void serve(const char *answer, pid_t vmm) {
    for (;;) {
        int fd = accept4(FD_CONTROL, NULL, NULL, SOCK_CLOEXEC);
        char command[64];
        ssize_t n;

        while (fd >= 0 && (n = recv(fd, command, sizeof(command) - 1, 0)) > 0) {
            command[n] = '\0';
            if (strcmp(command, "report") == 0)
                (void)!send(fd, answer, strlen(answer), MSG_NOSIGNAL);
            else if (strcmp(command, "exit") == 0)
                _exit(0);
            else if (strcmp(command, "exit_vmm") == 0) {
                int status = 0;
                (void)kill(vmm, SIGKILL);
                (void)waitpid(vmm, &status, 0);
                (void)!send(fd, "{\"dead\": true}", 14, MSG_NOSIGNAL);
            }
        }
        if (fd >= 0)
            (void)close(fd);
    }
}

int main(int argc, char **argv) {
    static char config[65536], vmm_report[REPORT_MAX], answer[3 * REPORT_MAX];
    ssize_t n;
    bool boot;

    if (argc >= 2 && strcmp(argv[1], "vmm") == 0)
        vmm_main(argc == 3);
    if (argc != 3)
        return 64;
    report_all();
    n = read((int)strtol(argv[1], NULL, 10), config, sizeof(config) - 1);
    boot = n > 0 && strstr(config, "\"mode\":\"template_boot\"");
    if (run_vmm(boot, vmm_report, sizeof(vmm_report)) == 0)
        (void)snprintf(vmm_report, sizeof(vmm_report), "null");
    if (boot)
        (void)!write(FD_DEVICES, "device state", 12);
    (void)snprintf(answer, sizeof(answer), "{\"vm\": %s, \"vmm\": %s, \"config\": %s, \"stub_pid\": %s}", report,
                   vmm_report, n > 0 ? config : "null", argv[2]);
    serve(answer, (pid_t)strtol(argv[2], NULL, 10));
}
