/* SPDX-License-Identifier: Apache-2.0 */
/* The table of records that may come on an ATTACH stream, and the event each becomes. */
#include "gateway/translate.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "wire/sse.h"
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define MESSAGE_MAX 512

static const char *const stream_names[CURSOR_STREAMS] = {"stdout", "stderr", "pty"};

void translator_init(struct translator *t, const char *process_id, const struct cursor *from) {
    *t = (struct translator){.process_id = process_id, .cursor = *from};
    buf_init(&t->json, TRANSLATE_EVENT_MAX);
}

void translator_done(struct translator *t) {
    buf_done(&t->json);
}

static void put_event(struct translator *t, const char *name, struct buf *out) {
    char id[CURSOR_TEXT_SIZE];
    if (t->json.failed)
        out->failed = true;
    else
        (void)sse_put_event(out, name, cursor_format(id, &t->cursor), t->json.data, t->json.len);
    buf_reset(&t->json);
}

void translate_error(struct translator *t, const char *code, const char *message, struct buf *out) {
    char text[MESSAGE_MAX];
    _cleanup_json_ json_t *data =
        json_pack("{s:s, s:s}", "code", code, "message", text_escape(text, sizeof(text), message, strlen(message)));
    _cleanup_free_ char *printed = data ? json_print(data) : NULL;
    t->ended = true;
    (void)buf_append_str(&t->json, printed ? printed : "{}");
    put_event(t, "error", out);
}

static enum translate_result violation(struct translator *t, const char *how, struct buf *out) {
    t->violation = how;
    translate_error(t, "guest_protocol", how, out);
    return TRANSLATE_VIOLATION;
}

/* A lower-case word of the agent; false when it is none. */
static bool get_word(const struct record *rec, enum record_tag tag, char dst[TRANSLATE_WORD_MAX + 1]) {
    return record_get_string(rec, tag, dst, TRANSLATE_WORD_MAX + 1) == 1 && dst[0] &&
           !dst[strspn(dst, "abcdefghijklmnopqrstuvwxyz0123456789_")];
}

/* The stream a record speaks of, as an index; false when there is no such stream. */
static bool get_stream(const struct record *rec, unsigned *ret) {
    uint64_t stream = record_get_u64_or(rec, TAG_STREAM, 0);
    *ret = (unsigned)stream - STREAM_STDOUT;
    return stream >= STREAM_STDOUT && stream <= STREAM_PTY;
}

static enum translate_result on_started(struct translator *t, const struct record *rec, struct buf *out) {
    char process_id[ID_SIZE], at[CLOCK_RFC3339_SIZE];
    uint64_t started_ns = record_get_u64_or(rec, TAG_STARTED_REALTIME_NS, 0);
    if (t->started)
        return violation(t, "STARTED came twice", out);
    if (record_get_string(rec, TAG_PROCESS_ID, process_id, sizeof(process_id)) != 1 ||
        strcmp(process_id, t->process_id) != 0)
        return violation(t, "STARTED names another process", out);
    t->started = true;
    t->pid = record_get_u64_or(rec, TAG_PID, 0);
    t->resumed = record_get_u64_or(rec, TAG_RESUMED, 0) != 0;
    if (t->pid == 0 || t->pid > INT32_MAX || started_ns > CURSOR_OFFSET_MAX)
        return violation(t, "STARTED has a pid or a time that cannot be", out);
    (void)buf_printf(&t->json, "{\"process_id\":\"%s\",\"started_at\":\"%s\"}", process_id,
                     clock_rfc3339(at, started_ns));
    put_event(t, "process_started", out);
    return TRANSLATE_STARTED;
}

static enum translate_result on_output(struct translator *t, const struct record *rec, struct buf *out) {
    struct view data = {0};
    uint64_t offset = record_get_u64_or(rec, TAG_OFFSET, UINT64_MAX);
    unsigned stream;
    size_t encoded;
    char *dst;
    if (!get_stream(rec, &stream) || !record_get_bytes(rec, TAG_DATA, &data))
        return violation(t, "OUTPUT of an unknown stream", out);
    if (data.len == 0 || data.len > RECORD_MAX_OUTPUT)
        return violation(t, "OUTPUT has no data or too much", out);
    if (offset != t->cursor.next[stream] || offset > CURSOR_OFFSET_MAX - data.len)
        return violation(t, "OUTPUT does not follow the output before it", out);
    t->cursor.next[stream] = offset + data.len;
    encoded = text_base64_len(data.len);
    (void)buf_printf(&t->json, "{\"offset\":%" PRIu64 ",\"data\":\"", offset);
    dst = buf_reserve(&t->json, encoded + 1);
    if (dst)
        buf_commit(&t->json, text_base64(dst, data.p, data.len));
    (void)buf_append_str(&t->json, "\"}");
    put_event(t, stream_names[stream], out);
    return TRANSLATE_OUTPUT;
}

