/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The v1 backend: separate cpu, memory and pids hierarchies, entered by the new process itself. There is no cgroup.kill,
 * so members are listed and killed one by one, each through a pidfd whose membership is looked up again after it was
 * opened: a pid that was reused in between is spared. pids.max is set to 0 first, so that no new member is forked.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "host/cgroup_backend.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/pidfd.h>

#define CPU_PERIOD_US 100000ull
#define PROC_CGROUP_MAX 65536u

static int set_limit(struct cgroup_root *root, enum cgroup_controller c, const char *id, const char *file,
                     uint64_t value, struct sp_error *err) {
    char text[24];
    if (!root->has_controller[c])
        return 0;
    (void)text_printf(text, sizeof(text), "%llu", (unsigned long long)value);
    return cgroup_write_file(root, c, id, file, text, err);
}

static int set_limits(struct cgroup_root *root, const char *id, const struct cgroup_limits *limits,
                      struct sp_error *err) {
    int r = set_limit(root, CGROUP_MEMORY, id, "memory.limit_in_bytes", limits->memory_bytes, err);
    if (r == 0)
        r = set_limit(root, CGROUP_PIDS, id, "pids.max", limits->pids, err);
    /* A kernel without CFS bandwidth control has no such files; shares alone are no limit, so nothing takes their place. */
    if (r == 0)
        r = set_limit(root, CGROUP_CPU, id, "cpu.cfs_period_us", CPU_PERIOD_US, err);
    if (r == 0)
        r = set_limit(root, CGROUP_CPU, id, "cpu.cfs_quota_us", limits->cpu_percent * (CPU_PERIOD_US / 100), err);
    return r == -SP_E_NOT_FOUND ? 0 : r;
}

static int open_entry(struct cgroup_root *root, const char *id, struct cgroup_entry *ret, struct sp_error *err) {
    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX; h++) {
        if (root->parents[h] < 0)
            continue;
        ret->task_fds[h] = cgroup_open_file(root, h, id, "tasks", O_WRONLY, err);
        if (ret->task_fds[h] < 0)
            return ret->task_fds[h];
    }
    return 0;
}

/* Whether /proc/PID/cgroup still says "/<parent>/<id>". */
static bool is_member(const struct cgroup_root *root, const char *id, pid_t pid) {
    char path[64], want[160];
    _cleanup_free_ char *text = NULL;
    size_t len;

    (void)text_printf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    if (!text_printf(want, sizeof(want), "/%s/%s", root->parent, id) ||
        file_read(AT_FDCWD, path, PROC_CGROUP_MAX, &text, NULL, NULL) < 0)
        return false;
    len = strlen(want);
    for (const char *at = text; (at = strstr(at, want)); at++)
        if (at[len] == '\n' || at[len] == '/')
            return true;
    return false;
}

static void kill_member(const struct cgroup_root *root, const char *id, pid_t pid) {
    _cleanup_close_ int pidfd = pidfd_open(pid, 0);
    if (pidfd >= 0 && is_member(root, id, pid))
        (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
}

static int kill_in_hierarchy(struct cgroup_root *root, unsigned h, const char *id, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    char *save = NULL;
    int r = cgroup_read_file(root, h, id, "cgroup.procs", &text, err);

    if (r < 0)
        return r == -SP_E_NOT_FOUND ? 0 : r;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        uint64_t pid;
        /* 0: a member our pid namespace cannot see; someone outside put it there. */
        if (text_to_u64(line, 1, INT32_MAX, &pid))
            kill_member(root, id, (pid_t)pid);
    }
    return 0;
}

static int kill_members(struct cgroup_root *root, const char *id, struct sp_error *err) {
    if (root->has_controller[CGROUP_PIDS])
        (void)cgroup_write_file(root, CGROUP_PIDS, id, "pids.max", "0", NULL);
    /* A process killed while it was entering is in some hierarchies only: look into each. */
    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX; h++) {
        int r = root->parents[h] >= 0 ? kill_in_hierarchy(root, h, id, err) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int is_empty(struct cgroup_root *root, const char *id, bool *ret_empty, struct sp_error *err) {
    bool empty = true;
    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX && empty; h++) {
        _cleanup_free_ char *text = NULL;
        int r = root->parents[h] >= 0 ? cgroup_read_file(root, h, id, "cgroup.procs", &text, err) : 0;
        if (r < 0 && r != -SP_E_NOT_FOUND)
            return r;
        empty = !text || !*text;
    }
    *ret_empty = empty;
    return 0;
}

const struct cgroup_ops cgroup_v1_ops = {
    .version = "v1",
    .set_limits = set_limits,
    .open_entry = open_entry,
    .kill = kill_members,
    .is_empty = is_empty,
};
