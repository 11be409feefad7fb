/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A short request to a session's process: access, one stream to the agent, one request record, one OK or ERROR. What
 * resize, signal and stdin share; a kind says what differs.
 */
#pragma once
#include "gateway/access.h"
#include "gateway/guest_conn.h"

struct session_call;
struct session_call_kind {
    uint64_t answer_ms; /* from the opened stream to the answer; 0: however long it takes */
    /* May this process be asked at all? False: *p is filled. */
    bool (*check)(const struct session_call *c, const struct grant *g, struct problem *p);
    void (*put)(const struct session_call *c, struct buf *out); /* the request record */
    void (*opened)(struct session_call *c);                     /* the request was sent; may be NULL */
    void (*drained)(struct session_call *c);                    /* may be NULL */
    /* The agent said OK: the answer's JSON into out (one object). False: that OK cannot be. */
    bool (*answer)(struct session_call *c, const struct record *ok, struct buf *out);
    const char *closed_code; /* what the agent's `closed` means: "stdin_closed", "process_exited" */
};

struct session_call {
    struct gateway *gateway;
    struct exchange *exchange;
    const struct session_call_kind *kind;
    char process_id[ID_SIZE];
    struct guest_conn *guest; /* NULL unless the stream stands */
    /* of the kinds: */
    uint64_t cols, rows;    /* resize */
    uint64_t signal, scope; /* signal */
    bool close_after;       /* stdin */
    uint64_t sent;          /* stdin: bytes handed to the stream */
    /* private: */
    enum session_call_state { CALL_ACCESS, CALL_OPEN, CALL_LIVE, CALL_DONE } state;
    bool may_start;
    struct access *access;
    struct guest_conn *conn;
    struct session_entry *session;
    struct loop_timer *timer;
};

/* `fields` carries the kind's fields; everything else is set here. Answers x in every case. `events` (whose user is the
 * call) must have the two functions below; more where there is a body. */
void session_call_start(struct exchange *x, const struct session_call_kind *kind, const struct session_call *fields,
                        const struct exchange_events *events);
void session_call_on_close(struct exchange *x, enum exchange_end end);
void session_call_on_shutdown(struct exchange *x);
/* Ends it with a refusal. */
void session_call_refuse(struct session_call *c, const struct problem *p);
