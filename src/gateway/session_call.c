/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a short request through access and the agent's stream, and what the agent's errors mean to a client. */
#include "gateway/session_call.h"
#include "base/log.h"
#include "base/text.h"
#include <string.h>

#define ANSWER_MAX 256

static void set_state(struct session_call *c, enum session_call_state to) {
    c->state = to;
    if (to != CALL_ACCESS)
        c->access = access_cancel(c->access);
    if (to != CALL_LIVE)
        c->guest = NULL;
    if (to == CALL_DONE) {
        c->conn = guest_conn_free(c->conn);
        c->timer = loop_timer_free(c->timer);
        if (c->session)
            session_leave(c->gateway->sessions, c->session, SESSION_CALL);
        c->session = NULL;
    }
}

void session_call_refuse(struct session_call *c, const struct problem *p) {
    set_state(c, CALL_DONE);
    c->gateway->stats.refused++;
    problem_answer(c->exchange, p);
}

static void refuse(struct session_call *c, int status, const char *code, const char *detail) {
    struct problem p;
    problem_set(&p, status, code, "", "%s", detail);
    session_call_refuse(c, &p);
}

static void violation(struct session_call *c, const char *what) {
    c->gateway->stats.violations++;
    log_event(LOG_L_WARN, "guest_protocol", "process_id", c->process_id, "what", what, NULL);
    refuse(c, 502, "bad_gateway", "the sandbox's agent broke its protocol");
}

/* Words of the agent → answers. What is not here is a fault of the agent's side. */
static const struct {
    const char *agent;
    int status;
    const char *code, *detail;
} agent_errors[] = {
    {"closed", 409, NULL, "the process does not take this any more"},
    {"exited", 409, "process_exited", "the process has ended"},
    {"busy", 503, "unavailable", "the sandbox is busy"},
    {"frozen", 503, "unavailable", "the sandbox is being paused"},
    {"limit", 503, "unavailable", "the sandbox is at a limit of its agent"},
    {"no_memory", 503, "unavailable", "the sandbox has no memory left"},
    {"invalid", 400, "invalid", "the agent refuses these values"},
};

static void on_agent_error(struct session_call *c, const struct record *rec) {
    char word[64];
    if (record_get_string(rec, TAG_CODE, word, sizeof(word)) != 1) {
        violation(c, "ERROR has a malformed code");
        return;
    }
    if (strcmp(word, "not_found") == 0) {
        if (c->may_start)
            refuse(c, 409, "not_started", "the command was not started yet: attach to its events first");
        else
            refuse(c, 410, "gone", "the process is no longer known");
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(agent_errors); i++)
        if (strcmp(word, agent_errors[i].agent) == 0) {
            const char *code = agent_errors[i].code ? agent_errors[i].code : c->kind->closed_code;
            refuse(c, agent_errors[i].status, code, agent_errors[i].detail);
            return;
        }
    refuse(c, 502, "bad_gateway", "the sandbox's agent failed");
}

static bool on_record(void *ctx, const struct record *rec) {
    struct session_call *c = ctx;
    _cleanup_buf_ struct buf out = {0};
    if (rec->type == REC_ERROR) {
        on_agent_error(c, rec);
        return false;
    }
    buf_init(&out, ANSWER_MAX);
    if (rec->type != REC_OK || !c->kind->answer(c, rec, &out) || out.failed) {
        violation(c, "an answer that cannot be");
        return false;
    }
    set_state(c, CALL_DONE);
    (void)exchange_respond(c->exchange, 200, "application/json", out.data, out.len);
    return false;
}

static void on_guest_end(void *ctx, enum guest_end end, const char *text) {
    struct session_call *c = ctx;
    if (end == GUEST_VIOLATION)
        violation(c, text);
    else
        refuse(c, 503, "unavailable", "the sandbox does not answer");
}

static void on_timeout(void *ctx) {
    refuse(ctx, 503, "unavailable", "the sandbox did not answer in time");
}

static void on_guest_open(void *ctx) {
    struct session_call *c = ctx;
    _cleanup_buf_ struct buf request = {0};
    buf_init(&request, RECORD_HEADER_SIZE + RECORD_MAX_PAYLOAD);
    set_state(c, CALL_LIVE);
    c->guest = c->conn;
    c->kind->put(c, &request);
    (void)guest_conn_write(c->guest, request.data, request.len);
    c->gateway->stats.calls++;
    if (c->kind->answer_ms) {
        c->timer = loop_timer_new(c->gateway->loop, on_timeout, c);
        loop_timer_start(c->timer, c->kind->answer_ms, 0);
    }
    if (c->kind->opened)
        c->kind->opened(c);
}

static void on_guest_drain(void *ctx) {
    struct session_call *c = ctx;
    if (c->kind->drained)
        c->kind->drained(c);
}

static void open_guest(struct session_call *c, const struct grant *grant) {
    static const struct guest_conn_events events = {.on_open = on_guest_open,
                                                    .on_record = on_record,
                                                    .on_end = on_guest_end,
                                                    .on_drain = on_guest_drain};
    struct gateway *g = c->gateway;
    struct problem p;
    if (!c->kind->check(c, grant, &p)) {
        session_call_refuse(c, &p);
        return;
    }
    c->session = session_enter(g->sessions, grant->session_id, SESSION_CALL);
    if (!c->session) {
        refuse(c, 429, "too_many_streams", "the session has too many requests open");
        return;
    }
    set_state(c, CALL_OPEN);
    c->may_start = grant->may_start;
    (void)text_copy(c->process_id, sizeof(c->process_id), grant->process_id);
    if (guest_conn_new(g->loop, g->settings->state_dir, grant->sandbox_id, GATEWAY_OPEN_MS, &events, c, &c->conn,
                       NULL) < 0)
        refuse(c, 503, "unavailable", "the sandbox does not answer");
}

static void on_access(void *ctx, struct grant *grant, const struct problem *problem) {
    struct session_call *c = ctx;
    c->access = NULL;
    if (problem)
        session_call_refuse(c, problem);
    else
        open_guest(c, grant);
}

void session_call_start(struct exchange *x, const struct session_call_kind *kind, const struct session_call *fields,
                        const struct exchange_events *events) {
    struct gateway *g = exchange_server_ctx(x);
    struct problem p;
    struct grant *grant = NULL;
    struct session_call *c = malloc(sizeof(*c));
    int r;
    if (!c) {
        (void)exchange_problem(x, 503, "unavailable", "", "out of memory");
        return;
    }
    *c = *fields;
    c->gateway = g;
    c->kind = kind;
    c->exchange = exchange_ref(x);
    c->state = CALL_ACCESS;
    exchange_set_events(x, events, c);
    r = access_start(g, x, false, on_access, c, &c->access, &grant, &p);
    if (r < 0)
        session_call_refuse(c, &p);
    else if (r > 0)
        open_guest(c, grant);
    grant_unref(grant);
}

void session_call_on_close(struct exchange *x, enum exchange_end end) {
    struct session_call *c = exchange_user(x);
    c->gateway->stats.client_gone += end == EXCHANGE_CLIENT_GONE;
    set_state(c, CALL_DONE);
    exchange_unref(x);
    free(c);
}

void session_call_on_shutdown(struct exchange *x) {
    struct session_call *c = exchange_user(x);
    if (c->state == CALL_ACCESS || c->state == CALL_OPEN)
        refuse(c, 503, "unavailable", "the gateway stops");
}
