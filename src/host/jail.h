/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps that turn a forked child of the broker into a jailed process, in the order in which they must be called:
 *   clone3 with new namespaces → cgroup → tap → jail_root_enter() → jail_drop() → exec.
 * All of it runs in single-threaded children; any failure is reported to the broker and the child exits.
 */
#pragma once
#include "base/error.h"
#include "host/jail_filter.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct jail_clone {
    uint64_t namespaces; /* CLONE_NEW* */
    int cgroup_fd;       /* v2 group to be born in, or -1 */
};
/* fork() with namespaces. 0 in the child, its pid in the parent (SIGCHLD at exit), -errno. The caller has one thread. */
pid_t jail_fork(const struct jail_clone *how);

/* Default dispositions, empty mask, new session. */
void jail_reset_process(void);

struct jail_identity {
    uid_t uid;                        /* also the gid; no other groups */
    uint64_t file_size_max;           /* RLIMIT_FSIZE in bytes */
    uint64_t descriptors_max;         /* RLIMIT_NOFILE */
    uint64_t processes_max;           /* RLIMIT_NPROC; the uid belongs to one VM */
    const struct jail_filter *filter; /* NULL: none */
};
/* Limits, no_new_privs, empty bounding set, all capabilities gone, uid and gid changed for good, filter loaded; then looks
 * at the result and fails when anything is left. A limit that cannot be set is not an error (no CAP_SYS_RESOURCE). */
int jail_drop(const struct jail_identity *identity, struct sp_error *err);

/* Makes fds[i] descriptor i without CLOEXEC and keep[j] descriptor n+j with it; closes every other one.
 * Updates keep[]. n + n_keep ≤ 64. */
int jail_place_fds(const int *fds, size_t n, int *keep, size_t n_keep, struct sp_error *err);
