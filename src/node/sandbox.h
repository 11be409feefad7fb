/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sandbox of this node: a small state machine from "wanted" to "running" to "gone". Events come from the template
 * cache, the broker, the VM's control.sock, a deadline, and what control wants; the one set_state() frees what the new
 * state may not hold.
 *
 *   NEW → WAITING → QUEUED → STARTING → COMING_UP → RUNNING
 *    ↑                          └──────────┴───────────┴──→ STOPPING → NEW | FAILED | DELETED
 */
#pragma once
#include "node/fault.h"
#include "node/reconcile.h"
#include "node/template_cache.h"
#include "node/vm_link.h"

enum sandbox_step {
    SB_NEW,       /* nothing done yet */
    SB_WAITING,   /* for its template's snapshot */
    SB_QUEUED,    /* for a start slot */
    SB_STARTING,  /* the broker makes the VM */
    SB_COMING_UP, /* there is a VM; not running yet */
    SB_RUNNING,
    SB_STOPPING, /* the broker removes everything; then `after` */
    SB_FAILED,   /* nothing on the host; the fault is kept */
    SB_DELETED,  /* nothing on the host */
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
    uint64_t order; /* of arrival in the queue */

    struct template_waiter waiter; /* WAITING */
    struct broker_call *call;      /* STARTING, STOPPING */
    struct vm_link *link;          /* COMING_UP, RUNNING */
    struct loop_timer *deadline;   /* until RUNNING */
    struct loop_timer *retry;      /* STARTING, STOPPING: the broker had no room */

    /* what is said of it */
    bool ready;      /* RUNNING, vm_ready, and the agent answers */
    bool vm_ready;   /* by its status */
    unsigned missed; /* pings in a row without an answer of the agent */
    char accelerator[8], kernel[8];
    uint64_t began_ms, started_ms, since_ms; /* of the whole start, of its vm_start, of the step that runs */
    uint64_t queue_ms, template_ms, broker_ms, total_ms;
    json_t *vm_timings;
    struct {
        bool due;       /* something changed since the last report that was sent */
        bool under_way; /* a report is being sent */
        uint64_t last_ms;
    } report;
};

struct sandbox *sandbox_new(struct node *n, const char *id); /* NEW; in the node's table; aborts on no memory */
void sandbox_free(struct sandbox *s); /* takes it out of the table; only FAILED, DELETED, or at the end */

/* What control wants now; the deadline counts from here when a start is on its way. */
void sandbox_set_want(struct sandbox *s, const struct desired *d);
/* From NEW, FAILED: makes it run. */
void sandbox_start(struct sandbox *s);
/* Ends whatever is there, then `after` (SB_NEW, SB_FAILED with s->fault, SB_DELETED). While STOPPING: changes what comes after. */
void sandbox_stop(struct sandbox *s, enum sandbox_step after);
void sandbox_fail(struct sandbox *s, const struct fault *fault);
/* A VM was found on the host that is not in the table. */
void sandbox_adopt(struct sandbox *s, bool alive);
/* Asks the agent whether it is there; several misses make the sandbox not ready. Nothing unless RUNNING. */
void sandbox_ping(struct sandbox *s);
/* A start slot is free. */
void sandbox_take_slot(struct sandbox *s);
/* The broker is there again; listed: what it said of this VM. */
enum sandbox_listed { LISTED_NOT, LISTED_DEAD, LISTED_ALIVE };
void sandbox_broker_up(struct sandbox *s, enum sandbox_listed listed);

bool sandbox_holds_slot(const struct sandbox *s);
bool sandbox_holds_host(const struct sandbox *s); /* counts for admission, and its leavings are not swept */
enum local_state sandbox_local_state(const struct sandbox *s);
const char *sandbox_step_name(enum sandbox_step step);

/* ---- sandbox_report.c ---- */

/* The object for the observed call, or NULL when there is nothing to say. */
json_t *sandbox_report(const struct sandbox *s);
/* Control has taken (or not) what sandbox_report() said. */
void sandbox_reported(struct sandbox *s, bool taken);
