/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last bytes of one output stream, by offset since the stream began. Memory starts small and doubles as bytes come,
 * up to the window, as far as the budget that all rings share allows; without room to grow the oldest bytes go.
 */
#pragma once
#include "base/buf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_FIRST 4096u
#define RING_MIN_WINDOW 4096u
#define RING_MAX_WINDOW (16u * 1024u * 1024u)

struct ring_budget {
    size_t used, max; /* bytes; RING_FIRST of each ring is given even when the budget is used up */
    /* Asked for `need` more bytes: frees what it can. May be NULL. */
    void (*reclaim)(struct ring_budget *b, size_t need);
};

struct ring {
    uint64_t base, end; /* offsets of the oldest byte held and of the next one */
    size_t window;
    size_t cap; /* of data; 0 after ring_drop */
    uint8_t *data;
    struct ring_budget *budget;
};

/* 0 or -ENOMEM. */
int ring_init(struct ring *r, size_t window, struct ring_budget *budget);
void ring_drop(struct ring *r);   /* forgets the bytes, keeps the offsets: base = end */
void ring_shrink(struct ring *r); /* gives back memory that holds nothing; no more writes follow */
/* How many of `want` bytes (≥ 1) can be written without losing bytes from `keep` on (offset); grows when needed. */
size_t ring_room(struct ring *r, uint64_t keep, size_t want);
/* Appends; the oldest bytes make room. */
void ring_write(struct ring *r, const void *data, size_t len);
/* Up to max bytes from offset (≥ base) as at most two parts. Returns their sum. */
size_t ring_peek(const struct ring *r, uint64_t from, size_t max, struct view parts[2]);
