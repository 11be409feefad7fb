/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a file's bytes are on its file system (FIEMAP), to tell without reading which parts two reflinked files share and
 * how much of a file is its own. Of a file nobody writes to; `sync` waits until what was written has a place.
 */
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct extent {
    uint64_t logical, physical, length;
    uint32_t flags; /* FIEMAP_EXTENT_* */
};
struct extents {
    struct extent *rows; /* by logical offset, none overlaps another */
    size_t n;
};

int extents_read(int fd, bool sync, struct extents *ret, struct sp_error *err);
void extents_done(struct extents *extents);
uint64_t extents_bytes(const struct extents *extents);
uint64_t extents_exclusive(const struct extents *extents); /* in no other file: what its removal gives back */

/* Compares two files front to back. */
struct extents_walk {
    const struct extents *a, *b;
    size_t at_a, at_b;
};
/* The next part of [from, to) that is not for certain the same bytes in both: not the same blocks, nor a hole in both.
 * false: there is none. `from` never goes back. */
bool extents_next_change(struct extents_walk *walk, uint64_t from, uint64_t to, uint64_t *ret_from, uint64_t *ret_to);

#define _cleanup_extents_ __attribute__((cleanup(extents_done)))
