/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connected stream socket (TCP or unix) on a loop, with bounds both ways: reads are handed out and what is not taken
 * waits in a bounded buffer (then the socket is not read), writes go out at once or wait in a bounded queue. HTTP
 * server and client stand on it; the gateway uses it for guest channels and tunnels.
 *
 * Callbacks run from the loop only, never from inside a call on the stream. After stream_free() none runs.
 */
#pragma once
#include "base/error.h"
#include "io/loop.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stream;

enum stream_end {
    STREAM_EOF,    /* the peer ended its sending side cleanly; writing may still work */
    STREAM_ERROR,  /* reset or another error: stream_error(). Comes also after STREAM_EOF, when a write fails */
    STREAM_HANGUP, /* the peer ended its sending side while in_max bytes were held that nobody took */
};

struct stream_events {
    /* Bytes arrived (with those held from before in front). Returns how many were taken; the rest is held and shown
     * again with the next bytes, or at stream_kick(). May free the stream (the return value is ignored then). */
    size_t (*on_read)(void *ctx, const char *data, size_t len);
    /* No on_read after it. STREAM_EOF comes after all bytes were shown, taken or not. While paused the peer's FIN goes
     * unnoticed, an error does not. May free the stream. */
    void (*on_end)(void *ctx, enum stream_end end);
    /* The queue fell from above low_water to it or below, or became empty. Comes after every refused write. May free
     * the stream. May be NULL. */
    void (*on_drain)(void *ctx);
};

struct stream_options {
    size_t in_max;    /* bytes not taken that are held; default 128 KiB, at least 1 */
    size_t out_max;   /* bound on queued bytes; default 1 MiB */
    size_t low_water; /* default out_max / 4 */
};

/* Takes fd on success (it is made non-blocking; TCP_NODELAY on TCP). opt NULL: defaults. Starts paused. */
int stream_new(struct loop *l, int fd, const struct stream_options *opt, const struct stream_events *events, void *ctx,
               struct stream **ret, struct sp_error *err);
/* Closes without waiting for queued bytes. NULL is fine; returns NULL. */
struct stream *stream_free(struct stream *s);
void stream_set_events(struct stream *s, const struct stream_events *events, void *ctx); /* hands it to another owner */

void stream_resume(struct stream *s); /* read; shows held bytes in the next round */
void stream_pause(struct stream *s);  /* no more on_read until resume */
void stream_kick(struct stream *s);   /* shows held bytes again in the next round, unless paused */
size_t stream_held(const struct stream *s);

void stream_set_bounds(struct stream *s, size_t out_max, size_t low_water); /* of the queue, from now on */
/* All or nothing: 0, -SP_E_TOO_LARGE when the queue would pass out_max (nothing taken), -SP_E_GONE when the stream
 * failed or was shut down. A failure of the socket itself shows later as on_end(STREAM_ERROR). */
int stream_write(struct stream *s, const void *data, size_t len);
/* The same for several pieces, written as one. n ≤ 8. */
struct stream_piece {
    const void *data;
    size_t len;
};
int stream_write_pieces(struct stream *s, const struct stream_piece *pieces, size_t n);
size_t stream_queued(const struct stream *s);
/* loop_now_ms() when the kernel last took a byte, or the queue began to fill. */
uint64_t stream_last_progress_ms(const struct stream *s);
/* Sends FIN after what is queued. No write after it. */
void stream_shutdown(struct stream *s);
/* Makes close reset the connection instead of ending it cleanly: a cut must not look like an end. */
void stream_set_abort(struct stream *s);
const struct sp_error *stream_error(const struct stream *s); /* after STREAM_ERROR */
int stream_fd(const struct stream *s);                       /* stays the stream's */
struct loop *stream_loop(const struct stream *s);

/* Asynchronous connect. done(ctx, fd, err): fd ≥ 0 is the receiver's, else err says why; exactly once, from the loop,
 * unless cancelled; the object is gone by then. Names are resolved off the loop. timeout_ms 0: 10 s. */
struct stream_connect;
int stream_connect_unix(struct loop *l, const char *path, uint64_t timeout_ms,
                        void (*done)(void *ctx, int fd, const struct sp_error *err), void *ctx,
                        struct stream_connect **ret, struct sp_error *err);
int stream_connect_tcp(struct loop *l, const char *host, uint16_t port, uint64_t timeout_ms,
                       void (*done)(void *ctx, int fd, const struct sp_error *err), void *ctx,
                       struct stream_connect **ret, struct sp_error *err);
/* Only before done was called. NULL is fine; returns NULL. */
struct stream_connect *stream_connect_cancel(struct stream_connect *c);
