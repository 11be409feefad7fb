/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots in the store: sealing a stopped template boot into one, taking one of a live VM (snapshot_take.h), checking,
 * copying, removing one. The manifest is what makes a snapshot exist; it appears last, with a rename of the whole
 * directory. Blocking; runs in jobs.
 *
 * One of the disk alone has no memory and no devices; a VM boots on it.
 *
 * manifest.json: {"format": 2, "key", "content": "full"|"disk" (full when left out), "template", "kernel", "vcpus", "memory_mib", "created_realtime_ns", "base"?,
 *   "engine"?, "qemu_version"?,
 *   "files": {"memory"|"devices"|"disk.img": {"size", "sha256_pieces"}}, "node": the node's manifest as it gave it}
 * sha256_pieces: see host/piece_hash.h; the digests of memory's and disk.img's pieces are kept beside them.
 */
#pragma once
#include "broker/layout.h"
#include "broker/record.h"
#include <jansson.h>

#define SNAPSHOT_FORMAT 2 /* 1: pieces of 1 MiB, their digests not kept */
#define SNAPSHOT_PIECES_SUFFIX ".pieces"

struct snapshot_seal {
    const struct layout *layout;
    const struct vm_record *record; /* of the boot; its process is proven dead */
    const char *key;
    const json_t *node_manifest;
};
/* Idempotent, also after having been cut off anywhere. Files that are missing: SP_E_CONFLICT. */
int snapshot_seal(const struct snapshot_seal *seal, struct sp_error *err);

enum snapshot_depth {
    SNAPSHOT_QUICK, /* manifest, sizes, owners, hash of the device state: a fraction of a millisecond */
    SNAPSHOT_FULL,  /* memory and disk too */
};
/* SP_E_NOT_FOUND: no such snapshot. SP_E_CORRUPT: it is broken, with what is wrong. */
int snapshot_check(const struct layout *layout, const char *key, enum snapshot_depth depth, struct sp_error *err);
bool snapshot_exists(const struct layout *layout, const char *key);
/* What it holds. */
int snapshot_content(const struct layout *layout, const char *key, enum request_content *ret, struct sp_error *err);
/* The digest of the template a snapshot was made from. */
int snapshot_template(const struct layout *layout, const char *key, char dst[SHA256_HEX_SIZE], struct sp_error *err);
/* The engine it was taken with, and its QEMU's version: "" in snapshots of a time before there were bundles. */
int snapshot_engine(const struct layout *layout, const char *key, char dst[SHA256_HEX_SIZE],
                    char version[RECORD_VERSION_SIZE], struct sp_error *err);
/* Takes the manifest away first. A missing snapshot is fine. */
int snapshot_remove(const struct layout *layout, const char *key, struct sp_error *err);

/* Name of the directory in which a snapshot of a VM is made before it has the snapshot's name. */
#define SNAPSHOT_TEMP_SIZE (BROKER_KEY_SIZE + ID_SIZE + 8)
void snapshot_temp_name(char dst[SNAPSHOT_TEMP_SIZE], const char *key, const char *vm_id);
/* The VM's id in such a name, or NULL. */
const char *snapshot_temp_vm(const char *name, char dst[ID_SIZE]);
/* Removes every half-made snapshot of a VM; of all VMs but template boots, and half-made copies, when id is NULL. */
int snapshot_remove_temps(const struct layout *layout, const char *id, struct sp_error *err);
