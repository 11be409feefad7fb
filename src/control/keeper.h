/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reconciler: a thread of level-triggered passes. It first brings the schema up and the bootstrap token in, then takes
 * work from the outbox when woken, looks at everything every two seconds, and removes what is past its retention. Any
 * number of replicas may do so at once: rows are taken with SKIP LOCKED and every change is guarded by the row's state.
 */
#pragma once
#include "control/control.h"

int keeper_start(struct control *c, struct sp_error *err);
void keeper_wake(struct keeper *k, bool everything); /* any thread; everything: the full pass too */
/* Ends and joins the thread. NULL is fine; returns NULL. */
struct keeper *keeper_stop(struct keeper *k);

/* What it does first, for --migrate-only too: schema, tenant `default`, the bootstrap token ("" for none). */
int keeper_prepare(struct store *db, const char *bootstrap_token, struct sp_error *err);