static enum translate_result on_gap(struct translator *t, const struct record *rec, struct buf *out) {
    uint64_t from = record_get_u64_or(rec, TAG_FROM, UINT64_MAX), to = record_get_u64_or(rec, TAG_TO, 0);
    unsigned stream;
    if (!get_stream(rec, &stream))
        return violation(t, "GAP of an unknown stream", out);
    if (from != t->cursor.next[stream] || to <= from || to > CURSOR_OFFSET_MAX)
        return violation(t, "GAP does not follow the output before it", out);
    t->cursor.next[stream] = to;
    (void)buf_printf(&t->json, "{\"stream\":\"%s\",\"from\":%" PRIu64 ",\"to\":%" PRIu64 "}", stream_names[stream],
                     from, to);
    put_event(t, "gap", out);
    return TRANSLATE_OUTPUT;
}

static enum translate_result on_resync(struct translator *t, const struct record *rec, struct buf *out) {
    static const enum record_tag tags[CURSOR_STREAMS] = {TAG_STDOUT_OFFSET, TAG_STDERR_OFFSET, TAG_PTY_OFFSET};
    char reason[TRANSLATE_WORD_MAX + 1];
    struct cursor to;
    if (!get_word(rec, TAG_REASON, reason))
        return violation(t, "RESYNC has a malformed reason", out);
    for (unsigned i = 0; i < CURSOR_STREAMS; i++) {
        to.next[i] = record_get_u64_or(rec, tags[i], 0);
        if (to.next[i] > CURSOR_OFFSET_MAX)
            return violation(t, "RESYNC has an offset that cannot be", out);
    }
    t->cursor = to;
    (void)buf_printf(&t->json,
                     "{\"reason\":\"%s\",\"stdout_offset\":%" PRIu64 ",\"stderr_offset\":%" PRIu64
                     ",\"pty_offset\":%" PRIu64 "}",
                     reason, to.next[0], to.next[1], to.next[2]);
    put_event(t, "resync_required", out);
    return TRANSLATE_OUTPUT;
}

static enum translate_result on_exited(struct translator *t, const struct record *rec, struct buf *out) {
    uint64_t duration = record_get_u64_or(rec, TAG_DURATION_MS, 0);
    bool oom = record_get_u64_or(rec, TAG_OOM_KILLED, 0) != 0;
    bool continues = record_get_u64_or(rec, TAG_OUTPUT_MAY_CONTINUE, 0) != 0;
    char code[8] = "null", signal[8] = "null";
    t->exit_code = record_get_u64_or(rec, TAG_EXIT_CODE, 0);
    t->signal = record_get_u64_or(rec, TAG_SIGNAL, 0);
    if (t->exit_code > 255 || t->signal > 64 || duration > CURSOR_OFFSET_MAX || !get_word(rec, TAG_REASON, t->reason))
        return violation(t, "EXITED has a status that cannot be", out);
    if (t->signal)
        (void)text_printf(signal, sizeof(signal), "%" PRIu64, t->signal);
    else
        (void)text_printf(code, sizeof(code), "%" PRIu64, t->exit_code);
    t->ended = true;
    (void)buf_printf(&t->json,
                     "{\"exit_code\":%s,\"signal\":%s,\"oom_killed\":%s,\"reason\":\"%s\",\"duration_ms\":%" PRIu64
                     ",\"output_may_continue\":%s}",
                     code, signal, oom ? "true" : "false", t->reason, duration, continues ? "true" : "false");
    put_event(t, "process_exited", out);
    return TRANSLATE_EXITED;
}

/* What the client is told for a code of the agent; before the start everything else means that it did not start. */
static const char *event_code(const struct translator *t) {
    if (strcmp(t->code, "not_found") == 0)
        return "not_found";
    if (t->started || strcmp(t->code, "frozen") == 0 || strcmp(t->code, "busy") == 0)
        return "upstream_unavailable";
    return "start_failed";
}

static enum translate_result on_error(struct translator *t, const struct record *rec, struct buf *out) {
    char message[256], text[MESSAGE_MAX];
    if (!get_word(rec, TAG_CODE, t->code))
        return violation(t, "ERROR has a malformed code", out);
    (void)record_get_string(rec, TAG_MESSAGE, message, sizeof(message));
    (void)text_printf(text, sizeof(text), "%s%s%s", t->code, message[0] ? ": " : "", message);
    translate_error(t, event_code(t), text, out);
    return TRANSLATE_FAILED;
}

static const struct {
    enum record_type type;
    bool needs_start;
    enum translate_result (*fn)(struct translator *t, const struct record *rec, struct buf *out);
} rows[] = {
    {REC_STARTED, false, on_started}, {REC_OUTPUT, true, on_output}, {REC_GAP, true, on_gap},
    {REC_RESYNC, true, on_resync},    {REC_EXITED, true, on_exited}, {REC_ERROR, false, on_error},
};

enum translate_result translate_record(struct translator *t, const struct record *rec, struct buf *out) {
    assert(!t->ended);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        if (rows[i].type != rec->type)
            continue;
        if (rows[i].needs_start && !t->started)
            return violation(t, "a record came before STARTED", out);
        if (record_missing(rec))
            return violation(t, "a record lacks a field", out);
        return rows[i].fn(t, rec, out);
    }
    /* Types known to the protocol have no business here; unknown ones are a later agent's. */
    if (strcmp(record_type_name(rec->type), "?") != 0)
        return violation(t, "a record that does not belong on this stream", out);
    return TRANSLATE_NOTHING;
}
