/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request on its way: born on the loop, run by a worker (who asks, may they, is it well formed, then the route's
 * handler), answered on the loop, or parked there until something happens and it is looked at again.
 *
 * A handler is straight-line code on a worker thread. It returns 0 with `status` and `answer` set, or negative with `err`
 * set by what failed, or by request_problem(). A route that mutates runs inside one transaction together with its
 * idempotency row and its audit row, and may be run again from the start when the database asks for it.
 */
#pragma once
#include "base/json.h"
#include "control/control.h"
#include "model/ids.h"
#include "model/problems.h"
#include "model/scopes.h"
#include "model/validate.h"
#include "store/idempotency.h"
#include "store/store.h"
#include "store/tokens.h"

struct request;
#define REQUEST_NOTES 16

enum route_auth { AUTH_NONE, AUTH_MANAGEMENT, AUTH_INTERNAL };
struct api_route {
    const char *method, *pattern;
    const char *action; /* operationId; label of metrics and audit */
    enum route_auth auth;
    uint32_t scope;                         /* AUTH_MANAGEMENT; 0: any token */
    const struct field_table *body, *query; /* NULL: none allowed */
    bool is_raw_json;                       /* the body is JSON that the handler checks itself (internal API) */
    bool mutates;                           /* in a transaction, with Idempotency-Key and audit */
    bool seals;                             /* the answer holds a secret: its kept copy is encrypted */
    bool prefers;                           /* takes Prefer: wait=N */
    bool on_loop;                           /* needs no database: runs on the loop at once */
    int (*handler)(struct request *rq);
    int (*refresh)(struct request *rq); /* looks again at what a parked request waits for */
};

struct request {
    struct worker_job job; /* first */
    struct control *c;
    struct exchange *x;
    const struct api_route *route;
    struct store *db; /* while a worker has it */

    struct auth auth;
    json_t *body, *query; /* validated; query is {} when there is none */
    char key[256];        /* Idempotency-Key, "" when none */
    struct idempotency_key idempotency;
    char route_text[512]; /* method and path, for it */

    int status;
    json_t *answer; /* NULL: no body */
    char *text;     /* the printed answer; instead of it when replayed or not JSON */
    size_t text_len;
    const char *content_type; /* NULL: application/json */
    bool is_replay;
    char object_id[ID_SIZE]; /* what was made or changed, for the audit */

    bool has_problem; /* `problem` is chosen, not derived from err */
    enum problem_code problem;
    struct sp_error err;
    char problem_operation[ID_SIZE];
    unsigned retry_after_s; /* 0: 1 for those that have one */

    /* Waiting: what for (read by the loop once parked, so a refresh leaves it alone), how long at most, and whether there
     * is nothing left to wait for. */
    char wait_kind; /* a note_kind, 0: nothing */
    char wait_key[72];
    unsigned wait_s;
    bool is_settled;
    uint64_t since;    /* desired state: the revision the node has */
    uint64_t news_seq; /* of the parking place, when it was handed to a worker first */

    /* What its transaction changed for others, until they were told. */
    struct store_note notes[REQUEST_NOTES];
    unsigned n_notes;
    int notes_pid;

    /* Parked; loop thread only. */
    struct request *next, *prev;
    uint64_t deadline_ms, recheck_ms;
    bool is_parked, is_running, is_dirty, is_gone;
};

/* http_route.handler of every route; http_route.data is the api_route. */
void request_accept(struct exchange *x);
/* Hands it to a worker (again); answers 503 when the queue is full. Loop thread. */
void request_submit(struct request *rq);
/* Sends what it holds and frees it. Loop thread. */
void request_answer(struct request *rq);
struct request *request_free(struct request *rq);

/* Chooses the problem code and says why; field "" for none. Returns negative. */
int request_problem(struct request *rq, enum problem_code code, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* A store error of this code is shown as that problem from here on. Returns r. */
int request_map(struct request *rq, int r, enum sp_code when, enum problem_code code, const char *field);

/* Of a query that passed its table. */
struct store_page request_page(const struct request *rq);
const char *request_query(const struct request *rq, const char *name); /* NULL when not given */
const char *request_param(const struct request *rq, const char *name); /* checked path parameter */
/* Fields of a validated body. */
const char *body_text(const json_t *body, const char *name); /* NULL when not given or null */
uint64_t body_uint(const json_t *body, const char *name, uint64_t fallback);
bool body_bool(const json_t *body, const char *name, bool fallback);
