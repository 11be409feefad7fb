/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of waiting requests and one timer. A request is either resting here or being looked at by a worker (is_running);
 * what happens while it is looked at sets is_dirty, and it is looked at again. So no notification can fall in between.
 */
#include "control/parking.h"
#include "base/log.h"
#include "base/text.h"
#include <assert.h>
#include <string.h>

#define TICK_MS 100
#define RECHECK_MS 3000
#define RETRY_MS 500 /* after the database did not answer */

static void update_gauge(struct parking *p, struct control *c) {
    atomic_store_explicit(&c->metrics.parked_now, p->n, memory_order_relaxed);
}

static void unlink_request(struct request *rq) {
    struct parking *p = &rq->c->parking;
    *(rq->prev ? &rq->prev->next : &p->first) = rq->next;
    if (rq->next)
        rq->next->prev = rq->prev;
    rq->next = rq->prev = NULL;
    rq->is_parked = false;
    p->n--;
    if (p->n == 0)
        loop_timer_stop(p->timer);
    update_gauge(p, rq->c);
}

static void finish(struct request *rq) {
    unlink_request(rq);
    exchange_set_events(rq->x, NULL, NULL);
    if (rq->is_gone)
        (void)request_free(rq);
    else
        request_answer(rq);
}

static void look(struct request *rq) {
    rq->is_dirty = false;
    rq->is_running = true;
    request_submit(rq);
}

static void wake(struct request *rq) {
    if (rq->is_running)
        rq->is_dirty = true;
    else
        look(rq);
}

/* The client went away, or the answer is out. */
static void on_close(struct exchange *x, enum exchange_end end) {
    struct request *rq = exchange_user(x);
    (void)end;
    rq->is_gone = true;
    if (!rq->is_running)
        finish(rq);
}

static void on_shutdown(struct exchange *x) {
    struct request *rq = exchange_user(x);
    if (!rq->is_running)
        finish(rq);
    else
        rq->deadline_ms = 0;
}

/* Did something happen to what it waits for since it was handed to a worker? */
static bool has_news(const struct parking *p, const struct request *rq) {
    if (p->news_seq - rq->news_seq > PARKING_NEWS)
        return true;
    for (uint64_t i = rq->news_seq; i < p->news_seq; i++) {
        const struct parking_news *n = &p->news[i % PARKING_NEWS];
        if (n->kind == rq->wait_kind && strcmp(n->key, rq->wait_key) == 0)
            return true;
    }
    return false;
}

void parking_add(struct request *rq) {
    static const struct exchange_events events = {.on_close = on_close, .on_shutdown = on_shutdown};
    struct parking *p = &rq->c->parking;
    uint64_t now = loop_now_ms(rq->c->loop);
    if (exchange_is_over(rq->x)) {
        (void)request_free(rq);
        return;
    }
    rq->is_parked = true;
    rq->deadline_ms = now + rq->wait_s * 1000ull;
    rq->recheck_ms = now + RECHECK_MS;
    rq->next = p->first;
    if (p->first)
        p->first->prev = rq;
    p->first = rq;
    if (p->n++ == 0)
        loop_timer_start(p->timer, TICK_MS, TICK_MS);
    update_gauge(p, rq->c);
    exchange_set_events(rq->x, &events, rq);
    /* A kept answer is as old as it may be. */
    if (rq->is_replay || has_news(p, rq))
        look(rq);
}

static bool database_failed(const struct request *rq) {
    return rq->err.code == SP_E_UNAVAILABLE && !rq->has_problem;
}

void parking_refreshed(struct request *rq) {
    uint64_t now = loop_now_ms(rq->c->loop);
    bool failed = database_failed(rq);
    rq->is_running = false;
    if (rq->is_gone || rq->is_settled || now >= rq->deadline_ms || rq->c->is_stopping ||
        (!failed && (rq->has_problem || rq->err.code != SP_OK))) {
        finish(rq);
        return;
    }
    rq->recheck_ms = now + (failed ? RETRY_MS : RECHECK_MS);
    if (rq->is_dirty && !failed)
        look(rq);
}

static void wake_all_of(struct parking *p, char kind, const char *key, int pid, bool is_told) {
    struct parking_news *n = &p->news[p->news_seq++ % PARKING_NEWS];
    struct request *next;
    *n = (struct parking_news){.kind = kind, .is_told = is_told, .is_heard = !is_told, .pid = pid};
    (void)text_copy(n->key, sizeof(n->key), key);
    for (struct request *rq = p->first; rq; rq = next) {
        next = rq->next;
        if (rq->wait_kind == kind && strcmp(rq->wait_key, key) == 0)
            wake(rq);
    }
}

/* The other copy of something that was told or heard just now. */
static bool is_second(struct parking *p, char kind, const char *key, int pid, bool is_told) {
    for (size_t i = 0; i < PARKING_NEWS; i++) {
        struct parking_news *n = &p->news[i];
        bool *first = is_told ? &n->is_heard : &n->is_told;
        if (*first && n->pid == pid && n->kind == kind && strcmp(n->key, key) == 0) {
            *first = false;
            return true;
        }
    }
    return false;
}

void parking_tell(struct parking *p, char kind, const char *key, int pid) {
    if (!is_second(p, kind, key, pid, true))
        wake_all_of(p, kind, key, pid, true);
}

void parking_heard(struct parking *p, char kind, const char *key, int pid) {
    if (!is_second(p, kind, key, pid, false))
        wake_all_of(p, kind, key, pid, false);
}

void parking_wake_all(struct parking *p) {
    struct request *next;
    for (struct request *rq = p->first; rq; rq = next) {
        next = rq->next;
        wake(rq);
    }
}

static void on_tick(void *ctx) {
    struct control *c = ctx;
    uint64_t now = loop_now_ms(c->loop);
    struct request *next;
    for (struct request *rq = c->parking.first; rq; rq = next) {
        next = rq->next;
        if (rq->is_running)
            continue;
        if (now >= rq->deadline_ms)
            finish(rq);
        else if (now >= rq->recheck_ms)
            look(rq);
    }
}

void parking_init(struct parking *p, struct control *c) {
    p->first = NULL;
    p->n = 0;
    p->news_seq = 0;
    p->timer = loop_timer_new(c->loop, on_tick, c);
}

void parking_close(struct parking *p) {
    struct request *next;
    for (struct request *rq = p->first; rq; rq = next) {
        next = rq->next;
        if (!rq->is_running)
            finish(rq);
    }
}

void parking_done(struct parking *p) {
    p->timer = loop_timer_free(p->timer);
}
