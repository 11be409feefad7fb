/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one object of space-vm: a VM, its state, and everything that hangs on it. The files of src/vm share this header;
 * nobody else includes it. One thread, two shapes kept apart: the files over step.h (lifecycle, boot, load, operate,
 * snapshot) are straight-line code that waits by turning the poll loop (turn.c) until something happened or a deadline
 * passed; every other file reacts to one descriptor without ever waiting.
 */
#pragma once
#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "vm/request.h"
#include "vm/vm_config.h"
#include "vmm/driver.h"
#include "wire/channel.h"
#include "wire/record.h"
#include <sys/types.h>

#define VM_CLIENTS_MAX 160     /* connections on guest.sock: every stream, and some that have not named a port */
#define VM_CONTROLS_MAX 8      /* connections on control.sock */
#define VM_CONSOLE_RING 65536  /* bytes of serial console kept */
#define VM_CONSOLE_REPLY 16384 /* of them in one answer */
#define VM_TIMINGS_MAX 16
#define VM_POLL_MAX (VM_CLIENTS_MAX + VM_CONTROLS_MAX + 8)

/* --- state ----------------------------------------------------------------------------------------------------------- */

enum vm_state {
    VM_STARTING,    /* VMM is being started; no guest yet */
    VM_BLANK,       /* held until `load`: it has no files and no guest */
    VM_RESTORING,   /* clone: device state is loaded */
    VM_WARM,        /* loaded, exercised and standing still, nobody's yet */
    VM_BOOTING,     /* template_boot, boot: until the agent's HELLO_ACK */
    VM_PROBING,     /* template_boot: start command and readiness probe */
    VM_IDENTIFYING, /* the guest becomes this generation */
    VM_RUNNING,     /* streams are served */
    VM_PAUSING,     /* on the way there: commands freeze, then the machine stops */
    VM_PAUSED,      /* resident, standing still; streams stay */
    VM_SAVING,      /* template_boot: quiesce, stop, device state */
    VM_SAVED,       /* the VMM is gone, the files are whole */
    VM_STOPPING,    /* asked to end */
    VM_FAILED,      /* the VMM is gone or wrong; kept for its reason */
};
const char *vm_state_name(enum vm_state state);

/* Why a VM failed; the names are the API's (spec/internal-api.md). */
enum vm_reason {
    VM_REASON_NONE,
    VM_REASON_VMM_FAILED,
    VM_REASON_VMM_KILLED,
    VM_REASON_GUEST_SILENT,
    VM_REASON_GUEST_PROTOCOL,
    VM_REASON_HOST_DISK_FULL,
    VM_REASON_DEADLINE,
    VM_REASON_PROBE_FAILED,
    VM_REASON_SNAPSHOT_BROKEN,
    VM_REASON_INTERNAL,
};
const char *vm_reason_name(enum vm_reason reason);

struct timings {
    struct {
        const char *step; /* static, e.g. "load_ms" */
        uint64_t us;
    } list[VM_TIMINGS_MAX];
    size_t n;
};

/* --- parts ------------------------------------------------------------------------------------------------------------ */

/* What a refused write of the host's disk brings (process.c). Everything but NONE is not ready. */
enum stall {
    STALL_NONE,
    STALL_STANDING, /* the VMM stopped the VM; it is told to go on from time to time */
    STALL_TRYING,   /* it goes on; without a new error for a moment the disk works again */
    STALL_CLOCK,    /* it runs; its clock stood still meanwhile and is being set (IDENTITY of the same generation) */
};

/* First member of whatever a channel stream's user pointer names. */
enum stream_kind { STREAM_OF_CLIENT, STREAM_OF_CALL };
struct stream_user {
    enum stream_kind kind;
};

