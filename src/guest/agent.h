/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent: one loop over the channel's port, signals, pipes and timers. It owns the connection to the host and the
 * agent's state; sessions (session.h) are what streams are for, processes (process.h) are the commands.
 *
 *     OPEN ──QUIESCE──► FREEZING ──all frozen──► SILENT ──HELLO──► FROZEN ──IDENTITY──► IDENTIFYING ──► OPEN
 *     OPEN ──IDENTITY──► IDENTIFYING ──► OPEN
 *     SILENT after QUIESCE with KEEP ──IDENTITY──► IDENTIFYING: streams are still there and go on
 */
#pragma once
#include "guest/loop.h"
#include "guest/process.h"
#include "wire/channel.h"

#define AGENT_VERSION "0.1.0"
#define AGENT_PROTOCOL 1u

enum agent_state { AGENT_OPEN, AGENT_FREEZING, AGENT_SILENT, AGENT_FROZEN, AGENT_IDENTIFYING };

struct identity {
    uint64_t generation;
    char sandbox_id[80];
    char machine_id[33];
    char hostname[65];
    bool applied; /* some IDENTITY was */
    char **env;   /* one block, NULL-ended; NULL: none */
};

struct agent_config {
    int port_fd; /* non-blocking; the virtio port, or a socket when hosted */
    const char *cgroup_root;
    bool hosted; /* an ordinary process on a developer's machine: does not touch the system's clock and names */
    size_t memory_bytes;
};

struct agent {
    struct agent_config config;
    enum agent_state state;
    struct loop loop;
    struct channel channel;
    struct source port, signals;
    int quiet_epfd; /* only the port: what a silent agent waits on */
    bool port_readable, port_writable;
    uint8_t input[65536];
    struct view pending; /* of input, not yet taken */
    struct process_table processes;
    struct session *sessions;
    unsigned n_sessions;
    struct session *turn; /* whose output goes first next time */
    size_t rx_held;       /* bytes of input kept by sessions, all together */
    struct identity identity;
    struct freezer {
        struct source source;
        struct timer deadline;
        struct session *session; /* who asked; NULL: gone */
        bool sync;
        bool keep; /* the other streams stay */
        uint64_t sync_ms;
    } freezer;
    struct syncer {
        struct source source; /* of a child that writes the root file system out */
        struct timer deadline;
        void (*done)(struct agent *a, int err); /* NULL: none does */
        struct session *session;                /* who asked with SYNC; NULL: nobody, or gone */
    } syncer;
    struct session *silencer; /* SILENT: its answer is the last thing said; NULL: gone */
    uint64_t silent_since_ns; /* monotonic */
    struct identify {
        struct session *session; /* NULL: gone */
        struct timer deadline;
        struct process *hook;
        char **names; /* hooks left to run, one block, NULL-ended */
        size_t next;
        unsigned run, failed;
    } identify;
    bool tidy; /* a command has ended and was told: time for what would delay one that starts */
    bool shutting_down;
    bool stop; /* hosted: leave the loop */
};

/* 0 or -errno. */
int agent_init(struct agent *a, const struct agent_config *config);
/* Hosted: returns when the port has closed. As PID 1: never returns. */
void agent_run(struct agent *a);
const char *const *agent_environment(const struct agent *a);
/* Begins to write the root file system out, one at a time (-EBUSY); done comes once: 0 or an errno, ETIMEDOUT when it was
 * not done by then (it goes on all the same). */
int sync_begin(struct agent *a, uint64_t timeout_ms, void (*done)(struct agent *a, int err));
const char *sync_words(int err);
/* From SILENT to the given state: the time between did not count for any timer. */
void agent_end_silence(struct agent *a, enum agent_state next);
