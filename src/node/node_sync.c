/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass over what the broker has, at every connection and once a minute: list the VMs (in pages), adopt those of
 * sandboxes we do not know, end boots nobody waits for, tell the template cache which snapshots there are, then let the
 * broker remove what belongs to nobody. Anything that changes meanwhile is seen by the next pass.
 */
#include "base/log.h"
#include "base/text.h"
#include "node/control_link.h"
#include "node/node.h"
#include <string.h>

#define KNOWN_MAX 900u /* ids the broker takes in one sweep */

struct node_sync {
    struct node *node;
    struct broker_call *call;
    json_t *vms; /* id → {alive, snapshot?}, without spares that some sandbox is taking */
};

void node_sync_cancel(struct node *n) {
    struct node_sync *sync = n->sync;
    if (!sync)
        return;
    broker_call_forget(sync->call);
    json_decref(sync->vms);
    free(sync);
    n->sync = NULL;
}

/* The pass goes on with another request, or ends here. */
static void ask(struct node_sync *sync, const char *name, json_t *fields,
                void (*done)(void *ctx, const json_t *reply, const struct sp_error *err)) {
    struct sp_error err = {0};
    if (broker_call_start(sync->node->broker, name, fields, done, sync, &sync->call, &err) < 0) {
        log_error(LOG_L_WARN, "pass_cut_short", &err, "request", name, NULL);
        node_sync_cancel(sync->node);
    }
}

static bool answered(struct node_sync *sync, const char *name, const struct sp_error *err) {
    sync->call = NULL;
    if (!err)
        return true;
    log_error(LOG_L_WARN, "pass_cut_short", err, "request", name, NULL);
    node_sync_cancel(sync->node);
    return false;
}

/* ---- sweep ---- */

static void on_swept(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct node_sync *sync = ctx;
    const json_t *removed = json_object_get(reply, "removed"), *id;
    size_t i;
    if (!answered(sync, "sweep", err))
        return;
    json_array_foreach (removed, i, id)
        log_event(LOG_L_WARN, "leftover_removed", "vm_id", json_string_value(id), NULL);
    node_sync_cancel(sync->node);
}

/* Not before control has said once what is wanted: until then nothing here is known to be nobody's. */
static void sweep(struct node_sync *sync) {
    struct node *n = sync->node;
    json_t *known = json_array();
    for (const struct sandbox *s = n->first; s; s = s->next)
        if (s->state != SB_FAILED && s->state != SB_DELETED)
            (void)json_array_append_new(known, json_string(s->id));
    for (const struct sandbox *s = n->first; s; s = s->next)
        if (s->spare[0])
            (void)json_array_append_new(known, json_string(s->spare));
    template_cache_put_known(n->templates, known);
    spares_put_known(n->spares, known);
    if (!n->desired_known || json_array_size(known) > KNOWN_MAX) {
        json_decref(known);
        node_sync_cancel(n);
        return;
    }
    ask(sync, "sweep", json_pack("{s:o}", "known", known), on_swept);
}

/* ---- what there is ---- */

static bool is_alive(const json_t *vm) {
    return json_is_true(json_object_get(vm, "alive"));
}

static enum sandbox_listed listed_as(const json_t *vms, const char *id) {
    const json_t *vm = json_object_get(vms, id);
    return !vm ? LISTED_NOT : is_alive(vm) ? LISTED_ALIVE : LISTED_DEAD;
}

static void on_leftover_stopped(void *ctx, const json_t *reply, const struct sp_error *err) {
    (void)ctx;
    (void)reply;
    if (err)
        log_error(LOG_L_WARN, "leftover_not_stopped", err, NULL);
}

/* A VM of the broker's list that nobody here knows. */
static void take_in(struct node *n, const char *id, bool alive) {
    if (id_is_valid(id, "sbx")) {
        struct sandbox *s = sandbox_new(n, id);
        sandbox_adopt(s, alive);
        if (n->desired_known)
            node_reconcile(n, s, desired_find(&n->desired, id));
    } else {
        log_event(LOG_L_WARN, "leftover_boot", "vm_id", id, NULL);
        (void)broker_call_start(n->broker, "vm_stop", json_pack("{s:s}", "id", id), on_leftover_stopped, n, NULL, NULL);
    }
}

