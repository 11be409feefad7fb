/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /v1/sessions/{id}/events: one reader of one session. Asks control, opens a stream to the agent, attaches, and turns
 * its records into events, never holding more than GATEWAY_QUEUE_MAX for a client: above the high-water mark the guest's
 * stream is not read, so its credit ends and the process's pipe fills. Ends by exactly one of: process_exited, error, the
 * comment of a stopping gateway, or the client's going away (which is the only one that leaves the response cut).
 */
#include "base/log.h"
#include "base/text.h"
#include "gateway/access.h"
#include "gateway/exit_watch.h"
#include "gateway/guest_conn.h"
#include "gateway/session_report.h"
#include "gateway/translate.h"
#include "wire/sse.h"
#include <assert.h>
#include <string.h>

#define PROBE_MS 1500u /* to see whether a sandbox whose stream broke is still there */

enum state {
    ST_ACCESS, /* control was asked */
    ST_OPEN,   /* the stream to the agent is being opened */
    ST_LIVE,   /* the response has begun */
    ST_PROBE,  /* the agent's stream broke; is the sandbox still there? */
    ST_DONE,   /* nothing more is sent */
};

struct event_stream {
    struct gateway *gateway;
    struct exchange *exchange;
    enum state state;
    struct cursor from;
    struct access *access;         /* ST_ACCESS */
    struct grant *grant;           /* ST_OPEN; dropped once ATTACH is written */
    struct guest_conn *guest;      /* ST_OPEN, ST_LIVE, ST_PROBE */
    struct loop_timer *heartbeat;  /* ST_LIVE, ST_PROBE */
    struct session_entry *session; /* while it counts for its session */
    bool report_start;             /* control has not yet heard of a start */
    char session_id[ID_SIZE], sandbox_id[ID_SIZE], process_id[ID_SIZE];
    struct translator translator;
};

/* What a state may not hold is freed on the way into it. */
static void set_state(struct event_stream *s, enum state to) {
    s->state = to;
    if (to != ST_ACCESS)
        s->access = access_cancel(s->access);
    if (to != ST_OPEN)
        s->grant = grant_unref(s->grant);
    if (to == ST_PROBE || to == ST_DONE)
        s->guest = guest_conn_free(s->guest);
    if (to == ST_DONE) {
        s->heartbeat = loop_timer_free(s->heartbeat);
        if (s->session)
            session_leave(s->gateway->sessions, s->session, SESSION_STREAM);
        s->session = NULL;
    }
}

static void refuse(struct event_stream *s, const struct problem *p) {
    set_state(s, ST_DONE);
    s->gateway->stats.refused++;
    problem_answer(s->exchange, p);
}

/* Sends the events gathered in the scratch buffer. The high-water rule leaves room for them. */
static void flush(struct event_stream *s) {
    struct buf *out = &s->gateway->scratch;
    int r = 0;
    if (out->failed)
        r = -SP_E_INTERNAL;
    else if (out->len)
        r = exchange_write(s->exchange, out->data, out->len);
    buf_reset(out);
    if (r < 0 && r != -SP_E_GONE) {
        log_event(LOG_L_ERROR, "event_lost", "session_id", s->session_id, NULL);
        exchange_abort(s->exchange); /* never a stream with a hole */
    }
}

static void finish(struct event_stream *s) {
    flush(s);
    set_state(s, ST_DONE);
    (void)exchange_end(s->exchange);
}

static void fail(struct event_stream *s, const char *code, const char *text) {
    log_event(LOG_L_INFO, "stream_failed", "session_id", s->session_id, "sandbox_id", s->sandbox_id, "code", code,
              NULL);
    translate_error(&s->translator, code, text, &s->gateway->scratch);
    finish(s);
}

/* ---- the agent's stream ---- */

static bool has_room(const struct event_stream *s) {
    return exchange_queued(s->exchange) + s->gateway->scratch.len < GATEWAY_HIGH_WATER;
}

static void report_exit(struct event_stream *s) {
    const struct session_exit exit = {.exit_code = s->translator.exit_code,
                                      .signal = s->translator.signal,
                                      .reason = s->translator.reason};
    session_report_exited(s->gateway->reports, s->session_id, s->translator.pid, &exit);
}

