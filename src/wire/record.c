/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agent records: two tables (what a tag holds, what a type needs), the builder, and a reader that checks a record as a
 * whole before anyone looks into it, so that the getters need no error path.
 */
#include "wire/record.h"
#include "base/text.h"
#include <endian.h>
#include <errno.h>
#include <string.h>

enum kind { KIND_U64 = 1, KIND_STRING, KIND_BYTES };

static const struct {
    const char *name;
    enum kind kind;
} tags[TAG_COUNT_] = {
    [TAG_PROCESS_ID] = {"process_id", KIND_STRING},
    [TAG_ARGV] = {"argv", KIND_STRING},
    [TAG_ENV] = {"env", KIND_STRING},
    [TAG_CWD] = {"cwd", KIND_STRING},
    [TAG_USER] = {"user", KIND_STRING},
    [TAG_PTY_COLS] = {"pty_cols", KIND_U64},
    [TAG_PTY_ROWS] = {"pty_rows", KIND_U64},
    [TAG_STDIN] = {"stdin", KIND_U64},
    [TAG_TIMEOUT_MS] = {"timeout_ms", KIND_U64},
    [TAG_ON_DISCONNECT] = {"on_disconnect", KIND_U64},
    [TAG_STDOUT_FROM] = {"stdout_from", KIND_U64},
    [TAG_STDERR_FROM] = {"stderr_from", KIND_U64},
    [TAG_PTY_FROM] = {"pty_from", KIND_U64},
    [TAG_MAY_START] = {"may_start", KIND_U64},
    [TAG_PID] = {"pid", KIND_U64},
    [TAG_STARTED_REALTIME_NS] = {"started_realtime_ns", KIND_U64},
    [TAG_RESUMED] = {"resumed", KIND_U64},
    [TAG_STREAM] = {"stream", KIND_U64},
    [TAG_OFFSET] = {"offset", KIND_U64},
    [TAG_DATA] = {"data", KIND_BYTES},
    [TAG_FROM] = {"from", KIND_U64},
    [TAG_TO] = {"to", KIND_U64},
    [TAG_REASON] = {"reason", KIND_STRING},
    [TAG_STDOUT_OFFSET] = {"stdout_offset", KIND_U64},
    [TAG_STDERR_OFFSET] = {"stderr_offset", KIND_U64},
    [TAG_PTY_OFFSET] = {"pty_offset", KIND_U64},
    [TAG_EXIT_CODE] = {"exit_code", KIND_U64},
    [TAG_SIGNAL] = {"signal", KIND_U64},
    [TAG_OOM_KILLED] = {"oom_killed", KIND_U64},
    [TAG_DURATION_MS] = {"duration_ms", KIND_U64},
    [TAG_OUTPUT_MAY_CONTINUE] = {"output_may_continue", KIND_U64},
    [TAG_CODE] = {"code", KIND_STRING},
    [TAG_MESSAGE] = {"message", KIND_STRING},
    [TAG_GENERATION] = {"generation", KIND_U64},
    [TAG_REALTIME_NS] = {"realtime_ns", KIND_U64},
    [TAG_ENTROPY] = {"entropy", KIND_BYTES},
    [TAG_HOSTNAME] = {"hostname", KIND_STRING},
    [TAG_MACHINE_ID] = {"machine_id", KIND_STRING},
    [TAG_SANDBOX_ID] = {"sandbox_id", KIND_STRING},
    [TAG_OUTPUT_WINDOW] = {"output_window", KIND_U64},
    [TAG_FLAGS] = {"flags", KIND_U64},
    [TAG_CLOSE_AFTER] = {"close_after", KIND_U64},
    [TAG_ACCEPTED] = {"accepted", KIND_U64},
    [TAG_COLS] = {"cols", KIND_U64},
    [TAG_ROWS] = {"rows", KIND_U64},
    [TAG_SCOPE] = {"scope", KIND_U64},
    [TAG_REMAINING] = {"remaining", KIND_U64},
    [TAG_STATE] = {"state", KIND_U64},
    [TAG_COMMAND] = {"command", KIND_STRING},
    [TAG_AGENT_VERSION] = {"agent_version", KIND_STRING},
    [TAG_PROTOCOL] = {"protocol", KIND_U64},
    [TAG_UPTIME_NS] = {"uptime_ns", KIND_U64},
    [TAG_BOOT_ID] = {"boot_id", KIND_STRING},
    [TAG_CLOCKSOURCE] = {"clocksource", KIND_STRING},
    [TAG_FDS] = {"fds", KIND_U64},
    [TAG_RSS_KIB] = {"rss_kib", KIND_U64},
    [TAG_PROCESSES] = {"processes", KIND_U64},
    [TAG_ZOMBIES] = {"zombies", KIND_U64},
    [TAG_STREAMS] = {"streams", KIND_U64},
    [TAG_SESSION_RETENTION_MS] = {"session_retention_ms", KIND_U64},
    [TAG_HOOKS_RUN] = {"hooks_run", KIND_U64},
    [TAG_HOOKS_FAILED] = {"hooks_failed", KIND_U64},
};

