/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A SOCK_SEQPACKET connection on a loop: messages in, messages out through a bounded queue. For the node's talks with
 * the broker and with every space-vm. Callbacks run from the loop only; none after packet_free().
 */
#pragma once
#include "base/error.h"
#include "io/loop.h"
#include <stddef.h>

struct packet;
struct packet_events {
    void (*on_message)(void *ctx, const char *data, size_t len); /* NUL follows data; may free the packet */
    /* Once: err NULL when the peer closed cleanly, else what went wrong (a message over the bound: SP_E_TOO_LARGE). */
    void (*on_end)(void *ctx, const struct sp_error *err);
};
/* Takes fd on success. message_max: bytes of one message, either way. queue_max: messages waiting to be sent. */
int packet_new(struct loop *l, int fd, size_t message_max, size_t queue_max, const struct packet_events *events,
               void *ctx, struct packet **ret, struct sp_error *err);
/* 0, -SP_E_TOO_LARGE, -SP_E_UNAVAILABLE when the queue is full, -SP_E_GONE after the end. */
int packet_write(struct packet *p, const void *data, size_t len);
struct packet *packet_free(struct packet *p); /* NULL is fine; returns NULL */
