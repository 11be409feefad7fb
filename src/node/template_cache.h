/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The snapshots sandboxes start from. One that is not there is made by booting the template once, however many wait for
 * it; a broken one is removed and made again. Boots run a few at a time.
 */
#pragma once
#include "node/broker_client.h"
#include "node/fault.h"
#include "node/vm_request.h"

#define TEMPLATE_BOOTS_MAX 2u /* at once */

struct template_cache;
struct template_entry;

/* Whoever waits for a snapshot; embedded in its owner, zeroed. */
struct template_waiter {
    void (*done)(void *ctx, const struct fault *fault); /* from the loop, once; fault NULL: the snapshot is there */
    void *ctx;
    /* private: */
    struct template_entry *entry; /* NULL: not waiting */
    struct template_waiter *next, *prev;
};

struct template_cache *template_cache_new(struct loop *l, struct broker_client *broker,
                                          const struct vm_request_base *base);
struct template_cache *template_cache_free(struct template_cache *c); /* NULL is fine; returns NULL */

/* 1: the snapshot is there, w is not touched; 0: w waits. */
int template_cache_want(struct template_cache *c, const struct template_spec *spec, struct template_waiter *w);
void template_cache_cancel(struct template_waiter *w); /* fine when it does not wait */
/* A clone that was started at used_ms (loop time) failed because of it: whoever wants it next gets a new one. Fine for one
 * that has been made again since, or is being made. */
void template_cache_broken(struct template_cache *c, const char *key, uint64_t used_ms);

/* The broker is (again) there and named what snapshots it has: {"snapshots": [...]}. Boots go on or begin anew. */
void template_cache_sync(struct template_cache *c, const json_t *list);
/* Whether this is the id of a boot that is going on; another tpb_… VM is a leftover. */
bool template_cache_owns(const struct template_cache *c, const char *id);
/* Adds the ids of boots that are going on. */
void template_cache_put_known(const struct template_cache *c, json_t *ids);
unsigned template_cache_booting(const struct template_cache *c);
