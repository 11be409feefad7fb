/* SPDX-License-Identifier: Apache-2.0 */
/* Strict text helpers: whole-string number parsing, bounded copies, escaping, hex and base64. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Decimal digits only, the whole string, no sign or space; false on overflow or out of [min, max]. */
bool text_to_u64(const char *s, uint64_t min, uint64_t max, uint64_t *ret);
/* Copies with NUL; false (and dst = "") when it does not fit. */
bool text_copy(char *dst, size_t size, const char *src);
/* snprintf that fails instead of truncating: false when it does not fit. */
bool text_printf(char *dst, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool text_starts_with(const char *s, const char *prefix);
bool text_is_utf8(const char *s, size_t len);
/* Bytes as printable ASCII with \xNN escapes, cut with "…" when too long; for logs. Returns dst. */
const char *text_escape(char *dst, size_t size, const void *data, size_t len);
void text_hex(char *dst /* 2*len+1 */, const void *data, size_t len);
bool text_unhex(void *dst, size_t len, const char *hex /* exactly 2*len digits */);
size_t text_base64_len(size_t len);                          /* without NUL */
size_t text_base64(char *dst, const void *data, size_t len); /* writes text_base64_len(len)+1 bytes; returns length */
/* Strict (padding needed, no spaces); false on bad input or when more than size bytes would come out. */
bool text_unbase64(void *dst, size_t size, const char *text, size_t len, size_t *ret_len);
/* Edit distance for "did you mean"; strings over 64 bytes count as far. */
unsigned text_distance(const char *a, const char *b);
/* Nearest of n names within distance 3, or NULL. */
const char *text_nearest(const char *word, const char *const *names, size_t n);
/* Overwrites secrets; not optimised away. */
void text_wipe(void *p, size_t len);
