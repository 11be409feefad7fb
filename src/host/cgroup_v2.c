/* SPDX-License-Identifier: Apache-2.0 */
/* The v2 backend: one unified tree, entered at clone, killed by cgroup.kill (Linux 5.14). */
#include "base/cleanup.h"
#include "base/text.h"
#include "host/cgroup_backend.h"
#include <errno.h>
#include <fcntl.h>

#define CPU_PERIOD_US 100000u

struct limit_row {
    enum cgroup_controller controller;
    const char *file;
    char value[48];
    bool optional; /* the kernel may be built without it */
};

static int set_limits(struct cgroup_root *root, const char *id, const struct cgroup_limits *limits,
                      struct sp_error *err) {
    struct limit_row rows[] = {
        {CGROUP_MEMORY, "memory.max", "", false},
        {CGROUP_MEMORY, "memory.swap.max", "0", true},
        {CGROUP_MEMORY, "memory.oom.group", "1", true}, /* a VM without its VMM, or the reverse, is of no use */
        {CGROUP_CPU, "cpu.max", "", true},
        {CGROUP_PIDS, "pids.max", "", false},
    };

    (void)text_printf(rows[0].value, sizeof(rows[0].value), "%llu", (unsigned long long)limits->memory_bytes);
    (void)text_printf(rows[3].value, sizeof(rows[3].value), "%llu %u",
                      (unsigned long long)limits->cpu_percent * (CPU_PERIOD_US / 100), CPU_PERIOD_US);
    (void)text_printf(rows[4].value, sizeof(rows[4].value), "%u", limits->pids);
    for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
        int r;
        if (!root->has_controller[rows[i].controller])
            continue;
        r = cgroup_write_file(root, 0, id, rows[i].file, rows[i].value, err);
        if (r < 0 && !rows[i].optional)
            return r;
    }
    return 0;
}

static int open_entry(struct cgroup_root *root, const char *id, struct cgroup_entry *ret, struct sp_error *err) {
    ret->clone_fd = openat(root->parents[0], id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (ret->clone_fd < 0)
        return sp_error_errno(err, errno, "open", "cgroup %s", id);
    return 0;
}

static int kill_members(struct cgroup_root *root, const char *id, struct sp_error *err) {
    return cgroup_write_file(root, 0, id, "cgroup.kill", "1", err);
}

static int is_empty(struct cgroup_root *root, const char *id, bool *ret_empty, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    int r = cgroup_read_file(root, 0, id, "cgroup.events", &text, err);
    if (r < 0)
        return r;
    *ret_empty = strstr(text, "populated 0") != NULL;
    return 0;
}

const struct cgroup_ops cgroup_v2_ops = {
    .version = "v2",
    .set_limits = set_limits,
    .open_entry = open_entry,
    .kill = kill_members,
    .is_empty = is_empty,
};
