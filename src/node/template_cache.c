/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One entry a key that is known or wanted. A boot's steps: vm_start, `saved` on control.sock, snapshot_seal, vm_stop;
 * whatever goes wrong leads through vm_stop too. Steps that a lost broker swallowed are asked again: all are idempotent.
 */
#include "node/template_cache.h"
#include "base/log.h"
#include "base/text.h"
#include "node/vm_link.h"
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define BOOT_SLACK_MS 10000u /* beyond the boot's own deadline, then space-vm is not believed any more */
#define RETRY_MS 1000u
#define REMOVE_TRIES 4u /* the others that met a broken snapshot need a moment to let go of it */

enum template_state {
    TEMPLATE_READY,
    TEMPLATE_QUEUED,   /* wanted; no boot slot or no broker yet */
    TEMPLATE_REMOVING, /* broken: snapshot_remove */
    TEMPLATE_STARTING, /* vm_start */
    TEMPLATE_BOOTING,  /* until saved */
    TEMPLATE_SEALING,  /* snapshot_seal */
    TEMPLATE_CLEANING, /* vm_stop; then READY, or the waiters get `fault` */
};

struct template_entry {
    struct template_cache *cache;
    struct template_entry *next;
    enum template_state state;
    struct template_spec spec; /* digest "": known from the broker's list only */
    struct template_waiter *waiters;
    char boot_id[ID_SIZE];       /* STARTING … CLEANING */
    struct broker_call *call;    /* REMOVING, STARTING, SEALING, CLEANING: NULL while the broker is away */
    struct vm_link *link;        /* BOOTING */
    struct loop_timer *timer;    /* BOOTING: deadline; else: ask the broker again */
    struct fault fault;          /* CLEANING: FAILURE_NONE when the boot was good */
    uint64_t began_ms, ready_ms; /* of the boot; when it became READY here, 0: before us */
    unsigned tries;              /* REMOVING */
};

struct template_cache {
    struct loop *loop;
    struct broker_client *broker;
    const struct vm_request_base *base;
    struct template_entry *entries;
};

static void entry_step(struct template_entry *e);

static bool takes_slot(enum template_state s) {
    return s == TEMPLATE_STARTING || s == TEMPLATE_BOOTING || s == TEMPLATE_SEALING || s == TEMPLATE_CLEANING;
}

static void set_state(struct template_entry *e, enum template_state to) {
    e->call = broker_call_forget(e->call);
    if (to != TEMPLATE_BOOTING)
        e->link = vm_link_free(e->link);
    loop_timer_stop(e->timer);
    if (!takes_slot(to))
        e->boot_id[0] = '\0';
    e->state = to;
}

/* ---- entries and waiters ---- */

static struct template_entry *entry_find(const struct template_cache *c, const char *key) {
    struct template_entry *e = c->entries;
    while (e && strcmp(e->spec.key, key) != 0)
        e = e->next;
    return e;
}

static void entry_on_timer(void *ctx);

static struct template_entry *entry_add(struct template_cache *c, const char *key, enum template_state state) {
    struct template_entry *e = calloc(1, sizeof(*e));
    if (!e)
        abort();
    *e = (struct template_entry){.cache = c, .next = c->entries, .state = state};
    (void)text_copy(e->spec.key, sizeof(e->spec.key), key);
    e->timer = loop_timer_new(c->loop, entry_on_timer, e);
    c->entries = e;
    return e;
}

static void entry_free(struct template_entry *e) {
    struct template_entry **p = &e->cache->entries;
    assert(!e->waiters);
    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
    broker_call_forget(e->call);
    vm_link_free(e->link);
    loop_timer_free(e->timer);
    template_spec_done(&e->spec);
    free(e);
}

static void waiter_unlink(struct template_waiter *w) {
    assert(w->entry);
    *(w->prev ? &w->prev->next : &w->entry->waiters) = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->entry = NULL;
    w->next = w->prev = NULL;
}

void template_cache_cancel(struct template_waiter *w) {
    if (w->entry)
        waiter_unlink(w);
}

