/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of snapshots, which share every block, and what snapshots take on disk. Jobs. */
#pragma once
#include "broker/layout.h"
#include <jansson.h>
#include <stdint.h>

struct snapshot_copy {
    const struct layout *layout;
    const char *from, *to;
    const json_t *node_manifest; /* NULL: that of the source */
};
/* Leaves nothing when it fails; what is left when it is cut off goes with snapshot_copy_undo(). */
int snapshot_copy(const struct snapshot_copy *copy, struct sp_error *err);
int snapshot_copy_undo(const struct layout *layout, const char *to, struct sp_error *err);

struct snapshot_size {
    uint64_t memory_bytes, disk_bytes; /* on disk */
    uint64_t exclusive_bytes;          /* what removal gives back */
    uint64_t shared_bytes;
    uint64_t extents; /* of memory */
};
int snapshot_size(const struct layout *layout, const char *key, struct snapshot_size *ret, struct sp_error *err);

/* Writes memory anew, in few extents (snapshot_pack.c). For a snapshot that no VM uses; shares nothing afterwards. */
int snapshot_pack(const struct layout *layout, const char *key, struct sp_error *err);
