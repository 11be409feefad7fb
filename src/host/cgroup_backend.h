/* SPDX-License-Identifier: Apache-2.0 */
/* Between cgroup.c and its backends cgroup_v1.c and cgroup_v2.c; nobody else includes it. */
#pragma once
#include "host/cgroup.h"

struct cgroup_root {
    const struct cgroup_ops *ops;
    char parent[64];
    char missing[32];
    /* One directory descriptor of the parent group a hierarchy; -1 when the host has no such controller.
     * v2: only the first is used. v1: indexed by enum cgroup_controller. */
    int parents[CGROUP_HIERARCHIES_MAX];
    int mounts[CGROUP_HIERARCHIES_MAX]; /* the directories the parent groups are in */
    bool has_controller[CGROUP_HIERARCHIES_MAX];
};

enum cgroup_controller { CGROUP_CPU, CGROUP_MEMORY, CGROUP_PIDS };
extern const char *const cgroup_controller_names[CGROUP_HIERARCHIES_MAX];

struct cgroup_ops {
    const char *version;
    int (*set_limits)(struct cgroup_root *root, const char *id, const struct cgroup_limits *limits,
                      struct sp_error *err);
    int (*open_entry)(struct cgroup_root *root, const char *id, struct cgroup_entry *ret, struct sp_error *err);
    int (*kill)(struct cgroup_root *root, const char *id, struct sp_error *err);
    int (*is_empty)(struct cgroup_root *root, const char *id, bool *ret_empty, struct sp_error *err);
};
extern const struct cgroup_ops cgroup_v1_ops, cgroup_v2_ops;

/* Writes one value into <group>/<file> of hierarchy h. */
int cgroup_write_file(struct cgroup_root *root, unsigned h, const char *id, const char *file, const char *value,
                      struct sp_error *err);
/* Reads <group>/<file>; missing group: SP_E_NOT_FOUND. */
int cgroup_read_file(struct cgroup_root *root, unsigned h, const char *id, const char *file, char **ret,
                     struct sp_error *err);
int cgroup_open_file(struct cgroup_root *root, unsigned h, const char *id, const char *file, int flags,
                     struct sp_error *err);
/* The hierarchy that is used to count and to list members: the first one that exists. */
unsigned cgroup_first_hierarchy(const struct cgroup_root *root);
