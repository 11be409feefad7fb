/* SPDX-License-Identifier: Apache-2.0 */
/* The table of sandboxes, start slots, admission. */
#include "node/node.h"
#include "base/log.h"
#include "base/text.h"
#include "node/control_link.h"
#include <string.h>

#define SLOTS_MIN 4u
#define SLOTS_PER_CPU 2u
#define PING_SPREAD 3u

/* ---- table ---- */

/* Ids are random: any cheap mix of their characters spreads. */
static struct sandbox **bucket_of(const struct node *n, const char *id) {
    unsigned hash = 0;
    for (; *id; id++)
        hash = hash * 31 + (unsigned char)*id;
    return (struct sandbox **)(uintptr_t)&n->buckets[hash % NODE_BUCKETS];
}

struct sandbox *node_find(const struct node *n, const char *id) {
    struct sandbox *s = *bucket_of(n, id);
    while (s && strcmp(s->id, id) != 0)
        s = s->next_in_bucket;
    return s;
}

void node_table_add(struct node *n, struct sandbox *s) {
    struct sandbox **bucket = bucket_of(n, s->id);
    s->next_in_bucket = *bucket;
    *bucket = s;
    s->next = n->first;
    if (s->next)
        s->next->prev = s;
    n->first = s;
    n->n_sandboxes++;
}

void node_table_remove(struct node *n, struct sandbox *s) {
    struct sandbox **p = bucket_of(n, s->id);
    while (*p != s)
        p = &(*p)->next_in_bucket;
    *p = s->next_in_bucket;
    *(s->prev ? &s->prev->next : &n->first) = s->next;
    if (s->next)
        s->next->prev = s->prev;
    n->n_sandboxes--;
}

/* ---- slots ---- */

unsigned node_slots(const struct node *n) {
    unsigned slots = n->facts.cpus * SLOTS_PER_CPU;
    return slots < SLOTS_MIN ? SLOTS_MIN : slots;
}

static struct sandbox *oldest_queued(const struct node *n, unsigned *ret_taken) {
    struct sandbox *oldest = NULL;
    *ret_taken = 0;
    for (struct sandbox *s = n->first; s; s = s->next) {
        *ret_taken += sandbox_holds_slot(s);
        if (s->state == SB_QUEUED && (!oldest || s->order < oldest->order))
            oldest = s;
    }
    return oldest;
}

static void hand_out_slots(void *ctx) {
    struct node *n = ctx;
    unsigned taken;
    struct sandbox *s;
    while ((s = oldest_queued(n, &taken)) && taken < node_slots(n))
        sandbox_take_slot(s);
}

void node_slots_changed(struct node *n) {
    loop_defer(n->loop, &n->slots);
}

/* ---- what spares have to know ---- */

void node_activity_changed(struct node *n) {
    if (n->pools)
        pools_poke(n->pools);
}

static bool is_busy(void *ctx) {
    const struct node *n = ctx;
    if (template_cache_booting(n->templates))
        return true;
    for (const struct sandbox *s = n->first; s; s = s->next)
        if (sandbox_is_busy(s))
            return true;
    return false;
}

static uint64_t memory_of(unsigned memory_mib) {
    return (uint64_t)memory_mib + CAPACITY_VM_OVERHEAD_MIB;
}

static struct capacity_use use_of(const struct node *n, const struct sandbox *but) {
    struct capacity_use use = {0};
    for (const struct sandbox *s = n->first; s; s = s->next)
        if (s != but && sandbox_holds_host(s)) {
            use.sandboxes++;
            use.memory_mib += memory_of(s->want.memory_mib);
        }
    return use;
}

static uint64_t memory_of_spares(const struct node *n) {
    uint64_t mib = 0;
    for (const struct spare *p = spares_first(n->spares); p; p = p->next)
        if (p->state != SPARE_STOPPING)
            mib += memory_of(p->shape.memory_mib);
    return mib;
}

static int measure(const struct node *n, struct capacity *ret) {
    struct sp_error err = {0};
    int r = capacity_measure(n->settings, n->facts.cpus, n->facts.memory_total_mib, ret, &err);
    if (r < 0)
        log_error(LOG_L_ERROR, "capacity_unknown", &err, NULL);
    return r;
}

static bool has_room(void *ctx, const struct vm_shape *shape) {
    const struct node *n = ctx;
    struct capacity_use use = use_of(n, NULL);
    struct capacity capacity;
    char message[200];
    if (measure(n, &capacity) < 0)
        return false;
    use.memory_mib += memory_of_spares(n);
    return capacity_admit(&capacity, n->settings, &use, shape->vcpus, shape->memory_mib, message, sizeof(message)) ==
           FAILURE_NONE;
}

static void on_pools_changed(void *ctx) {
    struct node *n = ctx;
    control_link_report_later(n->control);
}

static const struct pools_events pools_events = {.is_busy = is_busy,
                                                 .has_room = has_room,
                                                 .on_change = on_pools_changed};

static void on_spares_changed(void *ctx) {
    node_activity_changed(ctx);
}

/* ---- snapshots ---- */

static bool is_expected(void *ctx, const char *id) {
    const struct node *n = ctx;
    for (size_t i = 0; i < n->desired.n; i++)
        if (strcmp(n->desired.items[i].snapshot_id, id) == 0 && n->desired.items[i].want != WANT_DELETED) {
            const struct sandbox *s = node_find(n, n->desired.items[i].id);
            bool is_over = s && strcmp(s->snapshot.id, id) == 0 && s->snapshot.state == JOB_FAILED;
            return !is_over && !(s && (s->state == SB_FAILED || s->state == SB_DELETED));
        }
    return false;
}

