/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by channel.c (streams, output) and channel_input.c (frames coming in) only. */
#pragma once
#include "wire/channel.h"
#include <endian.h>
#include <string.h>

#define CHANNEL_CONTROL_RESERVE (64u * 1024u)

static inline void store_u32(void *dst, uint32_t v) {
    v = htole32(v);
    memcpy(dst, &v, sizeof(v));
}
static inline void store_u64(void *dst, uint64_t v) {
    v = htole64(v);
    memcpy(dst, &v, sizeof(v));
}
static inline uint32_t load_u32(const void *src) {
    uint32_t v;
    memcpy(&v, src, sizeof(v));
    return le32toh(v);
}
static inline uint64_t load_u64(const void *src) {
    uint64_t v;
    memcpy(&v, src, sizeof(v));
    return le64toh(v);
}

void channel_forget(struct channel *c, enum channel_state next);
void channel_put(struct channel *c, enum channel_op op, uint32_t id, uint32_t arg);
void channel_put_hello(struct channel *c, enum channel_op op);
struct channel_stream *channel_find(struct channel *c, uint32_t id);
struct channel_stream *channel_add(struct channel *c, uint32_t id, void *user);
void channel_remove(struct channel *c, struct channel_stream *s);
