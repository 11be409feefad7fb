/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's connection to space-broker: requests by seq, pipelined, answered in any order; hello at every (re)connection;
 * reconnects by itself. While there is no connection requests are refused, and those under way fail with
 * SP_E_UNAVAILABLE: whether they were done is then for the owner to find out (vm_list).
 */
#pragma once
#include "base/json.h"
#include "io/loop.h"

#define BROKER_CLIENT_MESSAGE_MAX 49152
#define BROKER_CLIENT_CONFIG_MAX 32768 /* bytes of vm_start's config; over it the broker drops us */
#define BROKER_CLIENT_REQUESTS_MAX 2048

struct broker_client;
struct broker_call;

struct broker_facts {
    bool kvm, tcg;
    char cgroup[8];
    char engine[65]; /* what new VMs run on; "": the host has no QEMU */
};

struct broker_client_events {                                   /* from the loop only */
    void (*on_up)(void *ctx, const struct broker_facts *facts); /* connected and greeted */
    void (*on_down)(void *ctx);                                 /* after every call under way has failed */
};

/* Connects in the next round, and again after every loss. */
struct broker_client *broker_client_new(struct loop *l, const char *state_dir,
                                        const struct broker_client_events *events,
                                        void *ctx); /* aborts when out of memory */
/* Drops calls without their callbacks. NULL is fine; returns NULL. */
struct broker_client *broker_client_free(struct broker_client *c);
bool broker_client_is_up(const struct broker_client *c);

/* Sends {"request": name, ...fields, "seq"}; takes fields over (NULL: none). done runs exactly once, from the loop, unless
 * forgotten: err NULL: reply holds the fields of the answer (borrowed). SP_E_UNAVAILABLE when there is no connection. */
int broker_call_start(struct broker_client *c, const char *name, json_t *fields,
                      void (*done)(void *ctx, const json_t *reply, const struct sp_error *err), void *ctx,
                      struct broker_call **ret, struct sp_error *err);
/* The request goes on, its answer is ignored. NULL is fine; returns NULL. */
struct broker_call *broker_call_forget(struct broker_call *call);
