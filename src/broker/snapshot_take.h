/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot of a live VM (spec/node-protocol.md §4): one straight line from an empty directory to a durable snapshot, with
 * space-vm's help for what only it can do. Files are made here; memory is copied by space-vm, which gets descriptors.
 * A job. When it fails or is killed, the end of its connection tells space-vm, and snapshot_take_undo() the rest.
 *
 * What makes the snapshot the VM's base is the record, rewritten after the snapshot is durable and before space-vm forgets
 * which pages it has copied: copying one too often is right.
 *
 * One of the disk alone is taken by the same steps and leaves the base as it is: the pages written since are still to be
 * copied into the next one that holds memory. What it is to that one is its disk's digests (disk_base).
 */
#pragma once
#include "broker/layout.h"
#include "broker/record.h"
#include <jansson.h>

struct snapshot_take {
    const struct layout *layout;
    const char *key;
    enum request_then then;
    enum request_content content;
    const json_t *node_manifest;
};
/* On success the record is snapshot_take_based() on the key, and *ret the reply's fields (all but `ok`). */
int snapshot_take(const struct snapshot_take *take, struct vm_record *record, json_t **ret, struct sp_error *err);

/* What a VM's record says once a snapshot of that content was taken. */
void snapshot_take_based(struct vm_record *record, const char *key, enum request_content content);

/* After a failure: takes the half-made directory away. *ret_published: the snapshot is whole all the same (the job was
 * killed at the very end); then record's bases are what the record on disk says. */
int snapshot_take_undo(const struct layout *layout, const char *key, struct vm_record *record, bool *ret_published,
                       struct sp_error *err);
