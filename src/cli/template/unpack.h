/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacks an untrusted tar (any compression libarchive knows) into the current root directory. Meant to run in the
 * build jail, whose root is the scratch file system: links and ".." lead nowhere else. Device nodes, sockets and FIFOs
 * are left out and counted; absolute names, ".." and names through links are refused.
 */
#pragma once
#include "base/error.h"
#include <stdint.h>

struct unpack_limits {
    uint64_t max_entries; /* files, directories and links */
    uint64_t max_bytes;   /* unpacked file content */
};

struct unpack_counts {
    uint64_t entries, bytes, skipped;
};

/* Reads the archive from fd to its end. `progress` may be NULL; called at most every 64 entries. */
int unpack_archive(int fd, const struct unpack_limits *limits,
                   void (*progress)(void *user, const struct unpack_counts *c), void *user, struct unpack_counts *ret,
                   struct sp_error *err);