/* Everybody who waits now; those who come back meanwhile wait for the next boot. */
static void wake_waiters(struct template_entry *e, const struct fault *fault) {
    struct template_waiter *last = e->waiters, *w;
    while (last && last->next)
        last = last->next;
    while (last && (w = e->waiters)) {
        bool is_last = w == last;
        waiter_unlink(w);
        w->done(w->ctx, fault);
        if (is_last)
            break;
    }
}

static unsigned slots_taken(const struct template_cache *c) {
    unsigned n = 0;
    for (const struct template_entry *e = c->entries; e; e = e->next)
        n += takes_slot(e->state);
    return n;
}

/* Boots that may begin now. */
static void fill_slots(struct template_cache *c) {
    for (struct template_entry *e = c->entries, *next; e; e = next) {
        next = e->next;
        if (e->state != TEMPLATE_QUEUED)
            continue;
        if (!e->waiters)
            entry_free(e);
        else if (broker_client_is_up(c->broker) && slots_taken(c) < TEMPLATE_BOOTS_MAX)
            entry_step(e);
    }
}

/* ---- steps ---- */

/* Takes fields over. */
static void ask(struct template_entry *e, const char *name, json_t *fields,
                void (*done)(void *ctx, const json_t *reply, const struct sp_error *err)) {
    if (broker_call_start(e->cache->broker, name, fields, done, e, &e->call, NULL) < 0)
        loop_timer_start(e->timer, RETRY_MS, 0);
}

static void on_cleaned(void *ctx, const json_t *reply, const struct sp_error *err);

/* Ends what is left of the boot, then READY or, with a fault, the waiters' bad news. */
static void clean_up(struct template_entry *e) {
    if (e->state != TEMPLATE_CLEANING)
        set_state(e, TEMPLATE_CLEANING);
    if (!e->call && broker_client_is_up(e->cache->broker))
        ask(e, "vm_stop", json_pack("{s:s}", "id", e->boot_id), on_cleaned);
}

static void fail(struct template_entry *e, const struct fault *fault) {
    e->fault = *fault;
    log_event(LOG_L_WARN, "template_boot_failed", "snapshot", e->spec.key, "template", e->spec.digest, "code",
              failure_name(fault->code), "message", fault->message, NULL);
    clean_up(e);
}

/* The broker is away (template_cache_sync() goes on then) or has no room: later. */
static bool put_off(struct template_entry *e, const struct sp_error *err) {
    e->call = NULL;
    if (!err || err->code != SP_E_UNAVAILABLE)
        return false;
    loop_timer_start(e->timer, RETRY_MS, 0);
    return true;
}

/* Every broker call of a boot ends here first: false when it failed and that was dealt with. */
static bool call_succeeded(struct template_entry *e, const struct sp_error *err) {
    struct fault fault;
    if (put_off(e, err) || !err)
        return !err;
    fault_from_error(&fault, err);
    fail(e, &fault);
    return false;
}

static void on_cleaned(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct template_entry *e = ctx;
    struct template_cache *c = e->cache;
    struct fault fault = e->fault;
    char took[24];
    (void)reply;
    if (put_off(e, err))
        return;
    if (err) {
        log_error(LOG_L_ERROR, "vm_stop_failed", err, "vm_id", e->boot_id, NULL);
        loop_timer_start(e->timer, RETRY_MS, 0);
        return;
    }
    (void)text_printf(took, sizeof(took), "%" PRIu64, loop_now_ms(c->loop) - e->began_ms);
    if (fault.code == FAILURE_NONE) {
        log_event(LOG_L_INFO, "template_ready", "snapshot", e->spec.key, "template", e->spec.digest, "ms", took, NULL);
        set_state(e, TEMPLATE_READY);
        e->ready_ms = loop_now_ms(c->loop);
        wake_waiters(e, NULL);
    } else {
        set_state(e, TEMPLATE_QUEUED);
        wake_waiters(e, &fault);
    }
    fill_slots(c);
}

