/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of the guest agent (spec/guest-protocol.md §2): typed, length-prefixed lists of tagged fields. A builder into
 * a struct buf, a bounded incremental reader, typed getters. Sans-I/O; knows nothing of streams or processes.
 *
 *     size_t at = record_begin(&b, REC_SIGNAL);
 *     record_put_string(&b, TAG_PROCESS_ID, id);  record_put_u64(&b, TAG_SIGNAL, SIGTERM);
 *     r = record_end(&b, at);                                  0, or the buffer is as it was before record_begin
 *
 *     while ((r = record_next(&reader, &in, &rec)) > 0) ...    rec is valid until the next call and while `in` lives
 */
#pragma once
#include "base/buf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_HEADER_SIZE 8u
#define RECORD_FIELD_SIZE 8u
#define RECORD_MAX_PAYLOAD 65536u
#define RECORD_MAX_OUTPUT 32768u /* data in one OUTPUT record */

enum record_type {
    REC_PING = 1,
    REC_PONG = 2,
    REC_QUIESCE = 3,
    REC_QUIESCED = 4,
    REC_IDENTITY = 5,
    REC_IDENTIFIED = 6,
    REC_SHUTDOWN = 7,
    REC_SHUTDOWN_OK = 8,
    REC_OK = 9,
    REC_ERROR = 10,
    REC_ATTACH = 20,
    REC_STARTED = 21,
    REC_OUTPUT = 22,
    REC_GAP = 23,
    REC_RESYNC = 24,
    REC_EXITED = 25,
    REC_STDIN = 30,
    REC_DATA = 31,
    REC_RESIZE = 32,
    REC_SIGNAL = 33,
    REC_PROBE = 34,
    REC_LIST = 35,
    REC_PROCESS = 36,
    REC_SYNC = 37,
};

enum record_tag {
    TAG_PROCESS_ID = 1,
    TAG_ARGV = 2,
    TAG_ENV = 3,
    TAG_CWD = 4,
    TAG_USER = 5,
    TAG_PTY_COLS = 6,
    TAG_PTY_ROWS = 7,
    TAG_STDIN = 8,
    TAG_TIMEOUT_MS = 9,
    TAG_ON_DISCONNECT = 10,
    TAG_STDOUT_FROM = 11,
    TAG_STDERR_FROM = 12,
    TAG_PTY_FROM = 13,
    TAG_MAY_START = 14,
    TAG_PID = 15,
    TAG_STARTED_REALTIME_NS = 16,
    TAG_RESUMED = 17,
    TAG_STREAM = 18,
    TAG_OFFSET = 19,
    TAG_DATA = 20,
    TAG_FROM = 21,
    TAG_TO = 22,
    TAG_REASON = 23,
    TAG_STDOUT_OFFSET = 24,
    TAG_STDERR_OFFSET = 25,
    TAG_PTY_OFFSET = 26,
    TAG_EXIT_CODE = 27,
    TAG_SIGNAL = 28,
    TAG_OOM_KILLED = 29,
    TAG_DURATION_MS = 30,
    TAG_OUTPUT_MAY_CONTINUE = 31,
    TAG_CODE = 32,
    TAG_MESSAGE = 33,
    TAG_GENERATION = 34,
    TAG_REALTIME_NS = 35,
    TAG_ENTROPY = 36,
    TAG_HOSTNAME = 37,
    TAG_MACHINE_ID = 38,
    TAG_SANDBOX_ID = 39,
    TAG_OUTPUT_WINDOW = 40,
    TAG_FLAGS = 41,
    TAG_CLOSE_AFTER = 42,
    TAG_ACCEPTED = 43,
    TAG_COLS = 44,
    TAG_ROWS = 45,
    TAG_SCOPE = 46,
    TAG_REMAINING = 47,
    TAG_STATE = 48,
    TAG_COMMAND = 49,
    TAG_AGENT_VERSION = 50,
    TAG_PROTOCOL = 51,
    TAG_UPTIME_NS = 52,
    TAG_BOOT_ID = 53,
    TAG_CLOCKSOURCE = 54,
    TAG_FDS = 55,
    TAG_RSS_KIB = 56,
    TAG_PROCESSES = 57,
    TAG_ZOMBIES = 58,
    TAG_STREAMS = 59,
    TAG_SESSION_RETENTION_MS = 60,
    TAG_HOOKS_RUN = 61,
    TAG_HOOKS_FAILED = 62,
    TAG_COUNT_
};

