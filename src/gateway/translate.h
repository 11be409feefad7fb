/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of the guest agent on an ATTACH stream → server-sent events of the data plane. Sans-I/O: one record in, the
 * text of one event out. The guest is hostile: order, offsets, sizes and words are checked, so that a client never sees
 * an exit before a start, output with a hole nobody mentioned, or anything after the end.
 */
#pragma once
#include "base/buf.h"
#include "gateway/cursor.h"
#include "wire/record.h"

#define TRANSLATE_WORD_MAX 64
#define TRANSLATE_EVENT_MAX (48u * 1024) /* bytes of one event at most */

enum translate_result {
    TRANSLATE_NOTHING,   /* a record of a later protocol: skipped */
    TRANSLATE_OUTPUT,    /* output, gap, resync */
    TRANSLATE_STARTED,   /* t->pid, t->resumed */
    TRANSLATE_EXITED,    /* t->exit_code or t->signal, t->reason; the stream is over */
    TRANSLATE_FAILED,    /* the agent ended the stream with an error, an `error` event was made; the stream is over */
    TRANSLATE_VIOLATION, /* the guest broke the protocol: t->violation says how, an `error` event was made; over */
};

struct translator {
    struct cursor cursor;   /* what the reader has seen after the events made so far */
    const char *process_id; /* borrowed: what STARTED must name */
    bool started, ended, resumed;
    uint64_t pid, exit_code, signal;
    char reason[TRANSLATE_WORD_MAX + 1];
    char code[TRANSLATE_WORD_MAX + 1]; /* FAILED: the agent's word */
    const char *violation;
    struct buf json; /* private: data of the event being made */
};

/* from: the position asked for (zeroes for all). */
void translator_init(struct translator *t, const char *process_id, const struct cursor *from);
void translator_done(struct translator *t); /* safe on a zeroed struct */
/* Appends at most one event (≤ TRANSLATE_EVENT_MAX) to out; out->failed when it did not fit. Not after the end. */
enum translate_result translate_record(struct translator *t, const struct record *rec, struct buf *out);
/* An `error` event of our own making, the last of a stream. message is escaped. */
void translate_error(struct translator *t, const char *code, const char *message, struct buf *out);
