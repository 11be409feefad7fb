/* SPDX-License-Identifier: Apache-2.0 */
/* What a snapshot's directory consists of, for those who make one: sealing, taking, copying. */
#pragma once
#include "broker/snapshot.h"
#include "host/piece_hash.h"

#define SNAPSHOT_FILES 3
#define SNAPSHOT_MANIFEST_MAX 32768
#define SNAPSHOT_DEVICES_MAX (64ll * 1024 * 1024)
extern const char *const snapshot_files[SNAPSHOT_FILES];

/* SP_E_NOT_FOUND when there is none, or none with a manifest. */
int snapshot_open(const struct layout *layout, const char *key, int *ret_dir, struct sp_error *err);
int snapshot_read_manifest(int dir, const char *key, json_t **ret, struct sp_error *err);
int snapshot_manifest_content(const json_t *manifest, enum request_content *ret, struct sp_error *err);
/* Whether a file of this name belongs to one of that content. */
bool snapshot_holds(enum request_content content, const char *name);
/* The hash the manifest has of a file. */
int snapshot_manifest_hash(const json_t *manifest, const char *name, char dst[SHA256_HEX_SIZE], struct sp_error *err);

/* Gives the file its owner and mode and proves that nobody has it open for writing. fd: read-only. */
int snapshot_file_own(int fd, const char *name, struct sp_error *err);
/* Adds the file's row to what becomes the manifest's "files". */
int snapshot_file_row(json_t *files, int fd, const char *name, const char *hash, struct sp_error *err);
/* <name>.pieces: written whole and, with ret_fd NULL, synced. */
int snapshot_pieces_write(int dir, const char *name, const struct piece_digests *digests, int *ret_fd,
                          struct sp_error *err);
/* SP_E_CORRUPT unless they are those that `hash` is the hash of. */
int snapshot_pieces_read(int dir, const char *name, const char *hash, struct piece_digests *ret, struct sp_error *err);

struct snapshot_manifest {
    const char *key;
    enum request_content content;
    const struct vm_record *record;
    const char *base; /* or NULL */
    json_t *files;
    const json_t *node;
};
char *snapshot_manifest_print(const struct snapshot_manifest *manifest, struct sp_error *err);
/* Renames the directory to the snapshot's name, durably; replaces what a cut-off removal left under it. */
int snapshot_publish(const struct layout *layout, const char *temp, const char *key, struct sp_error *err);
