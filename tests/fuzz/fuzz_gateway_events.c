/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile agent on an ATTACH stream: whatever bytes come, what goes out decodes as server-sent events, starts with
 * process_started or error, has at most one end, and never a hole in an output stream that no event mentions. And
 * Last-Event-ID: what is accepted prints as itself.
 */
#include "base/json.h"
#include "fuzz.h"
#include "gateway/translate.h"
#include "wire/sse.h"
#include <string.h>

#define PROCESS "prc_00000000000000000000000001"

struct seen {
    unsigned events;
    bool ended;
    json_int_t next[CURSOR_STREAMS];
};

static int stream_of(const char *name) {
    static const char *const names[CURSOR_STREAMS] = {"stdout", "stderr", "pty"};
    for (int i = 0; i < CURSOR_STREAMS; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

/* A client's view of one event. */
static void check_event(struct seen *seen, const char *name, const char *data, size_t len) {
    struct sp_error err = {0};
    _cleanup_json_ json_t *j = NULL;
    int stream = stream_of(name);
    FUZZ_CHECK(!seen->ended);
    FUZZ_CHECK(json_parse(data, len, 1 << 20, &j, &err) == 0 && json_is_object(j));
    FUZZ_CHECK(seen->events++ > 0 || strcmp(name, "process_started") == 0 || strcmp(name, "error") == 0);
    seen->ended = strcmp(name, "process_exited") == 0 || strcmp(name, "error") == 0;
    if (stream >= 0) {
        size_t encoded = json_string_length(json_object_get(j, "data"));
        const char *text = json_string_value(json_object_get(j, "data"));
        FUZZ_CHECK(json_integer_value(json_object_get(j, "offset")) == seen->next[stream] && encoded >= 4);
        seen->next[stream] += (json_int_t)(encoded / 4 * 3) - (text[encoded - 1] == '=') - (text[encoded - 2] == '=');
    } else if (strcmp(name, "gap") == 0) {
        stream = stream_of(json_string_value(json_object_get(j, "stream")));
        FUZZ_CHECK(stream >= 0 && json_integer_value(json_object_get(j, "from")) == seen->next[stream]);
        seen->next[stream] = json_integer_value(json_object_get(j, "to"));
    } else if (strcmp(name, "resync_required") == 0) {
        seen->next[0] = json_integer_value(json_object_get(j, "stdout_offset"));
        seen->next[1] = json_integer_value(json_object_get(j, "stderr_offset"));
        seen->next[2] = json_integer_value(json_object_get(j, "pty_offset"));
    }
}

static void check_text(struct seen *seen, const struct buf *out) {
    struct sse_decoder d;
    size_t at = 0, used;
    sse_decoder_init(&d, TRANSLATE_EVENT_MAX);
    while (at < out->len) {
        enum sse_result r = sse_decoder_feed(&d, out->data + at, out->len - at, &used);
        at += used;
        FUZZ_CHECK(r != SSE_ERROR && r != SSE_COMMENT);
        if (r == SSE_EVENT)
            check_event(seen, d.event, d.data.data, d.data.len);
    }
    FUZZ_CHECK(!sse_decoder_is_partial(&d));
    sse_decoder_done(&d);
}

static void try_cursor(const uint8_t *data, size_t size) {
    char text[CURSOR_TEXT_SIZE + 8] = "", again[CURSOR_TEXT_SIZE];
    struct cursor c;
    memcpy(text, data, size < sizeof(text) ? size : sizeof(text) - 1);
    if (cursor_parse(text, &c))
        FUZZ_CHECK(strcmp(cursor_format(again, &c), text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct cursor from;
    struct view in = {.p = data, .len = size};
    struct record_reader reader = {0};
    struct translator t;
    struct record rec;
    struct seen seen = {0};
    struct buf out;

    try_cursor(data, size);
    buf_init(&out, 8u << 20);
    translator_init(&t, PROCESS, &from);
    while (!t.ended && record_next(&reader, &in, &rec) > 0) {
        size_t before = out.len;
        enum translate_result r = translate_record(&t, &rec, &out);
        FUZZ_CHECK(!out.failed && out.len - before <= TRANSLATE_EVENT_MAX);
        FUZZ_CHECK((r == TRANSLATE_NOTHING) == (out.len == before));
        FUZZ_CHECK((r == TRANSLATE_VIOLATION) == (t.violation != NULL));
    }
    check_text(&seen, &out);
    FUZZ_CHECK(seen.ended == t.ended);
    translator_done(&t);
    record_reader_done(&reader);
    buf_done(&out);
    return 0;
}
