/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events: encoder for servers, bounded incremental decoder for clients. Sans-I/O; needs base/buf only.
 */
#pragma once
#include "base/buf.h"
#include <stdbool.h>
#include <stddef.h>

#define SSE_NAME_MAX 64 /* bytes of an event name */
#define SSE_ID_MAX 128  /* bytes of an id */

/* event and id may be NULL; neither may hold a line break or NUL (-EINVAL). data is split at LF, CRLF and CR into
 * data: lines. 0 or the buffer's error; on failure out is as it was, and out->failed is set. */
int sse_put_event(struct buf *out, const char *event, const char *id, const void *data, size_t len);
/* ":text\n\n"; heartbeat. text holds no line break. */
int sse_put_comment(struct buf *out, const char *text);

enum sse_result {
    SSE_MORE,    /* all input is used */
    SSE_EVENT,   /* fields of the decoder hold an event until the next feed; feed the rest again */
    SSE_COMMENT, /* a comment line went by (sign of life); feed the rest again */
    SSE_ERROR,   /* a line or an event over its bound, or NUL in a field; sticky */
};

struct sse_decoder {
    char event[SSE_NAME_MAX + 1]; /* "message" when the stream named none */
    char id[SSE_ID_MAX + 1];      /* last id seen, as the standard has it: it stays for events without one */
    struct buf data;              /* NUL-ended, lines joined by LF */
    /* private: */
    struct buf line;
    char next_event[SSE_NAME_MAX + 1];
    bool failed, skip_lf, had_data, clear, started;
};
/* max: bytes of one event's data, and of one line. */
void sse_decoder_init(struct sse_decoder *d, size_t max);
void sse_decoder_done(struct sse_decoder *d); /* safe on a zeroed struct */
enum sse_result sse_decoder_feed(struct sse_decoder *d, const char *data, size_t len, size_t *ret_used);
/* True when bytes of an unfinished event are held: a stream that ends now was cut. */
bool sse_decoder_is_partial(const struct sse_decoder *d);