static void on_sealed(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct template_entry *e = ctx;
    (void)reply;
    if (!call_succeeded(e, err))
        return;
    e->fault = (struct fault){0};
    clean_up(e);
}

static void on_boot_status(void *ctx, const struct vm_status *s) {
    struct template_entry *e = ctx;
    struct fault fault;
    if (s->phase == VM_PHASE_SAVED) {
        set_state(e, TEMPLATE_SEALING); /* hangs up: space-vm ends */
        entry_step(e);
    } else if (s->phase == VM_PHASE_FAILED) {
        fault_set(&fault, s->failure, "template boot: %s", s->message);
        fail(e, &fault);
    }
}

static void on_boot_gone(void *ctx, const char *why) {
    struct fault fault;
    fault_set(&fault, FAILURE_VMM_KILLED, "template boot: %s", why);
    fail(ctx, &fault);
}

static void watch_boot(struct template_entry *e) {
    static const struct vm_link_events events = {.on_status = on_boot_status, .on_gone = on_boot_gone};
    struct template_cache *c = e->cache;
    struct sp_error err = {0};
    struct fault fault;
    set_state(e, TEMPLATE_BOOTING);
    loop_timer_start(e->timer, vm_request_boot_ms(c->base->settings, &e->spec) + BOOT_SLACK_MS, 0);
    if (vm_link_new(c->loop, c->base->settings->state_dir, e->boot_id, &events, e, &e->link, &err) < 0) {
        fault_from_error(&fault, &err);
        fail(e, &fault);
    }
}

static void on_started(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct template_entry *e = ctx;
    (void)reply;
    if (call_succeeded(e, err))
        watch_boot(e);
}

static void entry_on_timer(void *ctx) {
    struct template_entry *e = ctx;
    struct fault fault;
    if (e->state == TEMPLATE_BOOTING) {
        fault_set(&fault, FAILURE_DEADLINE_EXCEEDED, "template boot: not saved in time");
        fail(e, &fault);
    } else {
        entry_step(e);
    }
}

static void on_removed(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct template_entry *e = ctx;
    struct template_cache *c = e->cache;
    struct fault fault;
    (void)reply;
    if (put_off(e, err))
        return;
    if (err && ++e->tries < REMOVE_TRIES) {
        loop_timer_start(e->timer, RETRY_MS, 0);
        return;
    }
    if (err) { /* some VM runs from it well */
        log_error(LOG_L_WARN, "snapshot_not_removed", err, "snapshot", e->spec.key, NULL);
        fault_set(&fault, FAILURE_SNAPSHOT_BROKEN,
                  "the snapshot is broken, and cannot be made again while it is in use");
        set_state(e, TEMPLATE_READY);
        wake_waiters(e, &fault);
        return;
    }
    log_event(LOG_L_INFO, "snapshot_removed", "snapshot", e->spec.key, NULL);
    set_state(e, TEMPLATE_QUEUED);
    fill_slots(c);
}

static void begin_boot(struct template_entry *e) {
    struct template_cache *c = e->cache;
    struct sp_error err = {0};
    struct fault fault;
    json_t *fields;
    if (!e->boot_id[0]) {
        id_generate(e->boot_id, "tpb");
        e->began_ms = loop_now_ms(c->loop);
        log_event(LOG_L_INFO, "template_boot", "snapshot", e->spec.key, "template", e->spec.digest, "vm_id", e->boot_id,
                  NULL);
    }
    e->state = TEMPLATE_STARTING;
    if (vm_request_boot(c->base, &e->spec, e->boot_id, vm_request_boot_ms(c->base->settings, &e->spec), &fields, &err) <
        0) {
        fault_from_error(&fault, &err);
        fail(e, &fault);
        return;
    }
    ask(e, "vm_start", fields, on_started);
}

