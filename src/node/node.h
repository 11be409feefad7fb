/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node as a whole: the table of sandboxes, what all of them share, and the passes over it. Its memory is the host's:
 * after a restart the table is made again from the broker's list and what each VM says.
 */
#pragma once
#include "node/capacity.h"
#include "node/garbage.h"
#include "node/pools.h"
#include "node/sandbox.h"

#define NODE_BUCKETS 1024u
#define NODE_PASS_MS 60000u     /* full pass: list, leftovers, sweep */
#define NODE_PING_MS 5000u      /* every so often a third of the running sandboxes is asked whether its agent answers */
#define NODE_SAY_AGAIN_MS 1000u /* a report that control seems to have lost is not repeated faster */

struct control_link;

struct node {
    struct loop *loop;
    const struct settings *settings;
    struct facts facts;
    const char *accelerator; /* NULL until the broker said what there is */
    struct vm_request_base base;
    struct broker_client *broker;
    struct template_cache *templates;
    struct snapshots *snapshots;
    struct spares *spares;
    struct pools *pools;
    struct garbage *garbage;
    struct control_link *control;
    struct sandbox *buckets[NODE_BUCKETS], *first;
    unsigned n_sandboxes;
    uint64_t next_order;
    struct desired_list desired; /* the last one */
    bool desired_known;
    struct loop_task slots;     /* hands out start slots */
    struct loop_task reconcile; /* a sandbox has arrived somewhere: what is next of it */
    struct loop_timer *pass, *ping;
    unsigned ping_round;
    struct node_sync *sync; /* a listing that is going on */
};

int node_init(struct node *n, struct loop *l, const struct settings *s, struct sp_error *err);
void node_done(struct node *n);

/* ---- node.c: the table ---- */
struct sandbox *node_find(const struct node *n, const char *id);
void node_table_add(struct node *n, struct sandbox *s);
void node_table_remove(struct node *n, struct sandbox *s);
void node_slots_changed(struct node *n); /* somebody queues, or a slot is free */
unsigned node_slots(const struct node *n);
void node_activity_changed(struct node *n); /* of some sandbox: spares wait for the node to be idle */
/* FAILURE_NONE, or why s cannot be admitted. Spares give way to it. */
enum failure node_admit(struct node *n, const struct sandbox *s, char *message, size_t size);
/* Capacity as it is now; NULL when it cannot be measured. */
json_t *node_capacity(const struct node *n);

/* ---- node_sync.c: what the broker has ---- */
extern const struct broker_client_events node_broker_events; /* their ctx is the node */
void node_sync_cancel(struct node *n);
void node_sync_begin(struct node *n); /* list VMs and snapshots, adopt, stop leftovers, sweep */

/* ---- node_desired.c ---- */
void node_apply_desired(struct node *n, struct desired_list *list); /* takes it over */
void node_reconcile_all(struct node *n); /* with the list as it is: from time to time, in case an event was missed */
void node_reconcile(struct node *n, struct sandbox *s, const struct desired *d);
void node_reconcile_soon(struct node *n); /* with the list as it is, in the next round */
