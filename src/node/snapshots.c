/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One entry an id. It is either looked after because somebody waits for it or knows it to be there, or on its way out
 * because control lists it as gone; an entry that is neither is freed.
 */
#include "node/snapshots.h"
#include "base/log.h"
#include "base/text.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_MS 1000u
#define READY_MAX 4096u /* known to be there; beyond that the broker is asked again */

enum entry_state {
    ENTRY_ASKING,   /* snapshot_stat; or the broker is away */
    ENTRY_EXPECTED, /* not there yet, some sandbox is to make it */
    ENTRY_READY,
    ENTRY_REMOVING, /* snapshot_remove */
    ENTRY_REMOVED,  /* until control has heard it */
};

struct snapshot_entry {
    struct snapshots *all;
    struct snapshot_entry *next;
    char id[ID_SIZE];
    enum entry_state state;
    struct snapshot_waiter *waiters;
    struct broker_call *call; /* ASKING, REMOVING */
    struct loop_timer *timer; /* ASKING, REMOVING: again */
    bool listed;              /* as gone, by the last list */
};

struct snapshots {
    struct loop *loop;
    struct broker_client *broker;
    const struct snapshots_events *events;
    void *ctx;
    struct snapshot_entry *entries;
    unsigned n;
};

static void set_state(struct snapshot_entry *e, enum entry_state to) {
    e->call = broker_call_forget(e->call);
    loop_timer_stop(e->timer);
    e->state = to;
}

static struct snapshot_entry *find(const struct snapshots *s, const char *id) {
    struct snapshot_entry *e = s->entries;
    while (e && strcmp(e->id, id) != 0)
        e = e->next;
    return e;
}

static void on_timer(void *ctx);

static struct snapshot_entry *add(struct snapshots *s, const char *id, enum entry_state state) {
    struct snapshot_entry *e = calloc(1, sizeof(*e));
    if (!e)
        abort();
    *e = (struct snapshot_entry){.all = s, .next = s->entries, .state = state};
    (void)text_copy(e->id, sizeof(e->id), id);
    e->timer = loop_timer_new(s->loop, on_timer, e);
    s->entries = e;
    s->n++;
    return e;
}

static void entry_free(struct snapshot_entry *e) {
    struct snapshot_entry **p = &e->all->entries;
    assert(!e->waiters);
    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
    e->all->n--;
    broker_call_forget(e->call);
    loop_timer_free(e->timer);
    free(e);
}

static void waiter_unlink(struct snapshot_waiter *w) {
    assert(w->entry);
    *(w->prev ? &w->prev->next : &w->entry->waiters) = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->entry = NULL;
    w->next = w->prev = NULL;
}

void snapshots_cancel(struct snapshot_waiter *w) {
    if (w->entry)
        waiter_unlink(w);
}

static struct snapshot_waiter *oldest(const struct snapshot_entry *e, unsigned *ret_n) {
    struct snapshot_waiter *w = e->waiters;
    *ret_n = w ? 1 : 0;
    for (; w && w->next; w = w->next)
        (*ret_n)++;
    return w;
}

/* Everybody who waits now, in the order they came in; whoever comes back meanwhile waits anew. */
static void wake(struct snapshot_entry *e, const struct fault *fault) {
    struct snapshot_waiter *w;
    unsigned n, left;
    (void)oldest(e, &n);
    for (; n > 0 && (w = oldest(e, &left)); n--) {
        waiter_unlink(w);
        w->done(w->ctx, fault);
    }
}

static void missing(struct snapshot_entry *e) {
    struct fault fault;
    fault_set(&fault, FAILURE_SNAPSHOT_MISSING, "the snapshot %s is not on this node", e->id);
    wake(e, &fault);
    if (!e->waiters)
        entry_free(e);
}

/* ---- asking and removing ---- */

static void step(struct snapshot_entry *e);

static bool put_off(struct snapshot_entry *e, const struct sp_error *err) {
    e->call = NULL;
    if (!err || err->code != SP_E_UNAVAILABLE)
        return false;
    loop_timer_start(e->timer, RETRY_MS, 0);
    return true;
}

static void on_stat(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct snapshot_entry *e = ctx;
    struct fault fault;
    (void)reply;
    if (put_off(e, err))
        return;
    if (!err) {
        set_state(e, ENTRY_READY);
        wake(e, NULL);
    } else if (err->code != SP_E_NOT_FOUND) {
        fault_from_error(&fault, err);
        wake(e, &fault);
        if (!e->waiters)
            entry_free(e);
    } else if (e->all->events->is_expected(e->all->ctx, e->id)) {
        set_state(e, ENTRY_EXPECTED);
    } else {
        missing(e);
    }
}

