/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's end of a space-vm's control.sock: its status at connect and at every change, and a ping of the agent. Says
 * that the VM is gone when the socket ended and a second connection shows the same, within VM_LINK_RETRY_MS.
 */
#pragma once
#include "io/loop.h"
#include "node/vm_status.h"

#define VM_LINK_RETRY_MS 700u

struct vm_link;
struct vm_link_events {                                      /* from the loop only; each may free the link */
    void (*on_status)(void *ctx, const struct vm_status *s); /* borrowed */
    void (*on_pong)(void *ctx, bool alive);                  /* may be NULL */
    void (*on_gone)(void *ctx, const char *why);             /* once; nothing comes after it */
};

/* Connects in the next round of the loop. */
int vm_link_new(struct loop *l, const char *state_dir, const char *id, const struct vm_link_events *events, void *ctx,
                struct vm_link **ret, struct sp_error *err);
struct vm_link *vm_link_free(struct vm_link *link); /* NULL is fine; returns NULL */
void vm_link_ping(struct vm_link *link);
