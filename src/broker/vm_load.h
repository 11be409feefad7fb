/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a blank VMM: vm_load gives it a snapshot (a job), vm_bind gives the spare that came of it to a sandbox (in
 * the loop: it is on the way of a create that takes milliseconds).
 *
 * The binding is a rewritten record and two renames, and the record comes first: whoever finds it under the spare's name
 * with the sandbox's id in it goes on with the renames. So a VM has one owner at any moment.
 */
#pragma once
#include "broker/layout.h"
#include "broker/record.h"
#include <jansson.h>

struct vm_load {
    const struct layout *layout;
    const json_t *config; /* the node's, for space-vm */
    const char *bind;     /* the sandbox that it is for, or "": then it is made warm and waits */
};
/* The record names the snapshot already; on success it is that of a clone. From the first step on, until then, it is spoiled. */
int vm_load(const struct vm_load *load, struct vm_record *record, json_t **ret_times, struct sp_error *err);

/* Undone when it fails. SP_E_CONFLICT: something of the sandbox is there. */
int vm_bind(const struct layout *layout, struct vm_record *record, const char *sandbox, struct sp_error *err);
/* After a restart: the renames that were not done any more, of a record found in sandboxes/<name>. */
int vm_bind_finish(const struct layout *layout, const struct vm_record *record, const char *name, struct sp_error *err);
