/* SPDX-License-Identifier: Apache-2.0 */
/*
 * VMs that stand by (spr_…): blanks, which are a started VMM without memory, and warm ones, which hold a template's snapshot,
 * were exercised and stand still. How many of which there should be is pools.h; this is their life, from the request for
 * one to its end or until a sandbox takes it. An id tells by its first characters what engine and size it was made for, so
 * that another run of the node knows what it finds.
 */
#pragma once
#include "node/broker_client.h"
#include "node/vm_link.h"
#include "node/vm_request.h"

#define SPARE_TAG_SIZE 9 /* of the engine: '0' and hex digits, so that the id stays one */

enum spare_state {
    SPARE_STARTING, /* vm_start */
    SPARE_RISING,   /* until it says blank (or what it is, after a restart of the node) */
    SPARE_BLANK,
    SPARE_LOADING, /* vm_load */
    SPARE_WARMING, /* until it says warm */
    SPARE_WARM,
    SPARE_STOPPING, /* vm_stop */
};

struct spares;
struct spare {
    struct spares *all;
    struct spare *next;
    char id[ID_SIZE];
    enum spare_state state;
    struct vm_shape shape;
    char key[SNAPSHOT_KEY_SIZE]; /* LOADING, WARMING, WARM; "" else */
    bool adopted;                /* made by another run of the node */
    uint64_t since_ms;
    enum vm_phase phase; /* by its last status */
    unsigned missed;     /* pings in a row without any word */
    struct broker_call *call;
    struct vm_link *link;
    struct loop_timer *timer; /* a step's deadline, or the broker again */
};

struct spares *spares_new(struct loop *l, struct broker_client *broker, const struct vm_request_base *base,
                          void (*on_change)(void *ctx), void *ctx);
struct spares *spares_free(struct spares *s); /* NULL is fine; returns NULL */

const struct spare *spares_first(const struct spares *s); /* walk them by ->next */
uint64_t spares_failed_ms(const struct spares *s);        /* when the making of one last failed, loop time; 0: never */
/* A blank is asked for. */
void spares_begin(struct spares *s, const struct vm_shape *shape);
/* A blank of that size becomes a warm one; false when there is none. */
bool spares_load(struct spares *s, const struct template_spec *spec);
void spares_stop(struct spares *s, const struct spare *spare);

/* Takes one out: the caller has its id and its link from now on. false when there is none that is well. */
bool spares_take_blank(struct spares *s, const struct vm_shape *shape, char ret_id[ID_SIZE], struct vm_link **ret_link);
bool spares_take_warm(struct spares *s, const char *key, char ret_id[ID_SIZE], struct vm_link **ret_link);
/* One that was taken is of no use. Fine for one that is gone, or has become a sandbox's. */
void spares_discard(struct spares *s, const char *id);
/* One that was taken is as it was: a blank nobody loaded. */
void spares_give_back(struct spares *s, const char *id);
void spares_ping(struct spares *s); /* all that stand by: those that do not answer at all are replaced */

/* The broker is (again) there and has these VMs: id → {alive, snapshot?}. Unknown spares are taken in. */
void spares_sync(struct spares *s, const json_t *vms);
void spares_put_known(const struct spares *s, json_t *ids);

/* Pure: the id's engine and size. */
void spare_id_make(char dst[ID_SIZE], const char tag[SPARE_TAG_SIZE], const struct vm_shape *shape);
bool spare_id_read(const char *id, const char tag[SPARE_TAG_SIZE], struct vm_shape *ret_shape);