static const struct {
    uint16_t type;
    const char *name;
    uint16_t needs[4]; /* 0-ended */
} types[] = {
    {REC_PING, "PING", {0}},
    {REC_PONG, "PONG", {TAG_AGENT_VERSION, TAG_PROTOCOL, TAG_GENERATION, 0}},
    {REC_QUIESCE, "QUIESCE", {0}},
    {REC_QUIESCED, "QUIESCED", {0}},
    {REC_IDENTITY, "IDENTITY", {TAG_GENERATION, TAG_REALTIME_NS, TAG_ENTROPY, 0}},
    {REC_IDENTIFIED, "IDENTIFIED", {0}},
    {REC_SHUTDOWN, "SHUTDOWN", {0}},
    {REC_SHUTDOWN_OK, "SHUTDOWN_OK", {0}},
    {REC_OK, "OK", {0}},
    {REC_ERROR, "ERROR", {TAG_CODE, 0}},
    {REC_ATTACH, "ATTACH", {TAG_PROCESS_ID, 0}},
    {REC_STARTED, "STARTED", {TAG_PROCESS_ID, TAG_PID, 0}},
    {REC_OUTPUT, "OUTPUT", {TAG_STREAM, TAG_OFFSET, TAG_DATA, 0}},
    {REC_GAP, "GAP", {TAG_STREAM, TAG_FROM, TAG_TO, 0}},
    {REC_RESYNC, "RESYNC", {0}},
    {REC_EXITED, "EXITED", {TAG_EXIT_CODE, TAG_SIGNAL, TAG_REASON, 0}},
    {REC_STDIN, "STDIN", {TAG_PROCESS_ID, 0}},
    {REC_DATA, "DATA", {TAG_DATA, 0}},
    {REC_RESIZE, "RESIZE", {TAG_PROCESS_ID, TAG_COLS, TAG_ROWS, 0}},
    {REC_SIGNAL, "SIGNAL", {TAG_PROCESS_ID, TAG_SIGNAL, 0}},
    {REC_PROBE, "PROBE", {TAG_ARGV, 0}},
    {REC_LIST, "LIST", {0}},
    {REC_PROCESS, "PROCESS", {TAG_PROCESS_ID, TAG_STATE, 0}},
    {REC_SYNC, "SYNC", {0}},
};

const char *record_tag_name(uint16_t tag) {
    return tag < TAG_COUNT_ && tags[tag].name ? tags[tag].name : "?";
}

const char *record_type_name(uint16_t type) {
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (types[i].type == type)
            return types[i].name;
    return "?";
}

/* --- building --- */

size_t record_begin(struct buf *b, enum record_type type) {
    size_t mark = b->len;
    b->failed = false;
    (void)buf_put_u32(b, 0);
    (void)buf_put_u16(b, (uint16_t)type);
    (void)buf_put_u16(b, 0);
    return mark;
}

