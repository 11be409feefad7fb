/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash of a large, mostly empty file: SHA-256 over the concatenated SHA-256 digests of its 1 MiB pieces (the last
 * one may be short). It depends on the bytes alone, so a hole and written zeros hash alike, but whole pieces inside a
 * hole are not read. Manifests call it "sha256_pieces".
 */
#pragma once
#include "base/digest.h"
#include "base/error.h"

#define PIECE_HASH_PIECE (1024u * 1024u)
int piece_hash_fd(int fd, char dst[SHA256_HEX_SIZE], struct sp_error *err);