/* One connection on guest.sock (client.c). */
enum client_state {
    CLIENT_FREE,
    CLIENT_LINE,     /* has not sent its CONNECT line */
    CLIENT_OPENING,  /* stream opened, no OPENED yet */
    CLIENT_OPEN,     /* bytes flow */
    CLIENT_FLUSHING, /* the stream is over, what it left goes out, then close */
};
struct client {
    struct stream_user user;
    enum client_state state;
    int fd;
    uint32_t port;            /* asked for; 0 until the line is whole */
    uint32_t id;              /* of the stream in OPENING and OPEN */
    struct buf out;           /* to the socket; at most one window */
    bool guest_ended;         /* the guest sends no more: shut the socket's write side once `out` is empty */
    bool client_ended;        /* the client sends no more, the guest knows */
    bool shut;                /* our write side was shut */
    struct deadline deadline; /* LINE, FLUSHING */
};

/* One question to the agent on a stream of its own (agent.c). */
enum call_state { CALL_IDLE, CALL_SENDING, CALL_WAITING, CALL_DONE, CALL_FAILED };
struct agent_call {
    struct stream_user user;
    enum call_state state;
    uint32_t id;
    struct deadline deadline;
    struct buf request;
    struct buf answer; /* payload of the answer */
    struct record_reader reader;
    uint16_t answer_type;
    struct sp_error error;
    bool holds; /* a QUIESCE: nothing goes to the guest behind it */
};

/* One connection on control.sock (control.c). */
struct control {
    int fd;            /* -1: free */
    uint64_t serial;   /* of this connection, never used again */
    bool is_root;      /* the peer's uid is 0 */
    bool wants_status; /* a status has not been sent since something changed */
    bool wants_pong;
    bool saw_saved;
};

/* The lifecycle request that is being worked on, one at a time: taken in by control.c, carried out by operate.c. */
struct operation {
    struct request request; /* kind REQUEST_NONE: there is none */
    uint64_t client;        /* serial of the connection that asked */
    int fds[REQUEST_FDS_MAX];
    bool answered;     /* its `done` has been said */
    bool may_stop;     /* snapshot: the broker's disk is ready for the stop */
    bool may_go;       /* snapshot: the disk was cloned */
    const char *code;  /* why it was refused; NULL: it was not */
    char message[200]; /* and in words */
    json_t *result;    /* further members of `done` */
    struct timings timings;
};

/* Which pages of the guest's RAM were written since its base (track.c). */
struct track {
    int fd_pagemap, fd_mem; /* of the VMM's process; -1: could not be opened */
    enum { TRACK_UNDECIDED, TRACK_SCAN, TRACK_COMPARE } how;
    uint64_t *noted; /* SCAN: a bit a page, written since the last committed snapshot, found by some scan */
    uint64_t n_pages;
};

/* Streams on guest.sock as the node is told of them. */
struct activity {
    unsigned streams;     /* counted last */
    uint64_t opened;      /* ever */
    uint64_t opened_seen; /* when counted last */
    uint64_t active_realtime_ns;
    bool untold;
    struct deadline next; /* not told again before */
};

/* Last bytes of the serial console (console.c). */
struct console {
    char ring[VM_CONSOLE_RING];
    uint64_t total; /* bytes ever; ring position is total modulo its size */
};

/* The VMM's own stderr, by lines; the last one is part of the reason when it dies. */
struct vmm_log {
    char partial[256];
    size_t partial_len;
    char last[256]; /* escaped */
};

struct vm {
    struct vm_config config;
    enum vm_state state;
    enum vm_reason reason;
    char message[256]; /* why it failed, for people */
    uint64_t started_ns;
    struct deadline deadline; /* of the lifecycle as a whole */
    struct timings timings;
    char snapshot[REQUEST_NAME_SIZE]; /* taken while it has stood still since; "" when it goes on */

    const struct vmm_driver *driver;
    struct vmm *vmm;
    pid_t vmm_pid;
    int vmm_pidfd; /* -1 once it was reaped */
    bool vmm_ended;
    bool up;                  /* its control connection answers */
    int vmm_status;           /* as of waitpid, when ended */
    struct deadline vmm_mute; /* at_ns 0, or: a connection of the VMM ended, it must be dead by then */
    bool control_closed, guest_closed, console_closed, log_closed;
    char shutdown_detail[64]; /* what the VMM said of its coming end, "" when it said nothing */

