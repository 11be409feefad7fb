/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes' snapshots (snp_…) on this node, as seen from here: who waits for one that is not there yet, which are to be
 * removed, which belong to nobody. Making them is the business of the sandbox they are of.
 */
#pragma once
#include "node/broker_client.h"
#include "node/desired.h"
#include "node/fault.h"

struct snapshots;
struct snapshot_entry;

/* Whoever waits for a snapshot; embedded in its owner, zeroed. */
struct snapshot_waiter {
    void (*done)(void *ctx, const struct fault *fault); /* from the loop, once; fault NULL: it is there */
    void *ctx;
    /* private: */
    struct snapshot_entry *entry; /* NULL: not waiting */
    struct snapshot_waiter *next, *prev;
};

struct snapshots_events {
    bool (*is_expected)(void *ctx, const char *id); /* some sandbox here is to make it */
    void (*on_removed)(void *ctx);                  /* something new for snapshots_put_removed() */
};

struct snapshots *snapshots_new(struct loop *l, struct broker_client *broker, const struct snapshots_events *events,
                                void *ctx);
struct snapshots *snapshots_free(struct snapshots *s); /* NULL is fine; returns NULL */

/* 1: it is there, w is not touched; 0: w waits. */
int snapshots_want(struct snapshots *s, const char *id, struct snapshot_waiter *w);
void snapshots_cancel(struct snapshot_waiter *w); /* fine when it does not wait */
/* It was made; it could not be. */
void snapshots_ready(struct snapshots *s, const char *id);
void snapshots_failed(struct snapshots *s, const char *id, const struct fault *fault);
/* What was thought of it is doubtful: the broker is asked the next time. */
void snapshots_forget(struct snapshots *s, const char *id);
/* The broker is (again) there: what is awaited is asked for, what is to go is removed. */
void snapshots_sync(struct snapshots *s);
/* Control's list has changed: what is to be removed, and what nobody is going to make any more. */
void snapshots_apply(struct snapshots *s, const struct desired_list *list);
/* Adds the ids of those that are gone, as long as control lists them. */
void snapshots_put_removed(const struct snapshots *s, json_t *ids);
