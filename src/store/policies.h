/* SPDX-License-Identifier: Apache-2.0 */
/* What the policies of sandboxes ask for, found and done; what they decide is model/policy.h's. */
#pragma once
#include "model/policy.h"
#include "store/store.h"

/* Sandboxes that may be due; one column, an id. */
int policies_find(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err);
/* In a transaction: looks again under a lock, and does what the policy says. *ret_done: what that was. */
int policies_apply(struct store *s, const char *id, struct policy_action *ret_done, struct sp_error *err);
/* Sandboxes that have more checkpoints than one; one column, an id. */
int checkpoints_find(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err);
/* In a transaction: removes those that no tier keeps. */
int checkpoints_apply(struct store *s, const char *id, uint64_t *ret_removed, struct sp_error *err);

/* Moves the clock of the policies on; *ret_offset_s: how far it is ahead now. */
int policy_clock_advance(struct store *s, int64_t seconds, int64_t *ret_offset_s, struct sp_error *err);