/* Asks the broker for what the state needs; nothing while it is away or an answer is awaited. */
static void entry_step(struct template_entry *e) {
    struct template_cache *c = e->cache;
    if (e->call || !broker_client_is_up(c->broker))
        return;
    switch (e->state) {
    case TEMPLATE_REMOVING:
        ask(e, "snapshot_remove", json_pack("{s:s}", "snapshot", e->spec.key), on_removed);
        break;
    case TEMPLATE_QUEUED:
    case TEMPLATE_STARTING:
        begin_boot(e);
        break;
    case TEMPLATE_SEALING:
        ask(e, "snapshot_seal",
            json_pack("{s:s, s:s, s:o}", "id", e->boot_id, "snapshot", e->spec.key, "manifest",
                      vm_request_snapshot_manifest(c->base, &e->spec)),
            on_sealed);
        break;
    case TEMPLATE_CLEANING:
        clean_up(e);
        break;
    case TEMPLATE_READY:
    case TEMPLATE_BOOTING:
        break;
    }
}

/* ---- interface ---- */

struct template_cache *template_cache_new(struct loop *l, struct broker_client *broker,
                                          const struct vm_request_base *base) {
    struct template_cache *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    *c = (struct template_cache){.loop = l, .broker = broker, .base = base};
    return c;
}

struct template_cache *template_cache_free(struct template_cache *c) {
    while (c && c->entries) {
        while (c->entries->waiters)
            waiter_unlink(c->entries->waiters);
        entry_free(c->entries);
    }
    free(c);
    return NULL;
}

int template_cache_want(struct template_cache *c, const struct template_spec *spec, struct template_waiter *w) {
    struct template_entry *e = entry_find(c, spec->key);
    if (e && e->state == TEMPLATE_READY)
        return 1;
    if (!e)
        e = entry_add(c, spec->key, TEMPLATE_QUEUED);
    if (!e->spec.digest[0]) {
        e->spec = *spec;
        json_incref(e->spec.manifest);
    }
    w->entry = e;
    w->prev = NULL;
    w->next = e->waiters;
    if (w->next)
        w->next->prev = w;
    e->waiters = w;
    fill_slots(c);
    return 0;
}

void template_cache_broken(struct template_cache *c, const char *key, uint64_t used_ms) {
    struct template_entry *e = entry_find(c, key);
    if (!e || e->state != TEMPLATE_READY || e->ready_ms > used_ms)
        return;
    log_event(LOG_L_WARN, "snapshot_broken", "snapshot", key, NULL);
    e->tries = 0;
    set_state(e, TEMPLATE_REMOVING);
    entry_step(e);
}

void template_cache_sync(struct template_cache *c, const json_t *list) {
    const json_t *item;
    size_t i;
    for (struct template_entry *e = c->entries, *next; e; e = next) {
        next = e->next;
        if (e->state == TEMPLATE_READY)
            entry_free(e);
    }
    json_array_foreach (json_object_get(list, "snapshots"), i, item) {
        const char *key = json_string_value(item);
        if (key && strlen(key) == SNAPSHOT_KEY_SIZE - 1 && !entry_find(c, key))
            (void)entry_add(c, key, TEMPLATE_READY);
    }
    for (struct template_entry *e = c->entries; e; e = e->next) {
        if (e->state == TEMPLATE_STARTING && !e->call)
            set_state(
                e, TEMPLATE_QUEUED); /* under a new id: whether the old one began nobody knows, so it is a leftover */
        else if (e->state != TEMPLATE_QUEUED)
            entry_step(e);
    }
    fill_slots(c);
}

bool template_cache_owns(const struct template_cache *c, const char *id) {
    for (const struct template_entry *e = c->entries; e; e = e->next)
        if (strcmp(e->boot_id, id) == 0)
            return true;
    return false;
}

void template_cache_put_known(const struct template_cache *c, json_t *ids) {
    for (const struct template_entry *e = c->entries; e; e = e->next)
        if (e->boot_id[0])
            (void)json_array_append_new(ids, json_string(e->boot_id));
}

unsigned template_cache_booting(const struct template_cache *c) {
    return slots_taken(c);
}
