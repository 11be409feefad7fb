/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by spawn.c and spawn_child.c only: everything the child needs, laid out before it starts. */
#pragma once
#include "guest/spawn.h"

#define SPAWN_STACK 16384u

struct spawn_plan {
    _Alignas(16) unsigned char stack[SPAWN_STACK];
    int fds[3], status_fd, cgroup_fd;
    bool tty, join_cgroup; /* join_cgroup: the kernel could not start the child in it */
    uid_t uid;
    gid_t gid;
    gid_t groups[USERS_MAX_GROUPS];
    size_t n_groups;
    const char *cwd;
    const char *candidates[SPAWN_MAX_CANDIDATES]; /* paths to try, in order */
    size_t n_candidates;
    char **argv, **env;
    char **shell_argv; /* {"/bin/sh", <path>, argv[1..]} for a script without an interpreter line */
    int status_end;    /* the agent's end of the pipe, closed in the child by exec */
};

_Noreturn void spawn_child(void *plan);