/* Values of TAG_STREAM, TAG_SCOPE, TAG_STATE, TAG_ON_DISCONNECT, TAG_FLAGS. */
enum record_stream { STREAM_STDOUT = 1, STREAM_STDERR = 2, STREAM_PTY = 3 };
enum record_scope { SCOPE_LEADER = 1, SCOPE_GROUP = 2, SCOPE_CGROUP = 3 };
enum record_state { PROCESS_RUNNING = 1, PROCESS_EXITED = 2 };
enum record_on_disconnect { DISCONNECT_KEEP = 0, DISCONNECT_KILL = 1 };
enum record_flags { QUIESCE_SYNC = 1, QUIESCE_KEEP = 2, PING_FULL = 1 };

struct record {
    uint16_t type;
    struct view payload; /* checked: a whole number of well-formed fields, known tags of the right kind */
};

struct record_field {
    uint16_t tag;
    struct view value;
};

/* --- building. Errors are sticky in buf->failed and said by record_end(). --- */
size_t record_begin(struct buf *b, enum record_type type); /* returns the mark for record_end */
int record_put_bytes(struct buf *b, enum record_tag tag, const void *data, size_t len);
int record_put_string(struct buf *b, enum record_tag tag, const char *s);
int record_put_u64(struct buf *b, enum record_tag tag, uint64_t v);
/* Fills in the length. 0; -E2BIG: over RECORD_MAX_PAYLOAD or the buffer's maximum, or out of memory: nothing was added. */
int record_end(struct buf *b, size_t mark);
/* Header and fixed fields of an OUTPUT record whose `len` data bytes follow from elsewhere (≤ RECORD_MAX_OUTPUT). */
#define RECORD_OUTPUT_OVERHEAD (RECORD_HEADER_SIZE + 3 * RECORD_FIELD_SIZE + 2 * 8)
void record_output_header(uint8_t dst[RECORD_OUTPUT_OVERHEAD], enum record_stream stream, uint64_t offset, size_t len);

/* --- reading --- */
struct record_reader { /* zeroed is ready to use */
    struct buf held;   /* of an incomplete record, ≤ header + RECORD_MAX_PAYLOAD; memory is freed between records */
    size_t taken;      /* private: of `held`, given out by the last record_next */
};
/* 1: *ret; 0: more bytes needed, `in` is empty; -EPROTO: over a limit, malformed or a field of the wrong kind;
 * -ENOMEM. A record that lies whole in `in` is not copied. */
int record_next(struct record_reader *r, struct view *in, struct record *ret);
void record_reader_done(struct record_reader *r);

/* The first field with the tag. False when missing. */
bool record_get_bytes(const struct record *rec, enum record_tag tag, struct view *ret);
bool record_get_u64(const struct record *rec, enum record_tag tag, uint64_t *ret);
uint64_t record_get_u64_or(const struct record *rec, enum record_tag tag, uint64_t fallback);
/* Copies with NUL into dst. 1 found, 0 missing (dst = ""), -E2BIG does not fit (dst = ""). */
int record_get_string(const struct record *rec, enum record_tag tag, char *dst, size_t size);
/* Walks all fields; start with a copy of rec->payload. */
bool record_field_next(struct view *cursor, struct record_field *ret);
/* Walks the fields of one tag (lists), likewise. */
bool record_list_next(struct view *cursor, enum record_tag tag, struct view *ret);
size_t record_count(const struct record *rec, enum record_tag tag);
/* NULL when every field this type needs is there, else the name of the first one missing. Unknown types need none. */
const char *record_missing(const struct record *rec);

const char *record_type_name(uint16_t type); /* "ATTACH", or "?" */
const char *record_tag_name(uint16_t tag);   /* "process_id", or "?" */
