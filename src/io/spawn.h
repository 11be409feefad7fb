/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Child programs: start with a chosen argv, environment, directory and descriptors, pidfd, wait with a deadline. The
 * child starts with default signal handlers, an empty mask, and no descriptor but those named; an exec that fails is an
 * error of spawn_start, not a dead child. Blocking; a loop watches child.pidfd (loop_watch) and then calls spawn_reap.
 */
#pragma once
#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include <stdbool.h>
#include <sys/types.h>

#define SPAWN_FDS_MAX 32

struct spawn_fd {
    int source; /* the caller's descriptor, untouched */
    int target; /* number in the child, ≥ 3; not CLOEXEC there */
};
struct spawn_options {
    const char *program;     /* path with a '/'; no PATH search. NULL: argv[0] */
    const char *const *argv; /* NULL-ended */
    const char *const *env;  /* NULL-ended; NULL: the caller's environment */
    const char *cwd;         /* NULL: the caller's */
    const struct spawn_fd *fds;
    size_t n_fds;
    int stdin_fd;             /* > 2, else /dev/null */
    int stdout_fd, stderr_fd; /* > 2, else: SPAWN_NULL /dev/null, other values the caller's own */
    bool new_session;         /* setsid: out of reach of the terminal's signals */
    int parent_death_signal;  /* 0: none. Bound to the thread that spawns */
    bool set_ids;             /* setgroups(0), setgid(gid), setuid(uid) */
    uid_t uid;
    gid_t gid;
};
#define SPAWN_NULL (-2)

struct child {
    pid_t pid; /* 0: none */
    int pidfd; /* the owner's; closed by child_done */
};
#define CHILD_NONE ((struct child){.pid = 0, .pidfd = -1})

int spawn_start(const struct spawn_options *opt, struct child *ret, struct sp_error *err);
/* Waits until it ended and reaps. *ret_status as of waitpid. SP_E_TIMEOUT: still running, nothing changed. */
int spawn_wait(struct child *c, struct deadline d, int *ret_status, struct sp_error *err);
/* Without waiting: 1 ended and reaped, 0 still running, negative error. */
int spawn_reap(struct child *c, int *ret_status, struct sp_error *err);
int spawn_kill(const struct child *c, int signum, struct sp_error *err); /* an already dead child is no error */
/* SIGTERM, SIGKILL after grace_ms, wait. */
int spawn_stop(struct child *c, uint64_t grace_ms, int *ret_status, struct sp_error *err);
/* Kills (SIGKILL) and reaps what still runs, closes pidfd; for _cleanup_child_. */
void child_done(struct child *c);
#define _cleanup_child_ __attribute__((cleanup(child_done)))

/* Runs to the end. out (may be NULL: dropped) gets stdout and stderr together; what passes out->max is dropped, the
 * child goes on; stdout_fd and stderr_fd of opt are ignored. input (may be NULL) is fed to stdin. On the deadline the
 * child is killed: SP_E_TIMEOUT. A status other than exit 0 is SP_E_IO with the status and the last line of output in
 * the text; *ret_status (may be NULL) is set then too. */
int spawn_run(const struct spawn_options *opt, const void *input, size_t input_len, struct deadline d, struct buf *out,
              int *ret_status, struct sp_error *err);
/* "exited 3", "killed by SIGKILL"; returns dst. */
const char *spawn_status_text(char dst[64], int status);
