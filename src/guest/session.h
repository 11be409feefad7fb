/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a stream of the channel is for. A session takes records off its stream one at a time (none while an answer is
 * due), and has a small queue of records going out; both are bounded, by credit and by RECORD limits. The first record
 * decides: ATTACH and STDIN make the stream theirs, all other requests may follow each other on one stream.
 */
#pragma once
#include "guest/agent.h"
#include "wire/record.h"

enum session_kind {
    SESSION_REQUESTS, /* answers one request after the other */
    SESSION_ATTACH,   /* a reader of a command's output */
    SESSION_STDIN,
    SESSION_ENDED, /* everything is said; what is queued goes out, then the stream is shut down */
};

#define SESSION_QUEUE_MAX (RECORD_HEADER_SIZE + RECORD_MAX_PAYLOAD)

struct session {
    struct agent *agent;
    struct session *prev, *next;
    uint32_t id; /* stream */
    enum session_kind kind;
    bool busy;    /* an answer is due; input waits in `held` */
    bool got_end; /* the host shut its direction down */
    bool sent_end;
    bool first_seen;
    struct record_reader reader;
    struct buf held; /* input not taken yet */
    struct buf out;  /* records not sent yet */

    struct reader *attached; /* SESSION_ATTACH */
    struct process *probe;   /* a probe of ours is running */

    struct process *stdin_process; /* SESSION_STDIN: whose, NULL: gone */
    struct session *stdin_next;
    struct buf stdin_data; /* of the DATA record being written */
    uint64_t stdin_accepted;
    bool stdin_close_after;

    unsigned list_left, list_at; /* LIST: records still to be said */
    struct kill_wait *kill_wait; /* SIGNAL: waits for the cgroup to empty */
};

/* A stream to the agent's port was opened. NULL: out of memory. */
struct session *session_new(struct agent *a, uint32_t id);
/* Forgets it; the stream is already gone or is reset by the caller. */
void session_free(struct session *s);
void session_data(struct session *s, struct view data);
void session_end(struct session *s); /* the host shut down */
/* Sends what can be sent; true when something was. The session may be gone afterwards. */
bool session_pump(struct session *s);

/* --- for the request handlers --- */
/* Builds a record at the end of s->out: mark = session_begin(s, type); record_put_…(&s->out, …); session_commit(…). */
size_t session_begin(struct session *s, enum record_type type);
void session_commit(struct session *s, size_t mark);
void session_ok(struct session *s);
void session_error(struct session *s, const char *code, const char *message);
/* The answer that was due is queued: input goes on. */
void session_ready(struct session *s);
/* A list field as a NULL-ended array in one block. 0, -ENOMEM, -E2BIG over max entries. Empty: *ret is NULL-ended too. */
int session_list(const struct record *rec, enum record_tag tag, size_t max, char ***ret);

/* Handlers; each answers or sets busy. */
void request_ping(struct session *s, const struct record *rec);
void request_list(struct session *s, const struct record *rec);
bool request_list_pump(struct session *s);
void request_signal(struct session *s, const struct record *rec);
void request_signal_forget(struct session *s);
void request_resize(struct session *s, const struct record *rec);
void request_probe(struct session *s, const struct record *rec);
void request_shutdown(struct session *s, const struct record *rec);
void request_sync(struct session *s, const struct record *rec);
void request_attach(struct session *s, const struct record *rec);
void request_quiesce(struct session *s, const struct record *rec);
void request_identity(struct session *s, const struct record *rec);
void request_stdin(struct session *s, const struct record *rec);
void stdin_record(struct session *s, const struct record *rec);
void stdin_end(struct session *s);
void stdin_forget(struct session *s);
void stdin_process_gone(struct process *p);

/* --- reader.c: the attached half --- */
struct reader {
    struct session *session;
    struct process *process;
    struct reader *next; /* of the same process */
    uint64_t pos[2];     /* next offset to send of each output */
    bool stalled[2];     /* took nothing for too long: not waited for until it does */
    struct timer stall[2];
    unsigned turn; /* output that goes first */
    bool resumed, resync, started_sent;
};
int reader_attach(struct session *s, struct process *p, const struct record *rec, bool resumed);
void reader_detach(struct session *s);
bool reader_pump(struct reader *r);
/* The offset below which every live reader has everything; the ring's end when there is none. */
uint64_t readers_keep(const struct process *p, unsigned output);
/* The ring is full up to keep: whoever stands there has 5 s. */
void readers_blocked(struct process *p, unsigned output);
