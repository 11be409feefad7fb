/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's end of a space-vm's control.sock: its status at connect and at every change, a ping of the agent, and one
 * lifecycle request at a time. Says that the VM is gone when the socket ended and a second connection shows the same,
 * within VM_LINK_RETRY_MS.
 */
#pragma once
#include "io/loop.h"
#include "node/vm_status.h"

#define VM_LINK_RETRY_MS 700u

struct vm_link;
struct vm_link_events {                                      /* from the loop only; each may free the link */
    void (*on_status)(void *ctx, const struct vm_status *s); /* borrowed */
    void (*on_pong)(void *ctx, bool alive);                  /* may be NULL */
    /* The request's end; done NULL: the connection was lost before it, the next status shows what became of it. May be
     * NULL when no request is ever sent. */
    void (*on_done)(void *ctx, const struct vm_done *done);
    void (*on_gone)(void *ctx, const char *why); /* once; nothing comes after it */
};

/* Connects in the next round of the loop. */
int vm_link_new(struct loop *l, const char *state_dir, const char *id, const struct vm_link_events *events, void *ctx,
                struct vm_link **ret, struct sp_error *err);
struct vm_link *vm_link_free(struct vm_link *link); /* NULL is fine; returns NULL */
/* Another owner, and the VM has (or is about to have) another id: a later connection goes there. */
void vm_link_hand_over(struct vm_link *link, const char *state_dir, const char *id, const struct vm_link_events *events,
                       void *ctx);
void vm_link_ping(struct vm_link *link);
/* Sends {"request": name, ...fields, "seq"}; takes fields over (NULL: none). false when there is no connection, or one is
 * under way. */
bool vm_link_request(struct vm_link *link, const char *name, json_t *fields);
bool vm_link_is_busy(const struct vm_link *link); /* a request is under way */
/* The end of the request under way is nobody's business any more. */
void vm_link_forget(struct vm_link *link);
bool vm_link_is_up(const struct vm_link *link);
uint64_t vm_link_heard_ms(const struct vm_link *link); /* loop time of its last word; 0: never */
