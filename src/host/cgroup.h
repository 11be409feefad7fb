/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One control group a VM, below one group of this installation ("<parent>/<id>"): limits, membership, killing, removal.
 * Two backends: v2 (production) and v1 with the cpu, memory and pids hierarchies. A controller the host does not have
 * is left out and named by cgroup_missing_controllers(), so that the caller can warn.
 * A group that does not exist counts as empty and removed. Blocking, single-threaded; the root may be used after fork.
 */
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cgroup_root;

struct cgroup_limits {
    uint64_t memory_bytes;
    unsigned cpu_percent; /* 100 = one CPU */
    unsigned pids;
};

/* How a new process gets into the group: v2 by clone3(CLONE_INTO_CGROUP), v1 by writing itself into each hierarchy. */
#define CGROUP_HIERARCHIES_MAX 3
struct cgroup_entry {
    int clone_fd;                         /* v2: for clone_args.cgroup; -1 on v1 */
    int task_fds[CGROUP_HIERARCHIES_MAX]; /* v1: the `tasks` files; -1 when unused */
};

/* Finds the mounted hierarchies and makes the parent group in each. */
int cgroup_root_open(const char *parent, struct cgroup_root **ret, struct sp_error *err);
/* For tests: a v2 tree mounted at `mount`, whatever controllers it has. */
int cgroup_root_open_v2(const char *mount, const char *parent, struct cgroup_root **ret, struct sp_error *err);
/* Makes it this owner's (a path) until the process and all it forked are dead. SP_E_CONFLICT, field uid_base: it is locked by
 * somebody else, or has live members of an owner that is still there. */
int cgroup_root_claim(struct cgroup_root *root, const char *owner, struct sp_error *err);
struct cgroup_root *cgroup_root_free(struct cgroup_root *root);
/* Removes the parent group when it is empty; else leaves it. */
void cgroup_root_remove(struct cgroup_root *root);
const char *cgroup_root_version(const struct cgroup_root *root);        /* "v1" or "v2" */
const char *cgroup_missing_controllers(const struct cgroup_root *root); /* "memory pids", or "" */

/* Fails with SP_E_CONFLICT when the group exists. What was made is removed on failure. */
int cgroup_create(struct cgroup_root *root, const char *id, const struct cgroup_limits *limits, struct sp_error *err);
int cgroup_entry_open(struct cgroup_root *root, const char *id, struct cgroup_entry *ret, struct sp_error *err);
void cgroup_entry_close(struct cgroup_entry *entry);
/* In the new process, first thing, while it has one thread. Returns 0 or -errno. No-op on v2. */
int cgroup_entry_join_self(const struct cgroup_entry *entry);

/* SIGKILL to every member, once; new ones may appear until the group is empty, so call it again until it is. */
int cgroup_kill(struct cgroup_root *root, const char *id, struct sp_error *err);
int cgroup_is_empty(struct cgroup_root *root, const char *id, bool *ret_empty, struct sp_error *err);
/* SP_E_CONFLICT while it still has members. */
int cgroup_remove(struct cgroup_root *root, const char *id, struct sp_error *err);
/* Calls fn for every group below the parent; stops at and returns its first non-zero value. */
int cgroup_list(struct cgroup_root *root, int (*fn)(void *ctx, const char *id), void *ctx, struct sp_error *err);

#define _cleanup_cgroup_entry_ __attribute__((cleanup(cgroup_entry_close)))
