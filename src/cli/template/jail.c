/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes: the *keeper* makes the namespaces, mounts the scratch file system and, after the unpacker is gone, runs
 * mke2fs on the result; the *unpacker* (its child, pid 1 of a pid namespace) pivots away, drops and unpacks. The keeper
 * never follows a name inside the tree. When either dies, the kernel takes the mounts and the loop device back.
 */
#include "cli/template/jail.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "io/spawn.h"
#include <cap-ng.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define BUILD_TIMEOUT_MS (30 * 60 * 1000ull)
#define UNPACK_ADDRESS_SPACE (2ull << 30)
#define UNPACK_CPU_SECONDS 1200

enum message_kind { MESSAGE_PROGRESS, MESSAGE_REPORT };
struct progress_message {
    uint32_t kind;
    struct unpack_counts counts;
};
struct report_message {
    uint32_t kind;
    struct build_report report;
};

static const char *const mke2fs_env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "E2FSPROGS_FAKE_TIME=1700000000", NULL};
#define IMAGE_UUID "5a0ace00-0000-4000-8000-000000000001"
static const char image_options[] =
    "hash_seed=" IMAGE_UUID ",lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0,nodiscard";
static const char scratch_options[] = "hash_seed=" IMAGE_UUID ",lazy_itable_init=1,nodiscard";

static int run_tool(const char *const *argv, struct sp_error *err) {
    _cleanup_buf_ struct buf out = {0};
    struct spawn_options opt = {.argv = argv, .env = mke2fs_env};
    buf_init(&out, 16384);
    int r = spawn_run(&opt, NULL, 0, deadline_in_ms(BUILD_TIMEOUT_MS), &out, NULL, err);
    return r < 0 ? sp_error_wrap(err, "%s", argv[0]) : 0;
}

static int make_sparse(const char *path, uint64_t size, struct sp_error *err) {
    _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
        return sp_error_errno(err, errno, "create", "%s", path);
    return 0;
}

int build_make_image(const char *tree, const char *image, uint64_t disk_mib, struct sp_error *err) {
    const char *const argv[] = {"/usr/sbin/mke2fs", "-q", "-F",          "-t", "ext4", "-m",  "1", "-L", "root", "-U",
                                IMAGE_UUID,         "-E", image_options, "-d", tree,   image, NULL};
    int r = make_sparse(image, disk_mib << 20, err);
    if (r < 0 || (r = run_tool(argv, err)) == 0)
        return r;
    return err && strstr(err->text, "Could not allocate")
               ? sp_error_field(err, SP_E_INVALID, "disk_mib", "the content does not fit into a disk of %llu MiB",
                                (unsigned long long)disk_mib)
               : r;
}

/* The scratch file system bounds what hostile content can take: bytes and inodes. Mounted in the keeper's namespace only. */
static int mount_scratch(const struct build_paths *p, uint64_t disk_mib, struct sp_error *err) {
    const char *const mkfs[] = {
        "/usr/sbin/mke2fs", "-q",       "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-E",
        scratch_options,    p->scratch, NULL};
    const char *const mnt[] = {"/bin/mount", "-o", "loop,nodev,nosuid,noexec,noatime", p->scratch, p->tree, NULL};
    int r;
    if ((r = make_sparse(p->scratch, disk_mib << 20, err)) < 0 || (r = run_tool(mkfs, err)) < 0 ||
        (r = dir_ensure(AT_FDCWD, p->tree, 0700, (uid_t)-1, (gid_t)-1, err)) < 0)
        return r;
    if ((r = run_tool(mnt, err)) < 0)
        return sp_error_wrap(err, "no loop device for the scratch file system");
    char lost[600];
    if (text_printf(lost, sizeof lost, "%s/lost+found", p->tree))
        (void)rmdir(lost);
    return 0;
}

