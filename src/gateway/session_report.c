/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One entry a session with what control has yet to hear: first the start, then the end. Bounded: when it is full the
 * oldest entry is given up and said in the log; control then learns the end from the next reader.
 */
#include "gateway/session_report.h"
#include "base/log.h"
#include "base/text.h"
#include <stdlib.h>
#include <string.h>

#define WAITING_MAX 8192u
#define RETRY_FIRST_MS 200u
#define RETRY_MAX_MS 10000u
#define GIVE_UP_MS (3600u * 1000)
#define REASON_MAX 64

struct session_report {
    struct session_reports *owner;
    struct session_report *next, *prev;
    char session_id[ID_SIZE];
    char reason[REASON_MAX + 1];
    uint64_t pid, exit_code, signal;
    bool start_waits, exit_waits;
    bool sending_exit; /* which of the two the running call carries */
    struct internal_call *call;
    struct loop_timer *retry;
    uint64_t retry_ms, since_ms;
};

struct session_reports {
    struct loop *loop;
    struct internal_client *control;
    struct session_report *first, *last; /* oldest first */
    size_t n;
    uint64_t dropped;
};

struct session_reports *session_reports_new(struct loop *l, struct internal_client *control) {
    struct session_reports *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    *r = (struct session_reports){.loop = l, .control = control};
    return r;
}

static void report_free(struct session_report *p) {
    struct session_reports *r = p->owner;
    *(p->prev ? &p->prev->next : &r->first) = p->next;
    *(p->next ? &p->next->prev : &r->last) = p->prev;
    r->n--;
    internal_call_cancel(p->call);
    loop_timer_free(p->retry);
    free(p);
}

struct session_reports *session_reports_free(struct session_reports *r) {
    if (!r)
        return NULL;
    while (r->first)
        report_free(r->first);
    free(r);
    return NULL;
}

static void report_drop(struct session_report *p, const char *why) {
    p->owner->dropped++;
    log_event(LOG_L_WARN, "session_report_dropped", "session_id", p->session_id, "why", why, NULL);
    report_free(p);
}

static void report_send(struct session_report *p);

static void report_retry(void *ctx) {
    report_send(ctx);
}

static void report_again(struct session_report *p) {
    if (loop_now_ms(p->owner->loop) - p->since_ms > GIVE_UP_MS) {
        report_drop(p, "control did not take it for an hour");
        return;
    }
    loop_timer_start(p->retry, p->retry_ms, 0);
    p->retry_ms = p->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : p->retry_ms * 2;
}

static void on_answer(void *ctx, const struct internal_answer *a) {
    struct session_report *p = ctx;
    p->call = NULL;
    if (!a->body && (a->status < 400 || a->status >= 500 || a->status == 401 || a->status == 429)) {
        report_again(p);
        return;
    }
    if (!a->body) {
        report_drop(p, a->code);
        return;
    }
    if (p->sending_exit)
        p->start_waits = p->exit_waits = false;
    else
        p->start_waits = false;
    p->retry_ms = RETRY_FIRST_MS;
    if (p->exit_waits)
        report_send(p);
    else
        report_free(p);
}

static json_t *report_body(const struct session_report *p) {
    json_int_t pid = (json_int_t)p->pid;
    if (!p->sending_exit)
        return json_pack("{s:s, s:I}", "state", "started", "pid", pid);
    return json_pack("{s:s, s:I, s:o, s:o, s:s}", "state", "exited", "pid", pid, "exit_code",
                     p->signal ? json_null() : json_integer((json_int_t)p->exit_code), "signal",
                     p->signal ? json_integer((json_int_t)p->signal) : json_null(), "reason", p->reason);
}

static void report_send(struct session_report *p) {
    char target[128];
    struct sp_error err = {0};
    struct internal_request req = {.method = "POST", .target = target, .timeout_ms = 10000};
    _cleanup_json_ json_t *body = NULL;
    p->sending_exit = !p->start_waits;
    body = report_body(p);
    (void)text_printf(target, sizeof(target), "/internal/v1/sessions/%s/state", p->session_id);
    req.body = body;
    if (!body || internal_call_start(p->owner->control, &req, on_answer, p, &p->call, &err) < 0)
        report_again(p);
}

/* The session's entry, made if there is none. */
static struct session_report *report_of(struct session_reports *r, const char *session_id) {
    struct session_report *p;
    for (p = r->last; p; p = p->prev)
        if (strcmp(p->session_id, session_id) == 0)
            return p;
    if (r->n >= WAITING_MAX)
        report_drop(r->first, "too many wait");
    p = calloc(1, sizeof(*p));
    if (!p)
        abort();
    *p = (struct session_report){.owner = r,
                                 .prev = r->last,
                                 .retry_ms = RETRY_FIRST_MS,
                                 .since_ms = loop_now_ms(r->loop)};
    (void)text_copy(p->session_id, sizeof(p->session_id), session_id);
    p->retry = loop_timer_new(r->loop, report_retry, p);
    *(r->last ? &r->last->next : &r->first) = p;
    r->last = p;
    r->n++;
    return p;
}

static void report_wake(struct session_report *p) {
    if (!p->call && !loop_timer_is_active(p->retry))
        report_send(p);
}

void session_report_started(struct session_reports *r, const char *session_id, uint64_t pid) {
    struct session_report *p = report_of(r, session_id);
    if (p->start_waits || p->exit_waits)
        return;
    p->start_waits = true;
    p->pid = pid;
    report_wake(p);
}

void session_report_exited(struct session_reports *r, const char *session_id, uint64_t pid,
                           const struct session_exit *exit) {
    struct session_report *p = report_of(r, session_id);
    if (p->exit_waits)
        return;
    p->exit_waits = true;
    p->pid = pid;
    p->exit_code = exit->exit_code;
    p->signal = exit->signal;
    (void)text_copy(p->reason, sizeof(p->reason), exit->reason);
    report_wake(p);
}

size_t session_reports_waiting(const struct session_reports *r) {
    return r->n;
}

uint64_t session_reports_dropped(const struct session_reports *r) {
    return r->dropped;
}
