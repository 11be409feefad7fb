/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's part of the cgroup v2 tree:
 *     <root>/space/agent        the agent itself, with memory.min
 *     <root>/space/user/<n>     one for each command; `user` is what a quiesce freezes
 *     <root>/space/hooks/<n>    identity hooks and nothing else: they run while `user` is frozen
 * A command's group outlives its leader until the last process in it is gone (watched, not polled), then it is removed.
 * One group is kept ready so that the making of it is no part of a command's latency.
 */
#pragma once
#include "guest/loop.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum cgroup_parent { CGROUP_USER, CGROUP_HOOKS, CGROUP_PARENT_COUNT_ };

struct cgroup {
    char name[24];
    enum cgroup_parent parent;
    int fd;              /* of the directory, -1 after cgroup_started() */
    struct source empty; /* watches cgroup.events once the leader is gone */
    int events_fd;
    bool held;  /* a process record still names it */
    bool ended; /* the leader is gone */
    bool gone;  /* removed from the tree */
};

/* Makes the tree below root (a cgroup v2 mount) and moves the agent in. With `hide`, root is mounted anew so that `user`
 * is all that can be seen of the tree: what a command makes at the top (Docker does) is frozen and killed with the rest.
 * 0 or -errno. */
int cgroup_setup(struct loop *l, const char *root, bool hide);
/* Hosted agents only: removes the tree again. */
void cgroup_teardown(void);

/* An empty group whose fd is for CLONE_INTO_CGROUP; NULL and errno. Held by the caller. */
struct cgroup *cgroup_new(enum cgroup_parent parent);
void cgroup_started(struct cgroup *cg); /* closes fd */
/* The leader is gone (or never was): the group goes when it is empty. */
void cgroup_leader_gone(struct cgroup *cg);
void cgroup_release(struct cgroup *cg); /* the record is gone; NULL is fine */
/* Makes the spare group, if there is none; call when there is nothing more urgent. */
void cgroup_prepare_spare(void);

int cgroup_kill(struct cgroup *cg); /* SIGKILL to all in it and below; 0 or -errno */
/* Sends sig to every process in the group. 0 or -errno of the last failure. */
int cgroup_signal(struct cgroup *cg, int sig);
unsigned cgroup_processes(const struct cgroup *cg); /* alive in it and below; 0 when gone */
bool cgroup_oom_killed(const struct cgroup *cg);

/* Asks the kernel to freeze or thaw all commands. 0 or -errno. */
int cgroup_freeze(bool on);
/* Are they all frozen (1), not (0), unknown (-errno)? */
int cgroup_is_frozen(void);
/* A descriptor whose EPOLLPRI says that cgroup_is_frozen() may have changed. */
int cgroup_freeze_fd(void);
int cgroup_kill_all(void); /* every command, frozen or not */
