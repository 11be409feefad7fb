/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sandbox of this node: a small state machine. Events come from the template cache, the snapshot store, the broker, the
 * VM's control.sock, a deadline, and what control wants; the one set_state() frees what the new state may not hold.
 *
 *   NEW → WAITING → QUEUED → STARTING → COMING_UP → RUNNING ⇄ PAUSING, PAUSED, RESUMING
 *    ↑        └────────────────┘ (warm)               ↓ SUSPENDING
 *    └────────────── STOPPING → NEW | SUSPENDED | FAILED | DELETED
 *
 * A snapshot that leaves the sandbox where it is goes on beside RUNNING and PAUSED, as `snapshot`.
 */
#pragma once
#include "node/fault.h"
#include "node/reconcile.h"
#include "node/snapshots.h"
#include "node/template_cache.h"
#include "node/vm_link.h"

enum sandbox_step {
    SB_NEW,       /* nothing done yet */
    SB_LOOKING,   /* nothing is here: whether its snapshot is */
    SB_WAITING,   /* for the snapshot it starts from */
    SB_QUEUED,    /* for a start slot */
    SB_STARTING,  /* the broker makes the VM, or makes a spare its own */
    SB_COMING_UP, /* there is a VM; not running yet */
    SB_RUNNING,
    SB_PAUSING,
    SB_PAUSED,
    SB_RESUMING,
    SB_SUSPENDING, /* the broker makes the snapshot; the VM then stands still */
    SB_STOPPING,   /* the broker removes everything; then `after` */
    SB_SUSPENDED,  /* nothing on the host but its snapshot */
    SB_FAILED,     /* nothing on the host; the fault is kept */
    SB_DELETED,    /* nothing on the host */
    SB_STEP_COUNT_
};

/* A snapshot control wants of it; kept until control wants another one. */
enum job_state { JOB_NONE, JOB_MAKING, JOB_REMOVING /* an old one in the way */, JOB_READY, JOB_FAILED };
struct snapshot_job {
    char id[ID_SIZE];
    enum job_state state;
    bool settled;     /* control has taken note of READY or FAILED */
    bool is_disk;     /* it is to hold the disk alone */
    bool stop;        /* the VM stands still after it: a suspend */
    bool was_running; /* stop: if it fails the VM goes on */
    struct broker_call *call;
    struct loop_timer *retry;
    uint64_t began_ms;
    uint64_t memory_bytes, disk_bytes, exclusive_bytes, stall_us;
    struct fault fault; /* FAILED */
};

struct node;

struct sandbox {
    struct node *node;
    struct sandbox *next_in_bucket, *next, *prev; /* the node's table and list */
    char id[ID_SIZE];
    enum sandbox_step state;
    enum sandbox_step after; /* STOPPING: what comes then */
    struct desired want;     /* id "" until control said what it wants; its JSON is owned here */
    uint64_t generation;     /* of the VM; 0: none or not known */
    struct template_spec spec;
    struct fault fault;
    bool rebuilt;   /* its snapshot was broken once and made again: not a second time */
    bool cold_only; /* a spare, or a boot, failed it: not a second time */
    bool adopted;   /* another run of the node started it */
    bool goes_back; /* RESUMING after a suspend that failed: nothing is said until it runs */
    uint64_t order; /* of arrival in the queue */

    struct template_waiter waiter; /* WAITING */
    struct snapshot_waiter parent; /* WAITING */
    struct broker_call *call;      /* LOOKING, STARTING, STOPPING */
    struct vm_link *link;          /* STARTING out of a warm one, COMING_UP … SUSPENDING */
    struct loop_timer *deadline;   /* until RUNNING; of PAUSING, RESUMING */
    struct loop_timer *retry;      /* LOOKING, STARTING, STOPPING: the broker had no room */
    enum start_kind start_kind;    /* of this VM */
    char spare[ID_SIZE];           /* STARTING: the one that is to become its VM, "" none */
    struct snapshot_job snapshot;
    struct {                /* an operation that failed and left the sandbox well, or ended with timings */
        char id[ID_SIZE];   /* "" none */
        struct fault fault; /* NONE: it succeeded */
        uint64_t ms;
        json_t *steps; /* {"broker_<step>_ms": ms}; NULL: none */
    } operation;

