/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounded byte buffer and the read cursor. Unread bytes live at [data, data + len) inside the allocation
 * [base, base + cap]; the gap in front is what was consumed and is reused before the allocation grows. cap leaves
 * one byte for the NUL. An empty buffer that never allocated points at a shared NUL that is never written.
 */
#include "base/buf.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUF_FIRST_CAP 128u

static char empty[1];

void buf_init(struct buf *b, size_t max) {
    assert(max < SIZE_MAX / 2);
    *b = (struct buf){.data = empty, .max = max};
}

void buf_done(struct buf *b) {
    size_t max = b->max;
    free(b->base);
    *b = (struct buf){.data = empty, .max = max};
}

void buf_reset(struct buf *b) {
    b->len = 0;
    b->failed = false;
    if (b->base) {
        b->data = b->base;
        b->data[0] = '\0';
    }
}

/* Makes room for len more bytes and the NUL. Only moves and grows: content, len and flags stay. */
static int make_room(struct buf *b, size_t len) {
    size_t need, cap;
    char *base;

    if (len > b->max || b->len > b->max - len)
        return -E2BIG;
    need = b->len + len;
    if (b->base && (size_t)(b->data - b->base) + need <= b->cap)
        return 0;
    /* Moving down is paid for by the bytes consumed before it, so only when the gap is at least what is moved. */
    if (b->base && need <= b->cap && (size_t)(b->data - b->base) >= b->len) {
        memmove(b->base, b->data, b->len);
        b->data = b->base;
        b->data[b->len] = '\0';
        return 0;
    }
    cap = b->cap ? b->cap : BUF_FIRST_CAP;
    while (cap < need)
        cap *= 2;
    if (need <= b->cap)
        cap = b->cap * 2;
    if (cap > b->max)
        cap = b->max;
    base = malloc(cap + 1);
    if (!base)
        return -ENOMEM;
    if (b->len)
        memcpy(base, b->data, b->len);
    base[b->len] = '\0';
    free(b->base);
    b->base = b->data = base;
    b->cap = cap;
    return 0;
}

char *buf_reserve(struct buf *b, size_t len) {
    if (make_room(b, len) < 0)
        return NULL;
    return b->data + b->len;
}

void buf_commit(struct buf *b, size_t len) {
    if (len == 0)
        return;
    assert(b->base && (size_t)(b->data - b->base) + b->len + len <= b->cap);
    b->len += len;
    b->data[b->len] = '\0';
}

int buf_append(struct buf *b, const void *data, size_t len) {
    int r;
    if (len == 0)
        return 0;
    r = make_room(b, len);
    if (r < 0) {
        b->failed = true;
        return r;
    }
    memcpy(b->data + b->len, data, len);
    buf_commit(b, len);
    return 0;
}

int buf_append_str(struct buf *b, const char *s) {
    return buf_append(b, s, strlen(s));
}

int buf_append_byte(struct buf *b, uint8_t c) {
    return buf_append(b, &c, 1);
}

int buf_vprintf(struct buf *b, const char *fmt, va_list ap) {
    va_list again;
    int n, r;

    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    r = n < 0 ? -EINVAL : make_room(b, (size_t)n);
    if (r < 0) {
        b->failed = true;
        return r;
    }
    if (n > 0) {
        (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
        buf_commit(b, (size_t)n);
    }
    return 0;
}

int buf_printf(struct buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int r = buf_vprintf(b, fmt, ap);
    va_end(ap);
    return r;
}

void buf_consume(struct buf *b, size_t len) {
    assert(len <= b->len);
    b->data += len;
    b->len -= len;
    if (b->len == 0 && b->base) {
        b->data = b->base;
        b->data[0] = '\0';
    }
}

char *buf_steal(struct buf *b) {
    char *s = b->base;
    if (!s)
        s = calloc(1, 1);
    else if (b->data != s)
        memmove(s, b->data, b->len + 1);
    *b = (struct buf){.data = empty, .max = b->max};
    return s;
}

static int put_le(struct buf *b, uint64_t v, size_t bytes) {
    uint8_t raw[8];
    for (size_t i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(v >> (8 * i));
    return buf_append(b, raw, bytes);
}

int buf_put_u16(struct buf *b, uint16_t v) {
    return put_le(b, v, 2);
}

int buf_put_u32(struct buf *b, uint32_t v) {
    return put_le(b, v, 4);
}

int buf_put_u64(struct buf *b, uint64_t v) {
    return put_le(b, v, 8);
}

static bool get_le(struct view *v, size_t bytes, uint64_t *ret) {
    uint64_t n = 0;
    if (v->len < bytes)
        return false;
    for (size_t i = 0; i < bytes; i++)
        n |= (uint64_t)v->p[i] << (8 * i);
    v->p += bytes;
    v->len -= bytes;
    *ret = n;
    return true;
}

bool view_u8(struct view *v, uint8_t *ret) {
    uint64_t n;
    if (!get_le(v, 1, &n))
        return false;
    *ret = (uint8_t)n;
    return true;
}

bool view_u16(struct view *v, uint16_t *ret) {
    uint64_t n;
    if (!get_le(v, 2, &n))
        return false;
    *ret = (uint16_t)n;
    return true;
}

bool view_u32(struct view *v, uint32_t *ret) {
    uint64_t n;
    if (!get_le(v, 4, &n))
        return false;
    *ret = (uint32_t)n;
    return true;
}

bool view_u64(struct view *v, uint64_t *ret) {
    return get_le(v, 8, ret);
}

bool view_take(struct view *v, size_t len, struct view *ret) {
    struct view taken = {v->p, len};
    if (v->len < len)
        return false;
    if (len) {
        v->p += len;
        v->len -= len;
    }
    *ret = taken;
    return true;
}
