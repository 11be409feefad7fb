/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts one command without copying the agent: clone3 with CLONE_VM straight into the command's cgroup. The child runs
 * spawn_child.c (system calls only) on a stack inside the plan, which must stay until its status pipe has closed: that
 * is when the child has its own memory. The agent goes on at once, so a slow exec (a hung FUSE mount) holds nobody up.
 */
#pragma once
#include "guest/users.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SPAWN_MAX_ARGS 4096u
#define SPAWN_MAX_ENV 1024u
#define SPAWN_MAX_CANDIDATES 64u

/* What the child reports when it could not exec; nothing at all when it could. */
enum spawn_stage { SPAWN_SETUP = 1, SPAWN_CWD, SPAWN_EXEC };
struct spawn_status {
    int32_t stage;
    int32_t err; /* errno */
};

struct spawn_request {
    char **argv;           /* NULL-ended, at least one */
    char **env;            /* NULL-ended K=V, wins over defaults */
    char *const *env_more; /* NULL-ended, wins over the above */
    const char *cwd;       /* "": home */
    const struct guest_user *user;
    int stdin_fd, stdout_fd, stderr_fd; /* child's ends */
    bool tty;                           /* stdin_fd is a terminal to become the controlling one */
    int cgroup_fd;
};

struct spawn_plan;
/* Lays everything the child needs out in one block. 0; -E2BIG too many arguments or variables; -ENOMEM. */
int spawn_prepare(const struct spawn_request *req, struct spawn_plan **ret);
/* Starts the child. *ret_status_fd (non-blocking, CLOEXEC) yields a struct spawn_status, or EOF once exec has happened
 * (or the child has died). The descriptors of the request may be closed then. 0 or -errno. */
int spawn_start(struct spawn_plan *plan, pid_t *ret_pid, int *ret_status_fd);
void spawn_free(struct spawn_plan *plan); /* only before start or after the status pipe has closed; NULL is fine */
