/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounded growable byte buffer. The maximum is mandatory; data is never NULL and always NUL-ended after len.
 * Appending past the maximum or out of memory fails and leaves the buffer as it was (and sets `failed`, so that
 * a chain of appends can be checked once at the end). Consuming from the front is amortised O(1).
 */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data;  /* first unread byte; valid until the next append or consume */
    size_t len;  /* unread bytes */
    size_t max;  /* mandatory bound on len */
    bool failed; /* some append did not fit; sticky until buf_reset */
    /* private: */
    char *base;
    size_t cap;
};

void buf_init(struct buf *b, size_t max);
void buf_done(struct buf *b);  /* frees; the buffer may be initialised again. Safe on a zeroed struct. */
void buf_reset(struct buf *b); /* len = 0, failed = false, keeps memory */
/* 0, -E2BIG over the maximum, -ENOMEM. */
int buf_append(struct buf *b, const void *data, size_t len);
int buf_append_str(struct buf *b, const char *s);
int buf_append_byte(struct buf *b, uint8_t c);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* Room for at least len more bytes: returns where to write, or NULL (which does not set `failed`); then
 * buf_commit(written ≤ len). */
char *buf_reserve(struct buf *b, size_t len);
void buf_commit(struct buf *b, size_t len);
void buf_consume(struct buf *b, size_t len); /* len ≤ b->len, asserted */
/* Gives the heap string to the caller (free()), buffer becomes empty as after buf_init. NULL when out of memory. */
char *buf_steal(struct buf *b);
/* Little-endian integers, for frames and records. */
int buf_put_u16(struct buf *b, uint16_t v);
int buf_put_u32(struct buf *b, uint32_t v);
int buf_put_u64(struct buf *b, uint64_t v);
#define _cleanup_buf_ __attribute__((cleanup(buf_done)))

/* A read cursor over bytes from outside: every getter checks the length and returns false past the end. */
struct view {
    const uint8_t *p;
    size_t len;
};
bool view_u8(struct view *v, uint8_t *ret);
bool view_u16(struct view *v, uint16_t *ret);
bool view_u32(struct view *v, uint32_t *ret);
bool view_u64(struct view *v, uint64_t *ret);
bool view_take(struct view *v, size_t len, struct view *ret);
