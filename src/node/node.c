/* SPDX-License-Identifier: Apache-2.0 */
/* The table of sandboxes, start slots, admission. */
#include "node/node.h"
#include "base/log.h"
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

/* ---- admission ---- */

enum failure node_admit(const struct node *n, const struct sandbox *s, char *message, size_t size) {
    struct capacity_use use = {0};
    struct capacity capacity;
    struct sp_error err = {0};
    for (const struct sandbox *other = n->first; other; other = other->next)
        if (other != s && sandbox_holds_host(other)) {
            use.sandboxes++;
            use.memory_mib += other->want.memory_mib + CAPACITY_VM_OVERHEAD_MIB;
        }
    if (capacity_measure(n->settings, n->facts.cpus, n->facts.memory_total_mib, &capacity, &err) < 0) {
        log_error(LOG_L_ERROR, "capacity_unknown", &err, NULL);
        (void)sp_error_format(&err, message, size);
        return FAILURE_INTERNAL;
    }
    return capacity_admit(&capacity, n->settings, &use, s->want.vcpus, s->want.memory_mib, message, size);
}

json_t *node_capacity(const struct node *n) {
    struct capacity capacity;
    struct sp_error err = {0};
    if (capacity_measure(n->settings, n->facts.cpus, n->facts.memory_total_mib, &capacity, &err) < 0) {
        log_error(LOG_L_ERROR, "capacity_unknown", &err, NULL);
        return NULL;
    }
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
}

int node_init(struct node *n, struct loop *l, const struct settings *s, struct sp_error *err) {
    int r;
    n->loop = l;
    n->settings = s;
    n->slots = (struct loop_task){.fn = hand_out_slots, .ctx = n};
    r = facts_load(s, &n->facts, err);
    if (r == 0)
        r = control_link_new(n, &n->control, err);
    if (r < 0)
        return r;
    n->base = (struct vm_request_base){.settings = s, .facts = &n->facts};
    n->broker = broker_client_new(l, s->state_dir, &node_broker_events, n);
    n->templates = template_cache_new(l, n->broker, &n->base);
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
    n->control = control_link_free(n->control);
    while (n->first)
        sandbox_free(n->first);
    n->templates = template_cache_free(n->templates);
    n->broker = broker_client_free(n->broker);
    desired_list_done(&n->desired);
    loop_defer_cancel(&n->slots);
}
