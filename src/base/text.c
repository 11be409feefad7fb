/* SPDX-License-Identifier: Apache-2.0 */
/* Strict text helpers. Everything is bounded and total: any bytes in, a defined answer out. No allocation, no locale. */
#include "base/text.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DISTANCE_MAX_LEN 64
#define DISTANCE_FAR 1000u
#define DISTANCE_NEAR 3u

static const char hex_digits[] = "0123456789abcdef";

bool text_to_u64(const char *s, uint64_t min, uint64_t max, uint64_t *ret) {
    uint64_t n = 0;
    if (!*s)
        return false;
    for (; *s; s++) {
        uint64_t next;
        if (*s < '0' || *s > '9')
            return false;
        if (__builtin_mul_overflow(n, 10u, &next) || __builtin_add_overflow(next, (uint64_t)(*s - '0'), &n))
            return false;
    }
    if (n < min || n > max)
        return false;
    *ret = n;
    return true;
}

bool text_copy(char *dst, size_t size, const char *src) {
    size_t len = strlen(src);
    if (len >= size) {
        if (size)
            dst[0] = '\0';
        return false;
    }
    memcpy(dst, src, len + 1);
    return true;
}

bool text_printf(char *dst, size_t size, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(dst, size, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < size)
        return true;
    if (size)
        dst[0] = '\0';
    return false;
}

bool text_starts_with(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Length of the well-formed sequence at s (no overlong form, surrogate or value above U+10FFFF), 0 when there is none. */
static size_t utf8_sequence(const unsigned char *s, size_t len) {
    size_t n;
    unsigned char low = 0x80, high = 0xbf;

    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf)
        n = 2;
    else if ((s[0] & 0xf0) == 0xe0)
        n = 3;
    else if (s[0] >= 0xf0 && s[0] <= 0xf4)
        n = 4;
    else
        return 0;
    if (s[0] == 0xe0)
        low = 0xa0;
    else if (s[0] == 0xed)
        high = 0x9f;
    else if (s[0] == 0xf0)
        low = 0x90;
    else if (s[0] == 0xf4)
        high = 0x8f;
    if (len < n || s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

bool text_is_utf8(const char *s, size_t len) {
    const unsigned char *p = (const unsigned char *)s;
    while (len) {
        size_t n = utf8_sequence(p, len);
        if (n == 0)
            return false;
        p += n;
        len -= n;
    }
    return true;
}

/* Escape of one byte into e (at most 4 characters); returns its length. */
static size_t escape_byte(char e[4], unsigned char c) {
    if (c == '\\') {
        memcpy(e, "\\\\", 2);
        return 2;
    }
    if (c >= 0x20 && c < 0x7f) {
        e[0] = (char)c;
        return 1;
    }
    e[0] = '\\';
    e[1] = 'x';
    e[2] = hex_digits[c >> 4];
    e[3] = hex_digits[c & 15];
    return 4;
}

const char *text_escape(char *dst, size_t size, const void *data, size_t len) {
    static const char ellipsis[] = "…";
    const size_t tail = sizeof(ellipsis) - 1;
    const unsigned char *p = data;
    size_t used = 0, cut = 0; /* cut: where the ellipsis goes if the rest does not fit */

    if (size == 0)
        return dst;
    for (size_t i = 0; i < len; i++) {
        char e[4];
        size_t n = escape_byte(e, p[i]);
        if (used + n >= size) {
            used = cut;
            if (used + tail < size) {
                memcpy(dst + used, ellipsis, tail);
                used += tail;
            }
            break;
        }
        memcpy(dst + used, e, n);
        used += n;
        if (used + tail < size)
            cut = used;
    }
    dst[used] = '\0';
    return dst;
}

void text_hex(char *dst, const void *data, size_t len) {
    const unsigned char *p = data;
    for (size_t i = 0; i < len; i++) {
        *dst++ = hex_digits[p[i] >> 4];
        *dst++ = hex_digits[p[i] & 15];
    }
    *dst = '\0';
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool text_unhex(void *dst, size_t len, const char *hex) {
    unsigned char *out = dst;
    if (len > SIZE_MAX / 2 || strnlen(hex, 2 * len + 1) != 2 * len)
        return false;
    for (size_t i = 0; i < 2 * len; i++)
        if (hex_value(hex[i]) < 0)
            return false;
    for (size_t i = 0; i < len; i++)
        out[i] = (unsigned char)((unsigned)hex_value(hex[2 * i]) << 4 | (unsigned)hex_value(hex[2 * i + 1]));
    return true;
}

size_t text_base64_len(size_t len) {
    return (len / 3 + (len % 3 != 0)) * 4;
}

size_t text_base64(char *dst, const void *data, size_t len) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = data;
    char *out = dst;

    for (; len >= 3; len -= 3, p += 3) {
        *out++ = digits[p[0] >> 2];
        *out++ = digits[((p[0] & 3) << 4) | (p[1] >> 4)];
        *out++ = digits[((p[1] & 15) << 2) | (p[2] >> 6)];
        *out++ = digits[p[2] & 63];
    }
    if (len) {
        unsigned second = len == 2 ? p[1] : 0;
        *out++ = digits[p[0] >> 2];
        *out++ = digits[((p[0] & 3u) << 4) | (second >> 4)];
        *out++ = len == 2 ? digits[(second & 15) << 2] : '=';
        *out++ = '=';
    }
    *out = '\0';
    return (size_t)(out - dst);
}

static unsigned min3(unsigned a, unsigned b, unsigned c) {
    unsigned m = a < b ? a : b;
    return m < c ? m : c;
}

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool text_unbase64(void *dst, size_t size, const char *text, size_t len, size_t *ret_len) {
    size_t pad = len >= 1 && text[len - 1] == '=' ? (len >= 2 && text[len - 2] == '=' ? 2 : 1) : 0, out = 0;
    uint8_t *p = dst;
    if (len % 4 != 0 || len / 4 * 3 - pad > size)
        return false;
    for (size_t i = 0; i < len; i += 4) {
        uint32_t group = 0;
        for (size_t k = 0; k < 4; k++) {
            int v = i + k >= len - pad ? 0 : base64_value(text[i + k]);
            if (v < 0)
                return false;
            group = group << 6 | (uint32_t)v;
        }
        for (size_t k = 0; k < 3 && out < len / 4 * 3 - pad; k++)
            p[out++] = (uint8_t)(group >> (16 - 8 * k));
    }
    *ret_len = out;
    return true;
}

unsigned text_distance(const char *a, const char *b) {
    unsigned row[DISTANCE_MAX_LEN + 1];
    size_t la = strnlen(a, DISTANCE_MAX_LEN + 1), lb = strnlen(b, DISTANCE_MAX_LEN + 1);

    if (la > DISTANCE_MAX_LEN || lb > DISTANCE_MAX_LEN)
        return DISTANCE_FAR;
    for (unsigned j = 0; j <= lb; j++)
        row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= lb; j++) {
            unsigned above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[lb];
}

const char *text_nearest(const char *word, const char *const *names, size_t n) {
    const char *best = NULL;
    unsigned best_distance = DISTANCE_NEAR + 1;
    for (size_t i = 0; i < n; i++) {
        unsigned d = text_distance(word, names[i]);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}

void text_wipe(void *p, size_t len) {
    volatile unsigned char *v = p;
    while (len--)
        *v++ = 0;
}