int record_put_bytes(struct buf *b, enum record_tag tag, const void *data, size_t len) {
    if (len > RECORD_MAX_PAYLOAD) {
        b->failed = true;
        return -E2BIG;
    }
    (void)buf_put_u16(b, (uint16_t)tag);
    (void)buf_put_u16(b, 0);
    (void)buf_put_u32(b, (uint32_t)len);
    return buf_append(b, data, len);
}

int record_put_string(struct buf *b, enum record_tag tag, const char *s) {
    return record_put_bytes(b, tag, s, strlen(s));
}

int record_put_u64(struct buf *b, enum record_tag tag, uint64_t v) {
    v = htole64(v);
    return record_put_bytes(b, tag, &v, sizeof(v));
}

int record_end(struct buf *b, size_t mark) {
    size_t payload = b->len - mark >= RECORD_HEADER_SIZE ? b->len - mark - RECORD_HEADER_SIZE : 0;
    uint32_t length = htole32((uint32_t)payload);

    if (b->failed || payload > RECORD_MAX_PAYLOAD) {
        b->failed = false;
        if (b->len > mark) {
            b->len = mark;
            b->data[mark] = '\0';
        }
        return -E2BIG;
    }
    memcpy(b->data + mark, &length, sizeof(length));
    return 0;
}

static uint8_t *put_le(uint8_t *p, uint64_t v, size_t size) {
    v = htole64(v);
    memcpy(p, &v, size);
    return p + size;
}

static uint8_t *put_field(uint8_t *p, enum record_tag tag, size_t len) {
    p = put_le(p, (uint64_t)tag, 4);
    return put_le(p, len, 4);
}

void record_output_header(uint8_t dst[RECORD_OUTPUT_OVERHEAD], enum record_stream stream, uint64_t offset, size_t len) {
    uint8_t *p = put_le(dst, RECORD_OUTPUT_OVERHEAD - RECORD_HEADER_SIZE + len, 4);
    p = put_le(p, REC_OUTPUT, 4);
    p = put_le(put_field(p, TAG_STREAM, 8), (uint64_t)stream, 8);
    p = put_le(put_field(p, TAG_OFFSET, 8), offset, 8);
    (void)put_field(p, TAG_DATA, len);
}

/* --- reading --- */

bool record_field_next(struct view *cursor, struct record_field *ret) {
    struct view v = *cursor;
    uint16_t tag, zero;
    uint32_t len;

    if (!view_u16(&v, &tag) || !view_u16(&v, &zero) || zero != 0 || !view_u32(&v, &len) ||
        !view_take(&v, len, &ret->value))
        return false;
    ret->tag = tag;
    *cursor = v;
    return true;
}

static bool fields_are_good(struct view payload) {
    struct record_field f;

    while (payload.len > 0) {
        if (!record_field_next(&payload, &f))
            return false;
        enum kind kind = f.tag < TAG_COUNT_ ? tags[f.tag].kind : 0;
        if (kind == KIND_U64 && f.value.len != 8)
            return false;
        if (kind == KIND_STRING && f.value.len > 0 && memchr(f.value.p, '\0', f.value.len))
            return false;
    }
    return true;
}

/* Checks the header at p: the payload's length, or -EPROTO. */
static int64_t payload_length(const uint8_t *p) {
    struct view v = {p, RECORD_HEADER_SIZE};
    uint32_t len;
    uint16_t type, zero;

    if (!view_u32(&v, &len) || !view_u16(&v, &type) || !view_u16(&v, &zero))
        return -EPROTO;
    return len > RECORD_MAX_PAYLOAD || zero != 0 ? -EPROTO : (int64_t)len;
}

static int finish(const uint8_t *p, size_t len, struct record *ret) {
    struct record rec = {.payload = {p + RECORD_HEADER_SIZE, len}};
    struct view v = {p + 4, 2};

    if (!view_u16(&v, &rec.type) || !fields_are_good(rec.payload))
        return -EPROTO;
    *ret = rec;
    return 1;
}