/* In use (a VM runs on it): later. */
static void on_gone(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct snapshot_entry *e = ctx;
    struct fault fault;
    (void)reply;
    e->call = NULL;
    if (err) {
        if (err->code != SP_E_UNAVAILABLE && err->code != SP_E_CONFLICT)
            log_error(LOG_L_ERROR, "snapshot_not_removed", err, "snapshot", e->id, NULL);
        loop_timer_start(e->timer, RETRY_MS, 0);
        return;
    }
    log_event(LOG_L_INFO, "snapshot_removed", "snapshot", e->id, NULL);
    set_state(e, ENTRY_REMOVED);
    fault_set(&fault, FAILURE_SNAPSHOT_MISSING, "the snapshot %s was removed", e->id);
    wake(e, &fault);
    e->all->events->on_removed(e->all->ctx);
}

static void step(struct snapshot_entry *e) {
    struct broker_client *broker = e->all->broker;
    json_t *fields;
    bool asking = e->state == ENTRY_ASKING;
    if (e->call || !broker_client_is_up(broker) || (!asking && e->state != ENTRY_REMOVING))
        return;
    fields = json_pack("{s:s}", "snapshot", e->id);
    if (broker_call_start(broker, asking ? "snapshot_stat" : "snapshot_remove", fields, asking ? on_stat : on_gone, e,
                          &e->call, NULL) < 0)
        loop_timer_start(e->timer, RETRY_MS, 0);
}

static void on_timer(void *ctx) {
    step(ctx);
}

/* ---- interface ---- */

struct snapshots *snapshots_new(struct loop *l, struct broker_client *broker, const struct snapshots_events *events,
                                void *ctx) {
    struct snapshots *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    *s = (struct snapshots){.loop = l, .broker = broker, .events = events, .ctx = ctx};
    return s;
}

struct snapshots *snapshots_free(struct snapshots *s) {
    while (s && s->entries) {
        while (s->entries->waiters)
            waiter_unlink(s->entries->waiters);
        entry_free(s->entries);
    }
    free(s);
    return NULL;
}

int snapshots_want(struct snapshots *s, const char *id, struct snapshot_waiter *w) {
    struct snapshot_entry *e = find(s, id);
    if (e && e->state == ENTRY_READY)
        return 1;
    if (!e)
        e = add(s, id, ENTRY_ASKING);
    w->entry = e;
    w->prev = NULL;
    w->next = e->waiters;
    if (w->next)
        w->next->prev = w;
    e->waiters = w;
    if (e->state == ENTRY_REMOVED)
        set_state(e, ENTRY_ASKING);
    step(e);
    return 0;
}

void snapshots_ready(struct snapshots *s, const char *id) {
    struct snapshot_entry *e = find(s, id);
    if (!e && s->n < READY_MAX)
        e = add(s, id, ENTRY_READY);
    if (!e || e->state == ENTRY_REMOVING)
        return;
    set_state(e, ENTRY_READY);
    wake(e, NULL);
}

void snapshots_failed(struct snapshots *s, const char *id, const struct fault *fault) {
    struct snapshot_entry *e = find(s, id);
    if (!e || e->state == ENTRY_READY || e->state >= ENTRY_REMOVING)
        return;
    wake(e, fault);
    if (!e->waiters)
        entry_free(e);
}

void snapshots_forget(struct snapshots *s, const char *id) {
    struct snapshot_entry *e = find(s, id);
    if (e && e->state == ENTRY_READY && !e->waiters)
        entry_free(e);
}

void snapshots_sync(struct snapshots *s) {
    for (struct snapshot_entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        if (e->state == ENTRY_READY && !e->waiters)
            entry_free(e);
        else
            step(e);
    }
}

static void apply_gone(struct snapshots *s, const char *id) {
    struct snapshot_entry *e = find(s, id);
    if (!e)
        e = add(s, id, ENTRY_REMOVING);
    e->listed = true;
    if (e->state == ENTRY_READY || (!e->waiters && e->state < ENTRY_REMOVING))
        set_state(e, ENTRY_REMOVING);
    step(e);
}

void snapshots_apply(struct snapshots *s, const struct desired_list *list) {
    for (struct snapshot_entry *e = s->entries; e; e = e->next)
        e->listed = false;
    for (size_t i = 0; i < list->n_gone; i++)
        apply_gone(s, list->gone[i]);
    for (struct snapshot_entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        if (e->state >= ENTRY_REMOVING && !e->listed && !e->waiters) {
            entry_free(e);
        } else if (e->state == ENTRY_EXPECTED && !s->events->is_expected(s->ctx, e->id)) {
            set_state(e, ENTRY_ASKING);
            step(e);
        }
    }
}

void snapshots_put_removed(const struct snapshots *s, json_t *ids) {
    for (const struct snapshot_entry *e = s->entries; e; e = e->next)
        if (e->state == ENTRY_REMOVED && e->listed)
            (void)json_array_append_new(ids, json_string(e->id));
}
