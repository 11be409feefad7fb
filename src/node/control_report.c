/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the node tells control: a few POSTs at once, never two about the same sandbox, so that control hears its states in
 * order. News goes out in the next round of the loop; that a start has begun is held back for a moment, because most are
 * over by then and the better news would have to wait for it.
 */
#include "node/control_report.h"
#include "base/log.h"
#include "base/text.h"
#include "node/node.h"
#include <stdlib.h>
#include <string.h>

#define REPORTS_AT_ONCE 8u
#define REPORT_SANDBOXES_MAX 128u
#define RETRY_MS 500u
#define EVERY_MS 10000u /* capacity, and a sign of life, when nothing else is said */
#define BEGUN_MS 40u    /* a start that takes no longer is told by its end alone */
#define LATER_MS 1000u

struct report {
    struct reports *all; /* NULL: free slot */
    struct internal_call *call;
    char ids[REPORT_SANDBOXES_MAX][ID_SIZE];
    unsigned n;
};

struct reports {
    struct node *node;
    struct control_link *link;
    bool is_open, extra;
    struct loop_task soon;
    struct loop_timer *again; /* after a failure, and from time to time */
    struct loop_timer *begun; /* some start was held back */
    struct loop_timer *later;
    struct report slots[REPORTS_AT_ONCE];
};

static struct report *free_slot(struct reports *r) {
    for (unsigned i = 0; i < REPORTS_AT_ONCE; i++)
        if (!r->slots[i].all)
            return &r->slots[i];
    return NULL;
}

/* It only began, and just now. */
static bool can_wait(struct reports *r, const struct sandbox *s) {
    uint64_t passed = loop_now_ms(r->node->loop) - s->began_ms;
    const char *state = sandbox_report_state(s);
    if (!state || strcmp(state, "creating") != 0 || passed >= BEGUN_MS)
        return false;
    if (!loop_timer_is_active(r->begun))
        loop_timer_start(r->begun, BEGUN_MS - passed, 0);
    return true;
}

/* What is due goes into the list, and is noted. */
static void gather(struct reports *r, struct report *slot, json_t *list) {
    for (struct sandbox *s = r->node->first; s && slot->n < REPORT_SANDBOXES_MAX; s = s->next) {
        json_t *item;
        if (!s->report.due || s->report.under_way || can_wait(r, s))
            continue;
        s->report.due = s->report.lazy = false;
        item = sandbox_report(s);
        if (!item)
            continue;
        (void)json_array_append_new(list, item);
        s->report.under_way = true;
        (void)text_copy(slot->ids[slot->n++], ID_SIZE, s->id);
    }
}

/* ---- answers ---- */

/* Gone from control's books: nothing more to say of it. */
static void drop_unknown(struct node *n, const json_t *unknown) {
    const json_t *item;
    size_t i;
    json_array_foreach (unknown, i, item) {
        struct sandbox *s = json_is_string(item) ? node_find(n, json_string_value(item)) : NULL;
        if (s && (s->state == SB_DELETED || s->state == SB_FAILED || s->state == SB_SUSPENDED))
            sandbox_free(s);
    }
}

static void note_settled(const struct report *slot, const json_t *settled) {
    const json_t *item;
    size_t i;
    json_array_foreach (settled, i, item)
        for (unsigned k = 0; k < slot->n; k++) {
            struct sandbox *s = node_find(slot->all->node, slot->ids[k]);
            if (s && json_is_string(item) && strcmp(s->snapshot.id, json_string_value(item)) == 0)
                s->snapshot.settled = true;
        }
}