static void on_snapshots(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct node_sync *sync = ctx;
    struct node *n = sync->node;
    const char *id;
    json_t *vm;
    if (!answered(sync, "template_list", err))
        return;
    for (const struct sandbox *s = n->first; s; s = s->next)
        if (s->spare[0]) /* whose it is the broker has not said yet */
            (void)json_object_del(sync->vms, s->spare);
    template_cache_sync(n->templates, reply);
    snapshots_sync(n->snapshots);
    spares_sync(n->spares, sync->vms);
    for (struct sandbox *s = n->first, *next; s; s = next) {
        next = s->next;
        sandbox_broker_up(s, listed_as(sync->vms, s->id));
    }
    json_object_foreach (sync->vms, id, vm) {
        if (!node_find(n, id) && !template_cache_owns(n->templates, id) && !id_is_valid(id, "spr"))
            take_in(n, id, is_alive(vm));
    }
    control_link_start(n->control);
    pools_poke(n->pools);
    garbage_begin(n->garbage);
    sweep(sync);
}

static void ask_page(struct node_sync *sync, const char *after);

/* Pages are cut where a message is full; an empty one or one without a new id is the last. */
static void on_vms(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct node_sync *sync = ctx;
    const json_t *vms = json_object_get(reply, "vms"), *vm;
    char last[ID_SIZE] = "";
    size_t i, before;
    if (!answered(sync, "vm_list", err))
        return;
    before = json_object_size(sync->vms);
    json_array_foreach (vms, i, vm) {
        const char *id = json_string_value(json_object_get(vm, "id"));
        if (!id || !text_copy(last, sizeof(last), id))
            continue;
        (void)json_object_set(sync->vms, id, (json_t *)(uintptr_t)vm);
    }
    if (last[0] && json_object_size(sync->vms) > before && json_is_true(json_object_get(reply, "more")))
        ask_page(sync, last);
    else
        ask(sync, "template_list", NULL, on_snapshots);
}

static void ask_page(struct node_sync *sync, const char *after) {
    ask(sync, "vm_list", after[0] ? json_pack("{s:s}", "after", after) : NULL, on_vms);
}

void node_sync_begin(struct node *n) {
    if (n->sync || !n->accelerator || !broker_client_is_up(n->broker))
        return;
    n->sync = calloc(1, sizeof(*n->sync));
    if (!n->sync)
        abort();
    *n->sync = (struct node_sync){.node = n, .vms = json_object()};
    ask_page(n->sync, "");
}

/* ---- the broker's connection ---- */

static void on_up(void *ctx, const struct broker_facts *facts) {
    struct node *n = ctx;
    const char *accelerator;
    struct sp_error err = {0};
    if (facts_choose_accelerator(n->settings, &n->facts, facts->kvm, facts->tcg, &accelerator, &err) < 0) {
        log_error(LOG_L_ERROR, "no_accelerator", &err, NULL);
        return;
    }
    if (!facts->engine[0]) {
        log_event(LOG_L_ERROR, "no_engine", "why", "the broker found no QEMU it can run", NULL);
        return;
    }
    if (strcmp(n->facts.engine, facts->engine) != 0)
        log_event(LOG_L_INFO, "engine", "engine", facts->engine, NULL);
    (void)text_copy(n->facts.engine, sizeof(n->facts.engine), facts->engine);
    if (!n->accelerator || strcmp(n->accelerator, accelerator) != 0)
        log_event(LOG_L_INFO, "accelerator", "name", accelerator, "kernel", n->facts.kernel->profile, NULL);
    n->accelerator = n->base.accelerator = accelerator;
    node_sync_cancel(n);
    node_sync_begin(n);
}

static void on_down(void *ctx) {
    struct node *n = ctx;
    node_sync_cancel(n);
    garbage_cancel(n->garbage);
}

const struct broker_client_events node_broker_events = {.on_up = on_up, .on_down = on_down};
