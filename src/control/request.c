/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's half of a request: accepting, handing to a worker, answering, freeing. The worker's half is dispatch.c. */
#include "control/request.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "control/dispatch.h"
#include "control/parking.h"
#include "model/limits.h"
#include "wire/http1.h"
#include <stdarg.h>
#include <string.h>

struct request *request_free(struct request *rq) {
    if (rq) {
        json_decref(rq->body);
        json_decref(rq->query);
        json_decref(rq->answer);
        if (rq->text && rq->route->seals)
            text_wipe(rq->text, rq->text_len);
        free(rq->text);
        (void)exchange_unref(rq->x);
        free(rq);
    }
    return NULL;
}

static void put_headers(struct request *rq, int status) {
    (void)exchange_add_header(rq->x, "Cache-Control", "no-store");
    if (rq->is_replay)
        (void)exchange_add_header(rq->x, "Idempotency-Replayed", "true");
    if (status == 401)
        (void)exchange_add_header(rq->x, "WWW-Authenticate", "Bearer");
    if (status == 429 || status == 503) {
        char seconds[16];
        (void)text_printf(seconds, sizeof(seconds), "%u", rq->retry_after_s ? rq->retry_after_s : 1);
        (void)exchange_add_header(rq->x, "Retry-After", seconds);
    }
    if (rq->route->prefers && rq->wait_s && status == 202) {
        char wait[24];
        (void)text_printf(wait, sizeof(wait), "wait=%u", rq->wait_s);
        (void)exchange_add_header(rq->x, "Preference-Applied", wait);
    }
}

static void answer_problem(struct request *rq) {
    const struct problem_row *row = problem_row(rq->has_problem ? rq->problem : problem_of_error(rq->err.code));
    /* What the database or the platform said of its insides is for the log. */
    bool is_ours = row->status >= 500 && !rq->has_problem;
    const char *detail = !is_ours             ? rq->err.text
                         : row->status == 503 ? "the service cannot answer now; repeat with the same Idempotency-Key"
                                              : "a fault of the platform; the log has the details";
    json_t *doc = json_pack("{s:s, s:s, s:i, s:s, s:s}", "type", "about:blank", "title", http1_reason(row->status),
                            "status", row->status, "code", row->code, "detail", detail);
    if (!doc)
        abort();
    if (rq->err.field[0] && !is_ours)
        (void)json_object_set_new(doc, "field", json_string(rq->err.field));
    if (rq->problem_operation[0])
        (void)json_object_set_new(doc, "operation_id", json_string(rq->problem_operation));
    char *text = json_print(doc);
    if (is_ours)
        log_error(row->status == 503 ? LOG_L_WARN : LOG_L_ERROR, "request_failed", &rq->err, "action",
                  rq->route->action, NULL);
    put_headers(rq, row->status);
    (void)exchange_respond(rq->x, row->status, "application/problem+json", text, strlen(text));
    free(text);
    json_decref(doc);
}

void request_answer(struct request *rq) {
    if (rq->err.code != SP_OK || rq->has_problem)
        answer_problem(rq);
    else if (rq->status == 204) {
        put_headers(rq, 204);
        (void)exchange_respond(rq->x, 204, NULL, "", 0);
    } else {
        put_headers(rq, rq->status);
        (void)exchange_respond(rq->x, rq->status, rq->content_type ? rq->content_type : "application/json",
                               rq->text ? rq->text : "{}", rq->text ? rq->text_len : 2);
    }
    (void)request_free(rq);
}

static bool should_park(const struct request *rq) {
    return rq->err.code == SP_OK && !rq->has_problem && rq->wait_kind && rq->wait_s && !rq->is_settled;
}

static void unavailable(struct request *rq, const char *why) {
    rq->has_problem = false;
    (void)sp_error_set(&rq->err, SP_E_UNAVAILABLE, "%s", why);
}

/* What a request's transaction changed, for those who wait here. */
struct told {
    struct control *c;
    int pid;
    unsigned n;
    struct store_note notes[REQUEST_NOTES];
};

static struct told told_of(struct request *rq) {
    struct told t = {.c = rq->c, .pid = rq->notes_pid, .n = rq->n_notes};
    memcpy(t.notes, rq->notes, rq->n_notes * sizeof(*rq->notes));
    rq->n_notes = 0;
    return t;
}

static void tell(const struct told *t) {
    for (unsigned i = 0; i < t->n; i++)
        if (t->notes[i].kind != 'r')
            parking_tell(&t->c->parking, t->notes[i].kind, t->notes[i].id, t->pid);
}

static void on_done(struct worker_job *job, bool ran) {
    struct request *rq = (struct request *)job;
    if (!ran)
        unavailable(rq, "the service is stopping");
    struct told told = told_of(rq); /* the request may be gone afterwards */
    if (rq->is_parked)
        parking_refreshed(rq);
    else if (should_park(rq) && !rq->c->is_stopping)
        parking_add(rq);
    else
        request_answer(rq);
    tell(&told);
}

void request_submit(struct request *rq) {
    rq->job.run = dispatch_run;
    rq->job.done = on_done;
    if (worker_pool_submit(rq->c->pool, &rq->job) == 0)
        return;
    unavailable(rq, "too many requests are waiting for the database");
    if (rq->is_parked)
        parking_refreshed(rq);
    else
        request_answer(rq);
}

void request_accept(struct exchange *x) {
    struct request *rq = calloc(1, sizeof(*rq));
    if (!rq) {
        (void)exchange_problem(x, 503, "unavailable", NULL, "out of memory");
        return;
    }
    rq->c = exchange_server_ctx(x);
    rq->x = exchange_ref(x);
    rq->route = exchange_route(x)->data;
    rq->news_seq = rq->c->parking.news_seq;
    if (!rq->route->on_loop) {
        request_submit(rq);
        return;
    }
    if (rq->route->handler(rq) == 0 && rq->answer && !rq->text) {
        rq->text = json_print(rq->answer);
        rq->text_len = strlen(rq->text);
    }
    request_answer(rq);
}

/* ---- for handlers ---- */

int request_problem(struct request *rq, enum problem_code code, const char *field, const char *fmt, ...) {
    char text[sizeof(rq->err.text)];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof(text), fmt, ap) < 0)
        text[0] = '\0';
    va_end(ap);
    rq->has_problem = true;
    rq->problem = code;
    return sp_error_field(&rq->err, SP_E_CONFLICT, field, "%s", text);
}

int request_map(struct request *rq, int r, enum sp_code when, enum problem_code code, const char *field) {
    if (r == -(int)when) {
        rq->has_problem = true;
        rq->problem = code;
        (void)text_copy(rq->err.field, sizeof(rq->err.field), field);
    }
    return r;
}

struct store_page request_page(const struct request *rq) {
    return (struct store_page){.cursor = request_query(rq, "cursor"),
                               .limit = (unsigned)body_uint(rq->query, "limit", LIMIT_VALUE(page_default))};
}

const char *request_query(const struct request *rq, const char *name) {
    return body_text(rq->query, name);
}

const char *request_param(const struct request *rq, const char *name) {
    const char *v = exchange_param(rq->x, name);
    return v ? v : "";
}

const char *body_text(const json_t *body, const char *name) {
    return json_string_value(json_object_get(body, name));
}

uint64_t body_uint(const json_t *body, const char *name, uint64_t fallback) {
    const json_t *v = json_object_get(body, name);
    return json_is_integer(v) ? (uint64_t)json_integer_value(v) : fallback;
}

bool body_bool(const json_t *body, const char *name, bool fallback) {
    const json_t *v = json_object_get(body, name);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}
