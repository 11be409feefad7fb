/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded QMP client. Blocking calls with deadlines over one end of a socketpair; commands one at a time; events that
 * arrive meanwhile are queued. The peer is a VMM whose guest may have taken it over: lines are at most 1 MiB, JSON is
 * parsed with our limits, the queue has a bound, and whatever breaks the protocol makes the client useless for good.
 */
#pragma once
#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"

#define QMP_LINE_MAX (1024 * 1024)
#define QMP_EVENTS_MAX 32
#define QMP_NAME_MAX 48

struct qmp_event {
    char name[QMP_NAME_MAX];
    json_t *data; /* object or NULL; the owner's to json_decref */
};

/* The parser alone, sans-I/O: bytes in, messages out. */
struct qmp_parser {
    struct buf in;
    size_t scanned; /* bytes of in known to hold no line feed */
};
void qmp_parser_init(struct qmp_parser *p);
void qmp_parser_done(struct qmp_parser *p);
/* -SP_E_PROTOCOL when a line grows over QMP_LINE_MAX. */
int qmp_parser_feed(struct qmp_parser *p, const void *data, size_t len, struct sp_error *err);
/* 1: *ret is the next message, an object (json_decref it); 0: no whole line is there; -SP_E_PROTOCOL. */
int qmp_parser_next(struct qmp_parser *p, json_t **ret, struct sp_error *err);

struct qmp {
    int fd; /* borrowed */
    struct qmp_parser parser;
    struct qmp_event events[QMP_EVENTS_MAX];
    size_t first_event, n_events;
    uint64_t events_dropped;
    uint64_t last_id;
    bool broken; /* end of file, nonsense or a call that ran out of time: no further call succeeds */
};

void qmp_init(struct qmp *q, int fd);
void qmp_done(struct qmp *q);
/* Waits for the greeting and leaves negotiation mode. */
int qmp_negotiate(struct qmp *q, struct deadline d, struct sp_error *err);
/* One command and its answer. `arguments` (may be NULL) is consumed in every case. pass_fd ≥ 0 travels with it and stays
 * the caller's. *ret_return (may be NULL) is the answer's value. An error answer is SP_E_VMM with QEMU's words escaped;
 * SP_E_TIMEOUT and SP_E_GONE (end of file) break the client. */
int qmp_execute(struct qmp *q, const char *command, json_t *arguments, int pass_fd, struct deadline d,
                json_t **ret_return, struct sp_error *err);
/* Waits for an event of that name, leaving others queued. *ret is the caller's. */
int qmp_wait_event(struct qmp *q, const char *name, struct deadline d, struct qmp_event *ret, struct sp_error *err);
/* Takes in what is readable, without waiting. */
int qmp_pump(struct qmp *q, struct sp_error *err);
bool qmp_next_event(struct qmp *q, struct qmp_event *ret);