static int bind_readonly(const char *from, const char *to, struct sp_error *err) {
    if (mount(from, to, NULL, MS_BIND | MS_REC, NULL) < 0 ||
        mount(NULL, to, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0)
        return sp_error_errno(err, errno, "bind", "%s", from);
    return 0;
}

static int make_dir(const char *root, const char *name, char dst[640], struct sp_error *err) {
    if (!text_printf(dst, 640, "%s/%s", root, name))
        return sp_error_set(err, SP_E_INVALID, "path too long");
    return mkdir(dst, 0755) < 0 ? sp_error_errno(err, errno, "mkdir", "%s", dst) : 0;
}

static int link_usr(const char *root, struct sp_error *err) {
    static const char *const links[] = {"bin", "sbin", "lib", "lib64"};
    char path[640], target[32];
    for (size_t i = 0; i < ARRAY_SIZE(links); i++)
        if (!text_printf(path, sizeof path, "%s/%s", root, links[i]) ||
            !text_printf(target, sizeof target, "usr/%s", links[i]) || symlink(target, path) < 0)
            return sp_error_errno(err, errno, "symlink", "%s", links[i]);
    return 0;
}

/* The one device a program expects; the tmpfs itself takes none. */
static int bind_null(const char *root, struct sp_error *err) {
    char dev[640], null[640];
    int r = make_dir(root, "dev", dev, err);
    if (r < 0)
        return r;
    if (!text_printf(null, sizeof null, "%s/dev/null", root))
        return sp_error_set(err, SP_E_INVALID, "path too long");
    _cleanup_close_ int fd = open(null, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 || mount("/dev/null", null, NULL, MS_BIND, NULL) < 0)
        return sp_error_errno(err, errno, "bind", "/dev/null");
    return 0;
}

/* Root for umoci: the host's /usr and the image read-only, the scratch file system at /bundle. */
static int make_tool_root(const struct template_build *b, const struct build_paths *p, const char *root,
                          struct sp_error *err) {
    char usr[640], image[640], tmp[640], proc[640], bundle[640];
    int r;
    if (mkdir(root, 0755) < 0 || mount("jail", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=755") < 0)
        return sp_error_errno(err, errno, "mount", "tmpfs for the build jail");
    if ((r = link_usr(root, err)) < 0 || (r = bind_null(root, err)) < 0 || (r = make_dir(root, "usr", usr, err)) < 0 ||
        (r = bind_readonly("/usr", usr, err)) < 0 || (r = make_dir(root, "image", image, err)) < 0 ||
        (r = bind_readonly(b->source, image, err)) < 0 || (r = make_dir(root, "tmp", tmp, err)) < 0 ||
        (r = make_dir(root, "proc", proc, err)) < 0 || (r = make_dir(root, "bundle", bundle, err)) < 0)
        return r;
    if (mount("proc", proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return sp_error_errno(err, errno, "mount", "proc");
    if (mount(p->tree, bundle, NULL, MS_BIND, NULL) < 0)
        return sp_error_errno(err, errno, "bind", "scratch");
    return 0;
}

static int pivot_into(const char *root, struct sp_error *err) {
    if (mount(root, root, NULL, MS_BIND | MS_REC, NULL) < 0 || chdir(root) < 0 ||
        syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return sp_error_errno(err, errno, "pivot_root", "%s", root);
    return 0;
}

/* Ownership and modes of other users' files need these four; file capabilities the fifth. Nothing else is kept. */
static int drop_privileges(struct sp_error *err) {
    const struct rlimit cpu = {UNPACK_CPU_SECONDS, UNPACK_CPU_SECONDS}, core = {0, 0};
    capng_clear(CAPNG_SELECT_BOTH);
    if (capng_updatev(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED | CAPNG_INHERITABLE | CAPNG_BOUNDING_SET, CAP_CHOWN,
                      CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_SETFCAP, -1) < 0 ||
        capng_apply(CAPNG_SELECT_BOTH) < 0)
        return sp_error_set(err, SP_E_IO, "the build jail cannot drop its capabilities");
    (void)setrlimit(RLIMIT_CORE, &core);
    (void)setrlimit(RLIMIT_CPU, &cpu);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return sp_error_errno(err, errno, "prctl", "no_new_privs");
    return 0;
}

struct jail {
    const struct template_build *b;
    const struct build_paths *paths;
    int report_fd; /* seqpacket to the parent */
    int source_fd; /* tar only */
};

static void send_progress(void *user, const struct unpack_counts *c) {
    const struct jail *j = user;
    struct progress_message m = {.kind = MESSAGE_PROGRESS, .counts = *c};
    (void)send(j->report_fd, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static int unpack_tar(struct jail *j, struct build_report *report, struct sp_error *err) {
    const struct unpack_limits limits = {.max_entries = TEMPLATE_ENTRIES_MAX, .max_bytes = j->b->disk_mib << 20};
    const struct rlimit memory = {UNPACK_ADDRESS_SPACE, UNPACK_ADDRESS_SPACE};
    int r = pivot_into(j->paths->tree, err);
    if (r < 0 || (r = drop_privileges(err)) < 0)
        return r;
    /* Not for umoci: Go reserves far more address space than it uses. */
    (void)setrlimit(RLIMIT_AS, &memory);
    umask(0);
    return unpack_archive(j->source_fd, &limits, send_progress, j, &report->counts, err);
}

static int unpack_oci(struct jail *j, struct sp_error *err) {
    char root[640], image[160];
    if (!text_printf(root, sizeof root, "%s/root", j->paths->work) ||
        !text_printf(image, sizeof image, "/image:%s", j->b->image_tag))
        return sp_error_field(err, SP_E_INVALID, "image tag", "is too long");
    const char *const argv[] = {"/usr/bin/umoci", "unpack", "--image", image, "/bundle/oci", NULL};
    int r = make_tool_root(j->b, j->paths, root, err);
    if (r < 0 || (r = pivot_into(root, err)) < 0 || (r = drop_privileges(err)) < 0)
        return r;
    umask(0);
    return run_tool(argv, err);
}

/* pid 1 of its namespace. */
static int unpacker(struct jail *j, struct build_report *report) {
    struct sp_error *err = &report->error;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return sp_error_errno(err, errno, "mount", "private root");
    return j->b->kind == TEMPLATE_FROM_TAR ? unpack_tar(j, report, err) : unpack_oci(j, err);
}

/* Runs the unpacker and takes its report over a pipe. */
static int run_unpacker(struct jail *j, struct build_report *report, struct sp_error *err) {
    int pipefd[2], status = 0;
    if (pipe2(pipefd, O_CLOEXEC) < 0)
        return sp_error_errno(err, errno, "pipe", "build report");
    _cleanup_close_ int rd = pipefd[0], wr = pipefd[1];
    pid_t pid = fork();
    if (pid < 0)
        return sp_error_errno(err, errno, "fork", "unpacker");
    if (pid == 0) {
        int r =
            unshare(CLONE_NEWNS) < 0 ? sp_error_errno(&report->error, errno, "unshare", "mounts") : unpacker(j, report);
        struct sp_error ignored;
        (void)fd_write_all(wr, report, sizeof *report, &ignored);
        _exit(r < 0 ? 1 : 0);
    }
    wr = close_fd(TAKE_FD(wr));
    int r = fd_read_exact(rd, report, sizeof *report, err);
    (void)waitpid(pid, &status, 0);
    if (r < 0)
        return sp_error_set(err, SP_E_INVALID, "unpacking was ended by a limit (%s)",
                            WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "no report");
    if (report->error.code != SP_OK) {
        if (err)
            *err = report->error;
        return -(int)report->error.code;
    }
    return 0;
}

/* umoci writes config.json itself; still it is opened without following a link and with a bound. */
static int read_oci_config(const char *bundle, struct build_report *report, struct sp_error *err) {
    _cleanup_close_ int dir = open(bundle, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_free_ char *text = NULL;
    size_t len;
    if (dir < 0)
        return sp_error_errno(err, errno, "open", "unpacked image");
    int r = file_read(dir, "config.json", sizeof report->config - 1, &text, &len, err);
    if (r < 0)
        return sp_error_wrap(err, "image configuration");
    memcpy(report->config, text, len + 1);
    return 0;
}

static int keeper(struct jail *j, struct build_report *report, struct sp_error *err) {
    char tree[600];
    if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) < 0)
        return sp_error_errno(err, errno, "unshare", "build namespaces");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return sp_error_errno(err, errno, "mount", "private root");
    int r = mount_scratch(j->paths, j->b->disk_mib, err);
    if (r < 0 || (r = run_unpacker(j, report, err)) < 0)
        return r;
    const bool oci = j->b->kind == TEMPLATE_FROM_OCI;
    if (oci) {
        if (!text_printf(tree, sizeof tree, "%s/oci", j->paths->tree))
            return sp_error_set(err, SP_E_INVALID, "path too long");
        if ((r = read_oci_config(tree, report, err)) < 0)
            return r;
    }
    if (!text_printf(tree, sizeof tree, "%s%s", j->paths->tree, oci ? "/oci/rootfs" : ""))
        return sp_error_set(err, SP_E_INVALID, "path too long");
    return build_make_image(tree, j->paths->image, j->b->disk_mib, err);
}

/* Shows progress until the report comes; the report is the last message. */
static int follow(const struct template_build *b, int fd, struct build_report *ret, struct sp_error *err) {
    _cleanup_free_ struct report_message *m = malloc(sizeof *m);
    if (!m)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    for (;;) {
        size_t len = 0, no_fds = 0;
        int r = fd_recv_message(fd, m, sizeof *m, &len, NULL, &no_fds, err);
        if (r < 0)
            return r;
        if (len == 0)
            return sp_error_set(err, SP_E_IO, "the build process ended without a report");
        if (m->kind == MESSAGE_REPORT && len == sizeof *m) {
            *ret = m->report;
            return 0;
        }
        if (m->kind == MESSAGE_PROGRESS && len == sizeof(struct progress_message) && b->progress) {
            struct progress_message p;
            memcpy(&p, m, sizeof p);
            b->progress(b->progress_user, "unpack", p.counts.bytes, 0);
        }
    }
}

_Noreturn static void keeper_main(struct jail *j) {
    _cleanup_free_ struct report_message *m = calloc(1, sizeof *m);
    struct sp_error err = {0}, ignored;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (!m)
        _exit(1);
    m->kind = MESSAGE_REPORT;
    int r = keeper(j, &m->report, &err);
    m->report.error = r < 0 ? err : (struct sp_error){0};
    (void)fd_send_message(j->report_fd, m, sizeof *m, NULL, 0, &ignored);
    _exit(0);
}

int build_jail_run(const struct template_build *b, const struct build_paths *paths, struct build_report *ret,
                   struct sp_error *err) {
    int pair[2];
    _cleanup_close_ int source = -1;
    if (b->kind == TEMPLATE_FROM_TAR && (source = open(b->source, O_RDONLY | O_CLOEXEC)) < 0)
        return sp_error_errno(err, errno, "open", "%s", b->source);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return sp_error_errno(err, errno, "socketpair", "build report");
    _cleanup_close_ int mine = pair[0];
    _cleanup_close_ int theirs = pair[1];
    struct jail j = {.b = b, .paths = paths, .report_fd = theirs, .source_fd = source};
    pid_t pid = fork();
    if (pid < 0)
        return sp_error_errno(err, errno, "fork", "build");
    if (pid == 0)
        keeper_main(&j);
    theirs = close_fd(TAKE_FD(theirs));
    int r = follow(b, mine, ret, err), status;
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, &status, 0);
    if (r == 0 && ret->error.code != SP_OK) {
        if (err)
            *err = ret->error;
        return -(int)ret->error.code;
    }
    return r;
}
