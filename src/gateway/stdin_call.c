/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /v1/sessions/{id}/stdin: the body's bytes as DATA records, at the pace the process takes them: while the agent's
 * stream is full the client's socket is not read.
 */
#include "base/text.h"
#include "gateway/session_call.h"
#include <inttypes.h>
#include <string.h>

#define HIGH_WATER (64u * 1024)
#define PIECE_MAX RECORD_MAX_OUTPUT

static bool check(const struct session_call *c, const struct grant *g, struct problem *p) {
    (void)c;
    if (g->has_stdin || g->pty)
        return true;
    problem_set(p, 409, "stdin_closed", "", "the session was made without stdin");
    return false;
}

static void put(const struct session_call *c, struct buf *out) {
    size_t mark = record_begin(out, REC_STDIN);
    (void)record_put_string(out, TAG_PROCESS_ID, c->process_id);
    (void)record_put_u64(out, TAG_CLOSE_AFTER, c->close_after);
    (void)record_end(out, mark);
}

static void opened(struct session_call *c) {
    exchange_body_resume(c->exchange);
}

static bool answer(struct session_call *c, const struct record *ok, struct buf *out) {
    uint64_t accepted;
    if (!record_get_u64(ok, TAG_ACCEPTED, &accepted) || accepted > c->sent)
        return false;
    (void)buf_printf(out, "{\"accepted\":%" PRIu64 "}", accepted);
    return true;
}

static const struct session_call_kind stdin_kind = {
    .check = check, .put = put, .opened = opened, .drained = opened, .answer = answer, .closed_code = "stdin_closed"};

static bool send_piece(struct session_call *c, const char *data, size_t len) {
    _cleanup_buf_ struct buf out = {0};
    size_t mark;
    buf_init(&out, RECORD_HEADER_SIZE + RECORD_FIELD_SIZE + PIECE_MAX);
    mark = record_begin(&out, REC_DATA);
    (void)record_put_bytes(&out, TAG_DATA, data, len);
    return record_end(&out, mark) == 0 && guest_conn_write(c->guest, out.data, out.len) == 0;
}

static void on_body(struct exchange *x, const char *data, size_t len) {
    struct session_call *c = exchange_user(x);
    struct problem p;
    while (len > 0 && c->guest) {
        size_t n = len < PIECE_MAX ? len : PIECE_MAX;
        if (!send_piece(c, data, n)) {
            problem_set(&p, 503, "unavailable", "", "the sandbox does not take input");
            session_call_refuse(c, &p);
            return;
        }
        c->sent += n;
        c->gateway->stats.stdin_bytes += n;
        data += n;
        len -= n;
    }
    if (c->guest && guest_conn_queued(c->guest) > HIGH_WATER)
        exchange_body_pause(x);
}

static void on_body_end(struct exchange *x) {
    struct session_call *c = exchange_user(x);
    if (c->guest)
        guest_conn_shutdown(c->guest);
}

void stdin_handler(struct exchange *x) {
    static const struct exchange_events events = {.on_body = on_body,
                                                  .on_body_end = on_body_end,
                                                  .on_shutdown = session_call_on_shutdown,
                                                  .on_close = session_call_on_close};
    struct session_call fields = {0};
    char value[8] = "";
    int r = exchange_query_get(x, "close", value, sizeof(value));
    if (r != 0 && strcmp(value, "0") != 0 && strcmp(value, "1") != 0) {
        (void)exchange_problem(x, 400, "invalid", "close", "close must be 0 or 1");
        return;
    }
    fields.close_after = value[0] == '1';
    exchange_body_pause(x); /* until the agent's stream stands */
    session_call_start(x, &stdin_kind, &fields, &events);
}
