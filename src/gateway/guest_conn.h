/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One stream to a sandbox's agent: connects to run/vm/<id>/guest.sock, says CONNECT 1, then carries records both ways
 * with back-pressure. What the records mean is the owner's business. Callbacks run from the loop only; any of them may
 * free the connection.
 */
#pragma once
#include "base/error.h"
#include "io/loop.h"
#include "wire/record.h"
#include <stdbool.h>

struct guest_conn;

enum guest_end {
    GUEST_UNREACHABLE, /* no socket, nobody listening, no answer in time */
    GUEST_REFUSED,     /* space-vm said ERR; the text is its words, escaped */
    GUEST_CLOSED,      /* the stream was open and ended: the VM died, or the stream was reset */
    GUEST_VIOLATION,   /* not a well-formed record */
};

struct guest_conn_events {
    void (*on_open)(void *ctx); /* the stream stands; writes from here on */
    /* A record; true: give me more, false: stop until guest_conn_resume(). */
    bool (*on_record)(void *ctx, const struct record *rec);
    void (*on_batch_end)(void *ctx); /* after the records that came together; may be NULL */
    void (*on_end)(void *ctx, enum guest_end end, const char *text); /* once; nothing comes after it */
    void (*on_drain)(void *ctx);                                     /* what was written is gone; may be NULL */
};

/* Waits open_ms for the stream to stand. */
int guest_conn_new(struct loop *l, const char *state_dir, const char *sandbox_id, uint64_t open_ms,
                   const struct guest_conn_events *events, void *ctx, struct guest_conn **ret, struct sp_error *err);
/* Resets the stream. NULL is fine; returns NULL. */
struct guest_conn *guest_conn_free(struct guest_conn *c);
void guest_conn_resume(struct guest_conn *c);
/* All or nothing; -SP_E_TOO_LARGE over GUEST_CONN_QUEUE_MAX (on_drain will come), -SP_E_GONE before on_open or after the end. */
#define GUEST_CONN_QUEUE_MAX (160u * 1024)
int guest_conn_write(struct guest_conn *c, const void *data, size_t len);
size_t guest_conn_queued(const struct guest_conn *c);
void guest_conn_shutdown(struct guest_conn *c); /* no more from us; answers still come */
