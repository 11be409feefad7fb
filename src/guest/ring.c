/* SPDX-License-Identifier: Apache-2.0 */
/* Byte i of the stream lies at data[i % cap]; a change of cap lays the held bytes out anew. */
#include "guest/ring.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ring_init(struct ring *r, size_t window, struct ring_budget *budget) {
    *r = (struct ring){.window = window < RING_MIN_WINDOW ? RING_MIN_WINDOW : window, .budget = budget};
    r->data = malloc(RING_FIRST);
    if (!r->data)
        return -ENOMEM;
    r->cap = RING_FIRST;
    budget->used += r->cap;
    return 0;
}

void ring_drop(struct ring *r) {
    free(r->data);
    r->data = NULL;
    if (r->budget)
        r->budget->used -= r->cap;
    r->cap = 0;
    r->base = r->end;
}

size_t ring_peek(const struct ring *r, uint64_t from, size_t max, struct view parts[2]) {
    uint64_t held = r->end - from;
    size_t n = held < max ? (size_t)held : max, at, first;

    assert(from >= r->base && from <= r->end);
    parts[0] = parts[1] = (struct view){r->data, 0};
    if (n == 0)
        return 0;
    at = (size_t)(from % r->cap);
    first = r->cap - at < n ? r->cap - at : n;
    parts[0] = (struct view){r->data + at, first};
    parts[1] = (struct view){r->data, n - first};
    return n;
}

/* Puts n bytes at offset, which fit into cap without lapping. */
static void place(uint8_t *data, size_t cap, uint64_t offset, const uint8_t *src, size_t n) {
    size_t at = (size_t)(offset % cap), first = cap - at < n ? cap - at : n;
    if (first > 0)
        memcpy(data + at, src, first);
    if (n > first)
        memcpy(data, src + first, n - first);
}

static bool resize(struct ring *r, size_t cap) {
    struct view parts[2];
    uint8_t *data = malloc(cap);

    if (!data)
        return false;
    (void)ring_peek(r, r->base, r->cap, parts);
    place(data, cap, r->base, parts[0].p, parts[0].len);
    place(data, cap, r->base + parts[0].len, parts[1].p, parts[1].len);
    free(r->data);
    r->data = data;
    r->budget->used = r->budget->used - r->cap + cap;
    r->cap = cap;
    return true;
}

/* Grows until `want` bytes would fit beside what is held, as far as window and budget go. */
static void grow(struct ring *r, size_t want) {
    size_t held = (size_t)(r->end - r->base), cap = r->cap, need;
    struct ring_budget *b = r->budget;

    while (cap < r->window && cap < held + want)
        cap *= 2;
    if (cap > r->window)
        cap = r->window;
    if (cap <= r->cap)
        return;
    need = cap - r->cap;
    if (b->used + need > b->max && b->reclaim)
        b->reclaim(b, need);
    if (b->used + need <= b->max)
        (void)resize(r, cap);
}

void ring_shrink(struct ring *r) {
    size_t held = (size_t)(r->end - r->base);
    if (held == 0)
        ring_drop(r);
    else if (held < r->cap)
        (void)resize(r, held);
}

size_t ring_room(struct ring *r, uint64_t keep, size_t want) {
    uint64_t kept = r->end > keep ? r->end - keep : 0;

    if (r->cap - (kept < r->cap ? (size_t)kept : r->cap) < want || (size_t)(r->end - r->base) + want > r->cap)
        grow(r, want);
    if (kept >= r->cap)
        return 0;
    return r->cap - (size_t)kept < want ? r->cap - (size_t)kept : want;
}

void ring_write(struct ring *r, const void *data, size_t len) {
    const uint8_t *p = data;

    if (r->cap == 0) {
        r->end += len;
        r->base = r->end;
        return;
    }
    if ((size_t)(r->end - r->base) + len > r->cap)
        grow(r, len);
    if (len > r->cap) {
        p += len - r->cap;
        r->end += len - r->cap;
        len = r->cap;
        r->base = r->end;
    }
    place(r->data, r->cap, r->end, p, len);
    r->end += len;
    if (r->end - r->base > r->cap)
        r->base = r->end - r->cap;
}
