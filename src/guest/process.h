/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands and what is kept of them. A record lives from the start of a command until `retention` after its end (or
 * until its place is needed); it holds the last bytes of each output stream and how the command ended. Starting is in
 * process_start.c, reading output in output.c, the end in process_exit.c, the table here in process.c.
 *
 *     STARTING ──exec──► RUNNING ──leader reaped──► DRAINING ──what it wrote is in the rings──► EXITED
 *        └── exec failed: the child exits 127 or 126 and goes the same way
 */
#pragma once
#include "guest/cgroup.h"
#include "guest/loop.h"
#include "guest/ring.h"
#include "guest/spawn.h"
#include "wire/record.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_MAX 1024u
#define PROCESS_ID_MAX 64u
#define PROCESS_COMMAND_MAX 200u
#define PROCESS_DEFAULT_WINDOW (256u * 1024u)
#define PROCESS_DEFAULT_RETENTION_MS 3600000u
#define DISCONNECT_GRACE_MS 10000u

struct agent;
struct reader;
struct session;
struct process;

enum process_state { PROC_STARTING, PROC_RUNNING, PROC_DRAINING, PROC_EXITED };

struct output {
    struct process *process;
    enum record_stream kind;
    int fd; /* -1: closed */
    struct source source;
    struct ring ring;
    size_t drain_left; /* DRAINING: bytes that were in the pipe when the leader ended */
    bool final;        /* no more bytes go into the ring; what still comes is thrown away */
};

struct process {
    struct agent *agent;
    enum process_state state;
    char id[PROCESS_ID_MAX + 1];
    char command[PROCESS_COMMAND_MAX + 1];
    pid_t pid;
    bool reaped;
    struct cgroup *cgroup;
    struct output out[2];
    unsigned n_out;
    bool pty;
    int stdin_fd; /* our end: a pipe or the pty master (borrowed from out[0]); -1: none or closed */
    struct session *stdin_first, *stdin_last; /* who writes, in turn (stdin.c) */
    struct source stdin_source;
    struct reader *readers;
    unsigned n_readers;

    uint64_t started_realtime_ns, started_ns, ended_ns;
    struct timer timeout, disconnect, expiry;
    bool kill_on_disconnect;
    const char *kill_reason; /* why we killed it, NULL: we did not */

    struct spawn_plan *plan; /* STARTING */
    struct source status;
    struct spawn_status failure; /* stage 0: exec went well */

    int exit_code, exit_signal;
    bool oom_killed, output_may_continue;
    const char *reason;

    bool hidden;                     /* a probe or a hook: not listed, not kept */
    void (*done)(struct process *p); /* hidden: called once at the end, before the record is freed */
    void *done_arg;

    struct process *id_next, *pid_next; /* hash chains */
    struct process *older, *newer;      /* exited records, oldest first */
};

struct process_table {
    struct process *by_id[256], *by_pid[256];
    struct process *oldest, *newest; /* exited */
    unsigned n, n_live;              /* records; of these not exited */
    struct ring_budget budget;
    size_t window;
    uint64_t retention_ms;
};

/* What ATTACH, PROBE or a hook asks for. Strings borrow. */
struct process_request {
    const char *id; /* "" for hidden ones */
    char **argv;
    char **env; /* NULL-ended, may be NULL */
    const char *cwd, *user;
    unsigned pty_cols, pty_rows; /* both 0: no pty */
    bool with_stdin;
    uint64_t timeout_ms; /* 0: none */
    bool kill_on_disconnect;
    bool hidden;
    enum cgroup_parent parent;
    void (*done)(struct process *p);
    void *done_arg;
};

void process_table_init(struct process_table *t, size_t memory_bytes);
struct process *process_find(struct process_table *t, const char *id);
struct process *process_by_pid(struct process_table *t, pid_t pid);
bool process_id_is_good(const char *id);
/* The next record after p (NULL: the first) in no special order; for LIST and quiesce. */
struct process *process_next(struct process_table *t, unsigned *bucket, struct process *p);

/* 0 and *ret in STARTING; else NULL and *ret_code is an error word of the protocol, *ret_message text for people. */
int process_start(struct agent *a, const struct process_request *req, struct process **ret, const char **ret_code,
                  const char **ret_message);
/* SIGKILL to everything in its cgroup; `reason` (static) becomes the exit's reason. */
void process_kill(struct process *p, const char *reason);
/* The leader was reaped with this wait status. */
void process_reaped(struct process *p, int status);
/* Sets or fits the timers that depend on readers: call when one came or went. */
void process_readers_changed(struct process *p);
void process_free(struct process *p); /* the record must be EXITED, or have no child */

/* --- between the files of this module --- */
void process_table_add(struct process_table *t, struct process *p);
void process_table_set_pid(struct process_table *t, struct process *p);
void process_table_exited(struct process_table *t, struct process *p);
bool process_table_make_room(struct process_table *t);
void process_finish_if_drained(struct process *p);
int process_setup_output(struct process *p, unsigned i, enum record_stream kind, int fd);

/* --- output.c --- */
void output_watch(struct output *o); /* reads when there is room; call when that may have changed */
void output_close(struct output *o);
void output_start_drain(struct output *o);