static bool on_record(void *ctx, const struct record *rec) {
    struct event_stream *s = ctx;
    struct gateway *g = s->gateway;
    enum translate_result result = translate_record(&s->translator, rec, &g->scratch);
    g->stats.events += result != TRANSLATE_NOTHING;
    if (result == TRANSLATE_STARTED && s->report_start)
        session_report_started(g->reports, s->session_id, s->translator.pid);
    if (result == TRANSLATE_EXITED)
        report_exit(s);
    if (result == TRANSLATE_VIOLATION) {
        g->stats.violations++;
        log_event(LOG_L_WARN, "guest_protocol", "sandbox_id", s->sandbox_id, "session_id", s->session_id, "what",
                  s->translator.violation, NULL);
    }
    if (result == TRANSLATE_FAILED)
        log_event(LOG_L_INFO, "attach_failed", "session_id", s->session_id, "code", s->translator.code, NULL);
    if (s->translator.ended) {
        finish(s);
        return false;
    }
    return has_room(s);
}

static void on_batch_end(void *ctx) {
    struct event_stream *s = ctx;
    if (s->state != ST_LIVE)
        return;
    flush(s);
    if (has_room(s))
        guest_conn_resume(s->guest); /* the kernel took it all at once: no drain will come */
}

static void on_probe_open(void *ctx) {
    fail(ctx, "upstream_unavailable", "the stream to the guest was reset; attach again with Last-Event-ID");
}

static void on_probe_end(void *ctx, enum guest_end end, const char *text) {
    struct event_stream *s = ctx;
    (void)end;
    (void)text;
    s->gateway->stats.gone++;
    fail(s, "sandbox_gone", "the sandbox is gone");
}

/* A broken stream says nothing about the process, and not even that the VM died: it may have been reset for a snapshot. */
static void probe(struct event_stream *s) {
    static const struct guest_conn_events events = {.on_open = on_probe_open, .on_end = on_probe_end};
    struct gateway *g = s->gateway;
    set_state(s, ST_PROBE);
    if (guest_conn_new(g->loop, g->settings->state_dir, s->sandbox_id, PROBE_MS, &events, s, &s->guest, NULL) < 0)
        on_probe_end(s, GUEST_UNREACHABLE, "");
}

static void on_guest_end(void *ctx, enum guest_end end, const char *text) {
    struct event_stream *s = ctx;
    struct problem p;
    if (s->state == ST_LIVE && end == GUEST_VIOLATION) {
        s->gateway->stats.violations++;
        fail(s, "guest_protocol", text);
    } else if (s->state == ST_LIVE) {
        probe(s);
    } else {
        problem_set(&p, 503, "unavailable", "", "the sandbox does not answer: %s", text);
        refuse(s, &p);
    }
}

static void on_heartbeat(void *ctx) {
    struct event_stream *s = ctx;
    if (!has_room(s))
        return; /* bytes of ours wait for the client as it is */
    if (sse_put_comment(&s->gateway->scratch, "alive") == 0)
        s->gateway->stats.heartbeats++;
    flush(s);
}

static void start_response(struct event_stream *s) {
    struct exchange *x = s->exchange;
    exchange_set_queue_max(x, GATEWAY_QUEUE_MAX, GATEWAY_LOW_WATER);
    (void)exchange_add_header(x, "Cache-Control", "no-store");
    (void)exchange_add_header(x, "X-Accel-Buffering", "no");
    (void)exchange_start(x, 200, "text/event-stream", -1);
    s->heartbeat = loop_timer_new(s->gateway->loop, on_heartbeat, s);
    loop_timer_start(s->heartbeat, GATEWAY_HEARTBEAT_MS, GATEWAY_HEARTBEAT_MS);
    s->gateway->stats.streams++;
}

static void on_guest_open(void *ctx) {
    struct event_stream *s = ctx;
    struct sp_error err = {0};
    struct problem p;
    _cleanup_buf_ struct buf attach = {0};
    buf_init(&attach, RECORD_HEADER_SIZE + RECORD_MAX_PAYLOAD);
    if (grant_put_attach(s->grant, &s->from, &attach, &err) < 0) {
        problem_from_error(&p, &err);
        refuse(s, &p);
        return;
    }
    (void)guest_conn_write(s->guest, attach.data, attach.len);
    translator_init(&s->translator, s->process_id, &s->from);
    start_response(s);
    set_state(s, ST_LIVE);
}

/* ---- access ---- */