    /* what is said of it */
    enum vm_phase phase;       /* by its last status */
    bool identifying;          /* identify was sent */
    bool ready;                /* RUNNING, vm_ready, and the agent answers */
    bool vm_ready;             /* RUNNING: by its status */
    bool says_ready;           /* its last status, in whatever state */
    unsigned missed;           /* pings in a row without an answer of the agent */
    char vm_snapshot[ID_SIZE]; /* by its status: taken while it has stood still since */
    uint64_t streams, active_ns;
    char accelerator[8], kernel[8], vmm[48];
    uint64_t began_ms, started_ms, since_ms; /* of the whole start, of its vm_start, of the step that runs */
    uint64_t queue_ms, template_ms, broker_ms, total_ms;
    json_t *vm_timings;
    struct {
        bool due;       /* something changed since the last report that was sent */
        bool under_way; /* a report is being sent */
        bool lazy;      /* something changed that can wait a little */
        uint64_t last_ms;
    } report;
};

struct sandbox *sandbox_new(struct node *n, const char *id); /* NEW; in the node's table; aborts on no memory */
void sandbox_free(struct sandbox *s); /* takes it out of the table; only with nothing on the host, or at the end */

/* What control wants now; the deadline counts from here when a start is on its way. */
void sandbox_set_want(struct sandbox *s, const struct desired *d);
/* Ends whatever is there, then `after`. While STOPPING: changes what comes after. */
void sandbox_stop(struct sandbox *s, enum sandbox_step after);
void sandbox_fail(struct sandbox *s, const struct fault *fault);
/* The broker is there again; listed: what it said of this VM. */
enum sandbox_listed { LISTED_NOT, LISTED_DEAD, LISTED_ALIVE };
void sandbox_broker_up(struct sandbox *s, enum sandbox_listed listed);

bool sandbox_holds_slot(const struct sandbox *s);
bool sandbox_holds_host(const struct sandbox *s); /* counts for admission, and its leavings are not swept */
bool sandbox_is_busy(const struct sandbox *s);    /* something of it is in flight: spares wait */
enum local_state sandbox_local_state(const struct sandbox *s);
const char *sandbox_step_name(enum sandbox_step step);

/* ---- sandbox_start.c: the way up ---- */

/* From NEW, SUSPENDED, FAILED, and DELETED once it is wanted again: makes it run. Nothing may be on the host. */
void sandbox_start(struct sandbox *s);
/* A start slot is free. */
void sandbox_take_slot(struct sandbox *s);

/* ---- sandbox_vm.c: the VM that is there ---- */

/* A VM was found on the host that is not in the table. */
void sandbox_adopt(struct sandbox *s, bool alive);
/* Asks the agent whether it is there; several misses make the sandbox not ready. Nothing unless RUNNING. */
void sandbox_ping(struct sandbox *s);

/* ---- sandbox_lifecycle.c ---- */

void sandbox_pause(struct sandbox *s);  /* from RUNNING */
void sandbox_resume(struct sandbox *s); /* from PAUSED */

/* ---- sandbox_snapshot.c ---- */

void sandbox_suspend(struct sandbox *s);       /* from RUNNING, PAUSED: the snapshot that is wanted, then SUSPENDED */
void sandbox_snapshot(struct sandbox *s);      /* from RUNNING, PAUSED: beside them */
void sandbox_copy_snapshot(struct sandbox *s); /* from SUSPENDED */
void sandbox_look(struct sandbox *s);          /* from NEW: SUSPENDED when its snapshot is there, else FAILED */
void sandbox_rest(struct sandbox *s);          /* from NEW: SUSPENDED, as control has it */

/* ---- sandbox_report.c ---- */

/* The object for the observed call, or NULL when there is nothing to say. */
json_t *sandbox_report(const struct sandbox *s);
/* What it is called there; NULL: nothing is to be said. */
const char *sandbox_report_state(const struct sandbox *s);
/* Control has taken (or not) what sandbox_report() said. */
void sandbox_reported(struct sandbox *s, bool taken);
