/* SPDX-License-Identifier: Apache-2.0 */
/* Retention, and the sums /metrics shows. */
#pragma once
#include "model/states.h"
#include "store/store.h"

/* Removes what is past its time (the keep_… rows of model/limits.h), a batch of each kind. Safe to run on every replica.
 * *ret_removed: rows removed; not 0 means: run again soon. */
int maintenance_sweep(struct store *s, uint64_t *ret_removed, struct sp_error *err);

struct store_sums {
    uint64_t sandboxes[SANDBOX_STATE_COUNT_];
    uint64_t sandboxes_ready;
    uint64_t operations_open, sessions_open, outbox, nodes_ready, nodes_lost;
};
int maintenance_sums(struct store *s, struct store_sums *ret, struct sp_error *err);
