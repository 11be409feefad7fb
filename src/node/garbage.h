/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of sandboxes that lie on this node and that control has never heard of, or no more: what a crash between the two
 * leaves. And engines (node-protocol.md §1) that nothing is left of. Found by a pass over the broker's lists, kept for a grace time
 * from when they were first seen so, then removed.
 */
#pragma once
#include "base/json.h"

struct node;
struct garbage;

struct garbage *garbage_new(struct node *n);
struct garbage *garbage_free(struct garbage *g); /* NULL is fine; returns NULL */
/* A pass, unless one is going on. */
void garbage_begin(struct garbage *g);
void garbage_cancel(struct garbage *g); /* the broker is gone */
/* {snapshots, engines, bytes} as the last pass found it; NULL before the first. */
json_t *garbage_report(const struct garbage *g);
