/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a reader of a session's output stands: bytes seen of each stream. Its text form "o=<stdout>,e=<stderr>,p=<pty>"
 * is the `id:` of every event and comes back as Last-Event-ID. Pure.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CURSOR_STREAMS 3
#define CURSOR_TEXT_SIZE 80
#define CURSOR_OFFSET_MAX ((uint64_t)INT64_MAX)

struct cursor {
    uint64_t next[CURSOR_STREAMS]; /* of stdout, stderr, pty: the offset of the first byte not seen */
};

/* Returns dst. */
const char *cursor_format(char dst[CURSOR_TEXT_SIZE], const struct cursor *c);
/* Only what cursor_format makes: no space, sign, leading zero, other order or number above CURSOR_OFFSET_MAX. */
bool cursor_parse(const char *text, struct cursor *ret);