static void on_snapshot_removed(void *ctx) {
    struct node *n = ctx;
    control_link_report_extra(n->control);
}

static const struct snapshots_events snapshots_events = {.is_expected = is_expected, .on_removed = on_snapshot_removed};

/* ---- admission ---- */

static bool is_shaped(const struct spare *p, const struct sandbox *s) {
    return p->shape.vcpus == s->want.vcpus && p->shape.memory_mib == s->want.memory_mib;
}

/* Those of other sizes first; one of its own size is what it is going to take. */
static void evict(struct node *n, const struct sandbox *s, uint64_t excess_mib) {
    for (unsigned pass = 0; pass < 2; pass++)
        for (const struct spare *p = spares_first(n->spares), *next; p && excess_mib; p = next) {
            uint64_t mib = memory_of(p->shape.memory_mib);
            next = p->next;
            if (p->state == SPARE_STOPPING || (pass == 0 && is_shaped(p, s)))
                continue;
            spares_stop(n->spares, p);
            excess_mib = excess_mib > mib ? excess_mib - mib : 0;
        }
}

static void make_room(struct node *n, const struct sandbox *s, const struct capacity *c, uint64_t used_mib) {
    uint64_t spares = memory_of_spares(n), need = memory_of(s->want.memory_mib), all;
    for (const struct spare *p = spares_first(n->spares); p; p = p->next)
        if ((p->state == SPARE_WARM || p->state == SPARE_BLANK) && is_shaped(p, s)) {
            spares -= need; /* it becomes this one */
            break;
        }
    all = used_mib + spares + need;
    if (all > c->memory_mib)
        evict(n, s, all - c->memory_mib);
    if (c->memory_available_mib < n->settings->memory_reserve_mib + need)
        evict(n, s, UINT64_MAX);
}

enum failure node_admit(struct node *n, const struct sandbox *s, char *message, size_t size) {
    struct capacity_use use = use_of(n, s);
    struct capacity capacity, roomy;
    enum failure failure;
    if (measure(n, &capacity) < 0) {
        (void)text_copy(message, size, "the node's capacity cannot be measured");
        return FAILURE_INTERNAL;
    }
    roomy = capacity;
    for (const struct spare *p = spares_first(n->spares); p; p = p->next)
        roomy.memory_available_mib += CAPACITY_SPARE_RESIDENT_MIB; /* what it gives back at the least */
    failure = capacity_admit(&roomy, n->settings, &use, s->want.vcpus, s->want.memory_mib, message, size);
    if (failure == FAILURE_NONE)
        make_room(n, s, &capacity, use.memory_mib);
    return failure;
}

json_t *node_capacity(const struct node *n) {
    struct capacity capacity;
    if (measure(n, &capacity) < 0)
        return NULL;
    return capacity_json(&capacity, n->settings);
}

/* ---- life ---- */

static void on_pass(void *ctx) {
    node_reconcile_all(ctx);
    node_sync_begin(ctx);
}

/* Spread over three rounds, so that many guests do not wake at once; a few are asked in every round. */
static void on_ping(void *ctx) {
    struct node *n = ctx;
    unsigned i = 0;
    n->ping_round++;
    for (struct sandbox *s = n->first; s; s = s->next)
        if (n->n_sandboxes < PING_SPREAD || i++ % PING_SPREAD == n->ping_round % PING_SPREAD)
            sandbox_ping(s);
    spares_ping(n->spares);
}

static void on_reconcile(void *ctx) {
    node_reconcile_all(ctx);
}

void node_reconcile_soon(struct node *n) {
    loop_defer(n->loop, &n->reconcile);
}

int node_init(struct node *n, struct loop *l, const struct settings *s, struct sp_error *err) {
    int r;
    n->loop = l;
    n->settings = s;
    n->slots = (struct loop_task){.fn = hand_out_slots, .ctx = n};
    n->reconcile = (struct loop_task){.fn = on_reconcile, .ctx = n};
    r = facts_load(s, &n->facts, err);
    if (r == 0)
        r = control_link_new(n, &n->control, err);
    if (r < 0)
        return r;
    n->base = (struct vm_request_base){.settings = s, .facts = &n->facts};
    n->broker = broker_client_new(l, s->state_dir, &node_broker_events, n);
    n->templates = template_cache_new(l, n->broker, &n->base);
    n->snapshots = snapshots_new(l, n->broker, &snapshots_events, n);
    n->spares = spares_new(l, n->broker, &n->base, on_spares_changed, n);
    n->pools = pools_new(l, &n->base, n->spares, n->templates, &pools_events, n);
    n->garbage = garbage_new(n);
    n->pass = loop_timer_new(l, on_pass, n);
    loop_timer_start(n->pass, NODE_PASS_MS, NODE_PASS_MS);
    n->ping = loop_timer_new(l, on_ping, n);
    loop_timer_start(n->ping, NODE_PING_MS, NODE_PING_MS);
    return 0;
}

void node_done(struct node *n) {
    n->pass = loop_timer_free(n->pass);
    n->ping = loop_timer_free(n->ping);
    node_sync_cancel(n);
    n->garbage = garbage_free(n->garbage);
    n->control = control_link_free(n->control);
    while (n->first)
        sandbox_free(n->first);
    n->pools = pools_free(n->pools);
    n->spares = spares_free(n->spares);
    n->snapshots = snapshots_free(n->snapshots);
    n->templates = template_cache_free(n->templates);
    n->broker = broker_client_free(n->broker);
    desired_list_done(&n->desired);
    loop_defer_cancel(&n->slots);
    loop_defer_cancel(&n->reconcile);
}
