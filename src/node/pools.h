/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many spares there should be: blanks for the sizes in use, warm ones for the pools control lists and for templates that
 * were asked for in the last minutes. One step at a time and only while nothing else is in flight on the node, so that
 * refilling never hurts a create, a wake or a fork.
 */
#pragma once
#include "node/spares.h"
#include "node/template_cache.h"

#define POOLS_IDLE_MS 100u /* nothing in flight for so long */

struct pools;
struct pools_events {
    bool (*is_busy)(void *ctx); /* something is in flight */
    /* There is room for one more spare of that size beside everything that is promised. */
    bool (*has_room)(void *ctx, const struct vm_shape *shape);
    void (*on_change)(void *ctx); /* pools_report() has news */
};

struct pools *pools_new(struct loop *l, const struct vm_request_base *base, struct spares *spares,
                        struct template_cache *templates, const struct pools_events *events, void *ctx);
struct pools *pools_free(struct pools *p); /* NULL is fine; returns NULL */

/* Control's list has changed. */
void pools_apply(struct pools *p, const struct desired_list *list);
/* Something that counts has changed: look again once the node has been idle for a while. */
void pools_poke(struct pools *p);
/* A sandbox is to be started from that template's snapshot; whether a warm one was there. */
void pools_note_start(struct pools *p, const struct template_spec *spec);
void pools_note_taken(struct pools *p, const char *key, bool hit);
/* A size that is in use, of a sandbox that starts from a snapshot. */
void pools_note_shape(struct pools *p, const struct vm_shape *shape);
/* [{pool_id, warm, filling, target, hits, misses}] of those control listed. */
json_t *pools_report(const struct pools *p);

/* Pure: how many warm ones a template in demand gets, `recent` being its starts in the last minutes. */
unsigned pools_demand(unsigned recent, unsigned most);