void record_reader_done(struct record_reader *r) {
    buf_done(&r->held);
    r->taken = 0;
}

/* Moves bytes from in to held until it holds `want`. 1 when it does, 0 when in is empty, -ENOMEM. */
static int hold(struct record_reader *r, struct view *in, size_t want) {
    size_t n = want - r->held.len < in->len ? want - r->held.len : in->len;

    if (buf_append(&r->held, in->p, n) < 0)
        return -ENOMEM;
    in->p += n;
    in->len -= n;
    return r->held.len == want ? 1 : 0;
}

/* A record whose first bytes are held, or that is not whole in `in`. */
static int next_held(struct record_reader *r, struct view *in, struct record *ret) {
    int64_t len;
    int k;

    if (r->held.len < RECORD_HEADER_SIZE) {
        k = hold(r, in, RECORD_HEADER_SIZE);
        if (k <= 0)
            return k;
    }
    len = payload_length((const uint8_t *)r->held.data);
    if (len < 0)
        return -EPROTO;
    k = hold(r, in, RECORD_HEADER_SIZE + (size_t)len);
    if (k <= 0)
        return k;
    r->taken = r->held.len;
    return finish((const uint8_t *)r->held.data, (size_t)len, ret);
}

int record_next(struct record_reader *r, struct view *in, struct record *ret) {
    if (r->taken > 0)
        record_reader_done(r);
    if (r->held.max == 0)
        buf_init(&r->held, RECORD_HEADER_SIZE + RECORD_MAX_PAYLOAD);
    if (in->len == 0)
        return 0;
    if (r->held.len == 0 && in->len >= RECORD_HEADER_SIZE) {
        const uint8_t *p = in->p;
        int64_t len = payload_length(p);
        if (len < 0)
            return -EPROTO;
        if (in->len - RECORD_HEADER_SIZE >= (size_t)len) {
            in->p += RECORD_HEADER_SIZE + (size_t)len;
            in->len -= RECORD_HEADER_SIZE + (size_t)len;
            return finish(p, (size_t)len, ret);
        }
    }
    return next_held(r, in, ret);
}

bool record_list_next(struct view *cursor, enum record_tag tag, struct view *ret) {
    struct record_field f;
    while (record_field_next(cursor, &f)) {
        if (f.tag == tag) {
            *ret = f.value;
            return true;
        }
    }
    return false;
}

bool record_get_bytes(const struct record *rec, enum record_tag tag, struct view *ret) {
    struct view cursor = rec->payload;
    return record_list_next(&cursor, tag, ret);
}

bool record_get_u64(const struct record *rec, enum record_tag tag, uint64_t *ret) {
    struct view v;
    return record_get_bytes(rec, tag, &v) && view_u64(&v, ret);
}

uint64_t record_get_u64_or(const struct record *rec, enum record_tag tag, uint64_t fallback) {
    uint64_t v;
    return record_get_u64(rec, tag, &v) ? v : fallback;
}

int record_get_string(const struct record *rec, enum record_tag tag, char *dst, size_t size) {
    struct view v;

    dst[0] = '\0';
    if (!record_get_bytes(rec, tag, &v))
        return 0;
    if (v.len >= size)
        return -E2BIG;
    if (v.len > 0)
        memcpy(dst, v.p, v.len);
    dst[v.len] = '\0';
    return 1;
}

size_t record_count(const struct record *rec, enum record_tag tag) {
    struct view cursor = rec->payload, v;
    size_t n = 0;
    while (record_list_next(&cursor, tag, &v))
        n++;
    return n;
}

const char *record_missing(const struct record *rec) {
    struct view v;

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        if (types[i].type != rec->type)
            continue;
        for (size_t k = 0; k < ARRAY_SIZE(types[i].needs) && types[i].needs[k] != 0; k++)
            if (!record_get_bytes(rec, types[i].needs[k], &v))
                return record_tag_name(types[i].needs[k]);
    }
    return NULL;
}