static void on_reported(void *ctx, const struct internal_answer *a) {
    struct report *slot = ctx;
    struct reports *r = slot->all;
    /* Refused for good (a fault of ours): repeating it for ever would hide what comes after. */
    bool refused = a->status >= 400 && a->status < 500 && a->status != 401 && a->status != 404 && a->status != 429;
    if (!a->body)
        log_error(LOG_L_WARN, "report_failed", &a->error, "code", a->code, NULL);
    else
        note_settled(slot, json_object_get(a->body, "settled"));
    for (unsigned i = 0; i < slot->n; i++) {
        struct sandbox *s = node_find(r->node, slot->ids[i]);
        if (s)
            sandbox_reported(s, a->body || refused);
    }
    *slot = (struct report){0};
    if (a->body) {
        drop_unknown(r->node, json_object_get(a->body, "unknown"));
        reports_soon(r);
    } else {
        loop_timer_start(r->again, RETRY_MS, EVERY_MS);
    }
}

/* ---- sending ---- */

/* Of the node itself. */
static void add_extra(const struct reports *r, json_t *body) {
    struct node *n = r->node;
    json_t *removed = json_array(), *garbage = garbage_report(n->garbage), *capacity = node_capacity(n);
    snapshots_put_removed(n->snapshots, removed);
    (void)json_object_set_new(body, "snapshots_removed", removed);
    (void)json_object_set_new(body, "pools", pools_report(n->pools));
    if (garbage)
        (void)json_object_set_new(body, "garbage", garbage);
    if (capacity)
        (void)json_object_set_new(body, "capacity", capacity);
}

/* One POST; false when there was nothing to say, or no room. */
static bool send_report(struct reports *r) {
    struct report *slot = free_slot(r);
    const struct internal_answer failed = {.code = "unavailable", .error = {.code = SP_E_UNAVAILABLE}};
    _cleanup_json_ json_t *body = NULL;
    json_t *list;
    if (!slot || !r->is_open)
        return false;
    list = json_array();
    gather(r, slot, list);
    if (!slot->n && !r->extra) {
        json_decref(list);
        return false;
    }
    body = json_pack("{s:o}", "sandboxes", list);
    if (r->extra)
        add_extra(r, body);
    r->extra = false;
    slot->all = r;
    if (control_link_post(r->link, "observed", body, on_reported, slot, &slot->call, NULL) < 0) {
        on_reported(slot, &failed);
        return false;
    }
    return true;
}

static void on_soon(void *ctx) {
    struct reports *r = ctx;
    while (send_report(r))
        ;
}

static void on_again(void *ctx) {
    reports_extra(ctx);
}

static void on_begun(void *ctx) {
    reports_soon(ctx);
}

static void on_later(void *ctx) {
    struct reports *r = ctx;
    for (struct sandbox *s = r->node->first; s; s = s->next) {
        s->report.due = s->report.due || s->report.lazy;
        s->report.lazy = false;
    }
    reports_extra(r);
}

void reports_soon(struct reports *r) {
    if (r->is_open)
        loop_defer(r->node->loop, &r->soon);
}

void reports_later(struct reports *r) {
    if (!loop_timer_is_active(r->later))
        loop_timer_start(r->later, LATER_MS, 0);
}

void reports_extra(struct reports *r) {
    r->extra = true;
    reports_soon(r);
}

void reports_open(struct reports *r, bool is_open) {
    r->is_open = is_open;
    if (is_open)
        reports_extra(r);
}

struct reports *reports_new(struct node *n, struct control_link *link) {
    struct reports *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    *r = (struct reports){.node = n, .link = link, .soon = {.fn = on_soon, .ctx = r}};
    r->again = loop_timer_new(n->loop, on_again, r);
    r->begun = loop_timer_new(n->loop, on_begun, r);
    r->later = loop_timer_new(n->loop, on_later, r);
    loop_timer_start(r->again, EVERY_MS, EVERY_MS);
    return r;
}

struct reports *reports_free(struct reports *r) {
    if (!r)
        return NULL;
    for (unsigned i = 0; i < REPORTS_AT_ONCE; i++)
        if (r->slots[i].all)
            internal_call_cancel(r->slots[i].call);
    loop_timer_free(r->again);
    loop_timer_free(r->begun);
    loop_timer_free(r->later);
    loop_defer_cancel(&r->soon);
    free(r);
    return NULL;
}