    enum stall stall;
    struct deadline stall_until; /* of STANDING and TRYING */

    struct operation operation;
    struct track track;
    struct activity activity;
    bool standing;    /* we stopped the machine */
    bool quiet;       /* no client is served: the guest is asked to be silent, or is */
    bool hold;        /* nothing goes to the guest: from QUIESCE on, until an IDENTITY or a HELLO */
    size_t hold_left; /* bytes queued before that still go */
    uint64_t last_serial;

    struct channel channel;
    bool connected;     /* the agent acknowledged this epoch's HELLO */
    uint8_t *inbox;     /* last bytes read from the channel */
    struct view unread; /* of them, not yet taken by the engine */

    struct agent_call call; /* the lifecycle's */
    struct agent_call ping; /* control.sock's */
    struct client clients[VM_CLIENTS_MAX];
    size_t next_client; /* where the next round begins, so that none starves */
    struct control controls[VM_CONTROLS_MAX];
    struct console console;
    struct vmm_log log;
    int fd_signal;
    bool stop_requested;
    bool saved_seen; /* a control client was told `saved` and hung up */
};

/* --- state.c: everything that changes vm->state ------------------------------------------------------------------------- */

int vm_init(struct vm *vm, struct sp_error *err);
void vm_done(struct vm *vm);
/* Moves on, frees what the new state may not hold, logs, and tells every control client. */
void vm_set_state(struct vm *vm, enum vm_state state);
/* To `failed`, once: the first reason stays. Kills and reaps the VMM, closes every stream. */
void vm_fail(struct vm *vm, enum vm_reason reason, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The reason that fits the error of a step. */
void vm_fail_error(struct vm *vm, const struct sp_error *err, enum vm_reason otherwise, const char *step);
/* Notes the time since *since_ns under a name, of the operation when there is one, and sets *since_ns to now. */
void vm_timing(struct vm *vm, const char *step, uint64_t *since_ns);
bool vm_is_ready(const struct vm *vm);
/* {step: ms} */
json_t *vm_timings_json(const struct timings *timings);
/* The status message, heap. */
char *vm_status_json(const struct vm *vm);
/* Counts streams; tells of a change at most once a second. To be called every turn. */
void vm_activity_tick(struct vm *vm);

/* --- process.c: the VMM as a child --------------------------------------------------------------------------------------- */

/* Reaps it if it ended; true when it is gone. */
bool vmm_reap(struct vm *vm);
/* SIGKILL and reap; fine when it is gone. */
void vmm_kill(struct vm *vm);
/* Waits for the end by itself; true when it is gone. */
bool vmm_wait_end(struct vm *vm, struct deadline d);
/* Decides why a dead VMM died, from its status and last words, and fails the VM with it. */
void vmm_fail_dead(struct vm *vm);
void vmm_log_read(struct vm *vm);    /* fd_log is readable */
void vmm_events_take(struct vm *vm); /* acts on the driver's queued events */
/* Moves a stalled VM on; to be called every turn. */
void vmm_stall_tick(struct vm *vm);
/* The machine was stopped by us: what its disk refused is tried again when it goes on. */
void vmm_stall_clear(struct vm *vm);

/* --- bridge.c: the channel's descriptor ------------------------------------------------------------------------------------ */

void bridge_connect(struct vm *vm);    /* a new epoch: HELLO */
void bridge_disconnect(struct vm *vm); /* after QUIESCED: silence until the next HELLO; streams are closed */
void bridge_hold(struct vm *vm);       /* what is queued by now still goes, nothing after it */
void bridge_release(struct vm *vm);    /* everything goes again */
bool bridge_wants_room(const struct vm *vm);
bool bridge_wants_input(const struct vm *vm);
void bridge_readable(struct vm *vm);
void bridge_closed(struct vm *vm); /* the VMM ended the connection */
void bridge_flush(struct vm *vm);  /* writes what is queued; feeds what had to wait for room */

/* --- client.c: guest.sock ----------------------------------------------------------------------------------------------------- */

void client_accept(struct vm *vm);
void client_event(struct vm *vm, struct client *c, const struct channel_event *ev);
short client_poll_events(const struct vm *vm, const struct client *c);
void client_ready(struct vm *vm, struct client *c, short revents);
bool client_has_timer(const struct client *c);
void client_tick(struct vm *vm, struct client *c); /* deadlines */
void client_close_all(struct vm *vm);
void client_refuse_waiting(struct vm *vm); /* those that have no stream yet */
unsigned client_streams(const struct vm *vm);

/* --- agent.c: questions to the agent ---------------------------------------------------------------------------------------------- */

int call_init(struct agent_call *call);
void call_done(struct agent_call *call);
/* Begins to build a question: append fields to call->request, then call_send(). The call must be idle or over. */
void call_begin(struct agent_call *call, enum record_type type);
/* IDENTITY with everything of the configuration, fresh entropy and the time of now: call_send() it at once. */
void call_begin_identity(const struct vm *vm, struct agent_call *call);
/* Ends the record and queues it; from here the call ends as DONE or FAILED, by the deadline at the latest. */
void call_send(struct vm *vm, struct agent_call *call, struct deadline d);
/* Ends its stream if it has one, without judging it. */
void call_cancel(struct vm *vm, struct agent_call *call);
void call_event(struct vm *vm, struct agent_call *call, const struct channel_event *ev);
void call_tick(struct vm *vm, struct agent_call *call); /* sends what had to wait, checks the deadline */
bool call_is_pending(const struct agent_call *call);
struct record call_answer(const struct agent_call *call);

/* --- control.c: control.sock --------------------------------------------------------------------------------------------------------- */

void control_accept(struct vm *vm);
short control_poll_events(const struct control *c);
void control_ready(struct vm *vm, struct control *c, short revents);
void control_status_changed(struct vm *vm);
void control_ping_tick(struct vm *vm); /* starts and answers pings */
/* Whether the connection of that serial is still there. */
bool control_is_there(const struct vm *vm, uint64_t serial);
/* Sends an event to the connection of that serial, if it is there; takes the event over. */
void control_tell(struct vm *vm, uint64_t serial, json_t *event);

/* --- console.c ------------------------------------------------------------------------------------------------------------------------ */

void console_append(struct console *c, const char *data, size_t len);
/* The last bytes, oldest first; returns how many (≤ size). */
size_t console_tail(const struct console *c, char *dst, size_t size);
void console_read(struct vm *vm); /* fd_console is readable */

/* --- turn.c: the poll loop ----------------------------------------------------------------------------------------------------------- */

/* One round: waits until something is ready, a timer of ours is due or the deadline passed, and serves all of it.
 * Deadline NULL: no bound of the caller's own. */
void vm_turn(struct vm *vm, const struct deadline *d);

/* --- track.c: which pages were written --------------------------------------------------------------------------------------- */

/* Opens what reading the VMM's memory needs; before vm_confine(). */
void track_open(struct vm *vm);
void track_done(struct track *t);
/* Copies into the snapshot's memory file (a clone of the base's) what was written since the last pass; `first` of a
 * snapshot: since the base. Turns the loop between pieces while the VM runs. Adds to *ret_pages. */
int track_copy(struct vm *vm, int fd, bool first, uint64_t *ret_pages, struct sp_error *err);
/* The snapshot copied last is the base from here on. */
void track_committed(struct vm *vm);

/* --- confine.c: before the VMM gets its files, so before any guest; everything space-vm still needs has been opened --- */

int vm_confine(struct sp_error *err);

/* --- lifecycle.c: straight-line ---------------------------------------------------------------------------------------------------------- */

/* From nothing to running, saved or failed; then serves until there is a reason to end. Returns the exit status. */
int vm_run(struct vm *vm);
