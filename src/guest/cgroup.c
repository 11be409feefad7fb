/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/cgroup.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "guest/klog.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define AGENT_MEMORY_MIN "16777216"
#define MAX_DEPTH 8
#define NAME_TRIES 64

static struct {
    struct loop *loop;
    int root_fd;
    int space_fd;
    int parent_fd[CGROUP_PARENT_COUNT_];
    int freeze_fd; /* user/cgroup.events */
    uint64_t next;
    struct cgroup *spare;
} tree = {.root_fd = -1, .space_fd = -1, .parent_fd = {-1, -1}, .freeze_fd = -1};

static int write_at(int dirfd, const char *path, const char *text) {
    _cleanup_close_ int fd = openat(dirfd, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        return -errno;
    return 0;
}

/* The value of a `key value` line of a flat-keyed file; -1 when there is none. */
static int64_t read_key(int dirfd, const char *path, const char *key) {
    _cleanup_close_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
    char text[1024];
    size_t len = strlen(key);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (n < 0)
        return -1;
    text[n] = '\0';
    for (const char *p = text; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (strncmp(p, key, len) == 0 && p[len] == ' ')
            return strtoll(p + len + 1, NULL, 10);
    return -1;
}

static void enable_controllers(int dirfd) {
    static const char *const names[] = {"+memory", "+pids", "+cpu", "+io"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        (void)write_at(dirfd, "cgroup.subtree_control", names[i]); /* what the kernel lacks is done without */
}

static int open_group(int dirfd, const char *name, int *ret_fd) {
    *ret_fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return *ret_fd < 0 ? -errno : 0;
}

static int make_dir(int dirfd, const char *name, int *ret_fd) {
    if (mkdirat(dirfd, name, 0755) < 0 && errno != EEXIST)
        return -errno;
    return open_group(dirfd, name, ret_fd);
}

/* A cgroup namespace is rooted where its maker is, so the agent steps into `user` for a moment. */
static int hide_tree(const char *root) {
    int r = write_at(tree.parent_fd[CGROUP_USER], "cgroup.procs", "0");

    if (r < 0)
        return r;
    if (unshare(CLONE_NEWCGROUP) < 0 || umount2(root, MNT_DETACH) < 0)
        return -errno;
    return mount("cgroup2", root, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0 ? -errno : 0;
}

int cgroup_setup(struct loop *l, const char *root, bool hide) {
    _cleanup_close_ int agent_fd = -1;
    int r = 0;

    tree.loop = l;
    tree.root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tree.root_fd < 0)
        return -errno;
    enable_controllers(tree.root_fd);
    if ((r = make_dir(tree.root_fd, "space", &tree.space_fd)) < 0)
        return r;
    if ((r = make_dir(tree.space_fd, "agent", &agent_fd)) < 0)
        return r;
    enable_controllers(tree.space_fd);
    if ((r = make_dir(tree.space_fd, "user", &tree.parent_fd[CGROUP_USER])) < 0)
        return r;
    if ((r = make_dir(tree.space_fd, "hooks", &tree.parent_fd[CGROUP_HOOKS])) < 0)
        return r;
    if (hide && (r = hide_tree(root)) < 0)
        return r;
    if (write_at(tree.space_fd, "memory.min", AGENT_MEMORY_MIN) < 0 ||
        write_at(agent_fd, "memory.min", AGENT_MEMORY_MIN) < 0)
        klog(KLOG_WARN, "no memory.min for the agent: %s", strerror(errno));
    r = write_at(agent_fd, "cgroup.procs", "0");
    if (r < 0)
        klog(KLOG_WARN, "agent is not in its own cgroup: %s", strerror(-r));
    enable_controllers(tree.parent_fd[CGROUP_USER]); /* possible only while no process is directly in it */
    tree.freeze_fd = openat(tree.parent_fd[CGROUP_USER], "cgroup.events", O_RDONLY | O_CLOEXEC);
    return tree.freeze_fd < 0 ? -errno : 0;
}

static DIR *open_dir(int at, const char *name) {
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        (void)close_fd(fd);
    return dir;
}

/* rmdir of name and what is below it: commands may have made groups of their own. Processes in one keep it. */
// NOLINTNEXTLINE(misc-no-recursion): bounded by MAX_DEPTH
static int remove_tree(int at, const char *name, int depth) {
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *e;

    if (unlinkat(at, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    dir = depth > 0 ? open_dir(at, name) : NULL;
    if (!dir)
        return -EBUSY;
    while ((e = readdir(dir)))
        if (e->d_type == DT_DIR && e->d_name[0] != '.' && remove_tree(dirfd(dir), e->d_name, depth - 1) < 0)
            return -EBUSY;
    return unlinkat(at, name, AT_REMOVEDIR) == 0 ? 0 : -errno;
}

void cgroup_teardown(void) {
    (void)cgroup_kill_all();
    (void)write_at(tree.root_fd, "cgroup.procs", "0");
    for (int i = 0; i < 100 && remove_tree(tree.root_fd, "space", MAX_DEPTH) < 0; i++)
        (void)usleep(10000);
}

static struct cgroup *make(enum cgroup_parent parent) {
    struct cgroup *cg = calloc(1, sizeof(*cg));
    int r = -EEXIST;

    if (!cg)
        return NULL;
    cg->parent = parent;
    cg->events_fd = cg->empty.fd = cg->fd = -1;
    for (int tries = 0; tries < NAME_TRIES; tries++) {
        (void)text_printf(cg->name, sizeof(cg->name), "%llu", (unsigned long long)++tree.next);
        if (mkdirat(tree.parent_fd[parent], cg->name, 0755) == 0) {
            r = open_group(tree.parent_fd[parent], cg->name, &cg->fd);
            break;
        }
        r = -errno;
        if (r != -EEXIST) /* a command may have made one of that name */
            break;
    }
    if (r == 0)
        return cg;
    free(cg);
    errno = -r;
    return NULL;
}

struct cgroup *cgroup_new(enum cgroup_parent parent) {
    struct cgroup *cg;

    if (parent == CGROUP_USER && tree.spare)
        cg = TAKE_PTR(tree.spare);
    else
        cg = make(parent);
    if (cg)
        cg->held = true;
    return cg;
}

void cgroup_prepare_spare(void) {
    if (!tree.spare)
        tree.spare = make(CGROUP_USER);
}

void cgroup_started(struct cgroup *cg) {
    cg->fd = close_fd(cg->fd);
}

static void free_when_done(struct cgroup *cg) {
    if (!cg->gone || cg->held)
        return;
    free(cg);
}

static bool try_remove(struct cgroup *cg) {
    if (remove_tree(tree.parent_fd[cg->parent], cg->name, MAX_DEPTH) < 0)
        return false;
    loop_remove(tree.loop, &cg->empty);
    cg->events_fd = close_fd(cg->events_fd);
    cg->fd = close_fd(cg->fd);
    cg->gone = true;
    return true;
}

static void on_events(struct source *s, uint32_t events) {
    struct cgroup *cg = container_of(s, struct cgroup, empty);
    char text[256];

    (void)events;
    (void)!pread(cg->events_fd, text, sizeof(text), 0); /* re-arms the notification */
    if (try_remove(cg))
        free_when_done(cg);
}

void cgroup_leader_gone(struct cgroup *cg) {
    char path[64];

    if (cg->ended)
        return;
    cg->ended = true;
    cgroup_started(cg);
    if (try_remove(cg))
        return;
    (void)text_printf(path, sizeof(path), "%s/cgroup.events", cg->name);
    cg->events_fd = openat(tree.parent_fd[cg->parent], path, O_RDONLY | O_CLOEXEC);
    if (cg->events_fd < 0 || loop_add(tree.loop, &cg->empty, cg->events_fd, EPOLLPRI, on_events) < 0)
        klog(KLOG_WARN, "cgroup %s cannot be watched: %s", cg->name, strerror(errno));
    else
        on_events(&cg->empty, 0); /* it may have emptied in between */
}

void cgroup_release(struct cgroup *cg) {
    if (!cg)
        return;
    cg->held = false;
    if (!cg->ended)
        cgroup_leader_gone(cg);
    free_when_done(cg);
}

static int write_in(const struct cgroup *cg, const char *file, const char *text) {
    char path[64];
    if (cg->gone)
        return 0;
    (void)text_printf(path, sizeof(path), "%s/%s", cg->name, file);
    return write_at(tree.parent_fd[cg->parent], path, text);
}

int cgroup_kill(struct cgroup *cg) {
    return write_in(cg, "cgroup.kill", "1");
}

int cgroup_kill_all(void) {
    return write_at(tree.parent_fd[CGROUP_USER], "cgroup.kill", "1");
}

/* Calls fn for each pid of one group; returns how many there are. */
static unsigned each_in(int cgroup_fd, void (*fn)(pid_t pid, int sig), int sig) {
    _cleanup_fclose_ FILE *f = NULL;
    int fd = openat(cgroup_fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    char line[32];
    unsigned n = 0;
    uint64_t pid;

    f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f) {
        (void)close_fd(fd);
        return 0;
    }
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        n++;
        if (fn && text_to_u64(line, 2, INT32_MAX, &pid))
            fn((pid_t)pid, sig);
    }
    return n;
}

/* The same for a group and those below it. */
// NOLINTNEXTLINE(misc-no-recursion): bounded by MAX_DEPTH
static unsigned each_process(int at, const char *name, int depth, void (*fn)(pid_t pid, int sig), int sig) {
    _cleanup_closedir_ DIR *dir = open_dir(at, name);
    struct dirent *e;
    unsigned n = 0;

    if (!dir)
        return 0;
    n = each_in(dirfd(dir), fn, sig);
    while (depth > 0 && (e = readdir(dir)))
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            n += each_process(dirfd(dir), e->d_name, depth - 1, fn, sig);
    return n;
}

static void send_signal(pid_t pid, int sig) {
    (void)kill(pid, sig);
}

int cgroup_signal(struct cgroup *cg, int sig) {
    if (cg->gone)
        return -ESRCH;
    if (sig == SIGKILL)
        return cgroup_kill(cg);
    return each_process(tree.parent_fd[cg->parent], cg->name, MAX_DEPTH, send_signal, sig) > 0 ? 0 : -ESRCH;
}

unsigned cgroup_processes(const struct cgroup *cg) {
    if (cg->gone)
        return 0;
    return each_process(tree.parent_fd[cg->parent], cg->name, MAX_DEPTH, NULL, 0);
}

bool cgroup_oom_killed(const struct cgroup *cg) {
    char path[64];
    if (cg->gone)
        return false;
    (void)text_printf(path, sizeof(path), "%s/memory.events", cg->name);
    return read_key(tree.parent_fd[cg->parent], path, "oom_kill") > 0;
}

int cgroup_freeze(bool on) {
    return write_at(tree.parent_fd[CGROUP_USER], "cgroup.freeze", on ? "1" : "0");
}

int cgroup_freeze_fd(void) {
    return tree.freeze_fd;
}

int cgroup_is_frozen(void) {
    char text[256];
    ssize_t n = pread(tree.freeze_fd, text, sizeof(text) - 1, 0);
    if (n < 0)
        return -errno;
    text[n] = '\0';
    return strstr(text, "frozen 1") ? 1 : 0;
}