static void on_access(void *ctx, struct grant *grant, const struct problem *problem) {
    static const struct guest_conn_events events = {.on_open = on_guest_open,
                                                    .on_record = on_record,
                                                    .on_batch_end = on_batch_end,
                                                    .on_end = on_guest_end};
    struct event_stream *s = ctx;
    struct gateway *g = s->gateway;
    struct problem p;
    s->access = NULL;
    if (problem) {
        refuse(s, problem);
        return;
    }
    s->session = session_enter(g->sessions, grant->session_id, SESSION_STREAM);
    if (!s->session) {
        problem_set(&p, 429, "too_many_streams", "", "the session has %u readers already", GATEWAY_STREAMS_PER_SESSION);
        refuse(s, &p);
        return;
    }
    set_state(s, ST_OPEN);
    s->grant = grant_ref(grant);
    s->report_start = grant->may_start;
    (void)text_copy(s->session_id, sizeof(s->session_id), grant->session_id);
    (void)text_copy(s->sandbox_id, sizeof(s->sandbox_id), grant->sandbox_id);
    (void)text_copy(s->process_id, sizeof(s->process_id), grant->process_id);
    if (guest_conn_new(g->loop, g->settings->state_dir, s->sandbox_id, GATEWAY_OPEN_MS, &events, s, &s->guest, NULL) <
        0) {
        problem_set(&p, 503, "unavailable", "", "the sandbox does not answer");
        refuse(s, &p);
    }
}

/* ---- the exchange ---- */

static void on_drain(struct exchange *x) {
    struct event_stream *s = exchange_user(x);
    if (s->state == ST_LIVE && has_room(s))
        guest_conn_resume(s->guest);
}

static void on_shutdown(struct exchange *x) {
    struct event_stream *s = exchange_user(x);
    struct problem p;
    if (s->state == ST_LIVE || s->state == ST_PROBE) {
        (void)sse_put_comment(&s->gateway->scratch, "the gateway stops; attach again with Last-Event-ID");
        finish(s);
    } else if (s->state != ST_DONE) {
        problem_set(&p, 503, "unavailable", "", "the gateway stops");
        refuse(s, &p);
    }
}

static void on_close(struct exchange *x, enum exchange_end end) {
    struct event_stream *s = exchange_user(x);
    s->gateway->stats.client_gone += end == EXCHANGE_CLIENT_GONE;
    s->gateway->stats.stalled += end == EXCHANGE_TIMEOUT;
    if (s->state == ST_LIVE && s->translator.started) /* left before the end */
        exit_watch_add(s->gateway->exits, s->sandbox_id, s->session_id, s->process_id);
    set_state(s, ST_DONE);
    s->gateway->streams--;
    translator_done(&s->translator);
    exchange_unref(x);
    free(s);
}

static bool read_cursor(struct exchange *x, struct cursor *ret, struct problem *p) {
    const char *text = exchange_header(x, "Last-Event-ID");
    *ret = (struct cursor){0};
    if (http1_count(exchange_head(x), "Last-Event-ID") > 1 || (text && !cursor_parse(text, ret))) {
        problem_set(p, 400, "invalid", "Last-Event-ID", "Last-Event-ID must be an id of this stream: o=N,e=N,p=N");
        return false;
    }
    return true;
}

/* What can be said without asking anybody. */
static bool may_begin(struct gateway *g, struct exchange *x, struct cursor *ret_from, struct problem *p) {
    if (strcmp(exchange_method(x), "GET") != 0) { /* HEAD takes this route too, and would start the process */
        problem_set(p, 405, "method_not_allowed", "", "GET only");
        return false;
    }
    if (g->stopping || g->streams >= g->streams_max) {
        problem_set(p, 503, "unavailable", "", g->stopping ? "the gateway stops" : "the gateway has %u streams open",
                    g->streams);
        return false;
    }
    return read_cursor(x, ret_from, p);
}

void events_handler(struct exchange *x) {
    static const struct exchange_events events = {.on_drain = on_drain,
                                                  .on_shutdown = on_shutdown,
                                                  .on_close = on_close};
    struct gateway *g = exchange_server_ctx(x);
    struct problem p = {0};
    struct grant *grant;
    struct cursor from;
    struct event_stream *s;
    if (!may_begin(g, x, &from, &p)) {
        g->stats.refused++;
        problem_answer(x, &p);
        return;
    }
    s = calloc(1, sizeof(*s));
    if (!s) {
        (void)exchange_problem(x, 503, "unavailable", "", "out of memory");
        return;
    }
    *s = (struct event_stream){.gateway = g, .exchange = exchange_ref(x), .state = ST_ACCESS, .from = from};
    g->streams++;
    exchange_set_events(x, &events, s);
    if (access_start(g, x, true, on_access, s, &s->access, &grant, &p) < 0)
        refuse(s, &p);
}
