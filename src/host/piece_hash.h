/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash of a large, mostly empty file: SHA-256 over the numbers and SHA-256 digests of those of its 64 KiB pieces (the last
 * one may be short) that are not all zeros. It depends on the bytes alone, so a hole and written zeros hash alike, and
 * holes are not read; how long the file is it does not say. Manifests call it "sha256_pieces". With the digests of a file that
 * it was reflinked from, only the pieces that are not at the same place any more are read.
 */
#pragma once
#include "base/digest.h"
#include "base/error.h"
#include "host/extents.h"

#define PIECE_HASH_PIECE (64u * 1024u)

/* Kept in files as it is. */
struct piece {
    uint64_t number; /* little endian */
    uint8_t digest[SHA256_SIZE];
};
struct piece_digests {
    struct piece *rows; /* by number */
    size_t n, room;
};
void piece_digests_done(struct piece_digests *digests);
void piece_digests_hex(const struct piece_digests *digests, char dst[SHA256_HEX_SIZE]);

int piece_hash_fd(int fd, char dst[SHA256_HEX_SIZE], struct sp_error *err); /* when the digests are of no interest */
int piece_digests_fd(int fd, struct piece_digests *ret, struct sp_error *err);
struct piece_base {
    uint64_t size; /* of the base's file; of another size it is no help */
    const struct piece_digests *digests;
    const struct extents *extents;
};
/* fd: written out already. *ret_hashed: pieces that were read. */
int piece_digests_since(int fd, const struct piece_base *base, const struct extents *extents, struct piece_digests *ret,
                        size_t *ret_hashed, struct sp_error *err);

#define _cleanup_piece_digests_ __attribute__((cleanup(piece_digests_done)))
