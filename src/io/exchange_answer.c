/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers: heads, whole and streamed bodies, problem documents, upgrades, aborts. Everything is written to the stream
 * at once; that the exchange is over is found out by conn_task in the next round, so no call here runs a callback.
 */
#include "base/clock.h"
#include "io/http_server_internal.h"
#include "io/loop_internal.h"
#include <assert.h>
#include <string.h>
#include <strings.h>

#define HEAD_MAX (HTTP_FIELDS_BYTES + 4096u)

/* Frames of what follows the head. */
enum framing { FRAMING_NONE, FRAMING_LENGTH, FRAMING_CHUNKED, FRAMING_CLOSE };

int exchange_add_header(struct exchange *x, const char *name, const char *value) {
    static const char *const ours[] = {"Date", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade"};
    if (!exchange_usable(x))
        return -SP_E_GONE;
    if (x->started)
        return -SP_E_CONFLICT;
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        if (strcasecmp(name, ours[i]) == 0)
            return -SP_E_INVALID;
    if (!http1_is_token(name) || !http1_is_field_value(value))
        return -SP_E_INVALID;
    int r = http1_put_field(&x->fields, name, value);
    x->fields.failed = false;
    return r < 0 ? -SP_E_TOO_LARGE : 0;
}

/* Whether the connection ends after this answer; decided once, when its head is written. */
static bool will_close(struct exchange *x) {
    struct conn *c = x->conn;
    if (c->body_pending || c->server->stopping)
        c->closing = true;
    return c->closing;
}

static bool status_has_no_body(int status) {
    return status < 200 || status == 204 || status == 304;
}

/* Writes the head into out. */
static int put_head(struct exchange *x, struct buf *out, int status, const char *content_type, enum framing framing,
                    uint64_t length) {
    if (framing == FRAMING_CLOSE)
        x->conn->closing = true;
    (void)http1_put_status_line(out, status);
    (void)http1_put_field(out, "Date", http_server_date(x->conn->server));
    if (content_type)
        (void)http1_put_field(out, "Content-Type", content_type);
    (void)buf_append(out, x->fields.data, x->fields.len);
    if (framing == FRAMING_LENGTH)
        (void)http1_put_field_u64(out, "Content-Length", length);
    else if (framing == FRAMING_CHUNKED)
        (void)http1_put_field(out, "Transfer-Encoding", "chunked");
    if (will_close(x))
        (void)http1_put_field(out, "Connection", "close");
    (void)http1_put_head_end(out);
    return out->failed ? -SP_E_INVALID : 0;
}

static void mark_started(struct exchange *x, int status) {
    x->started = true;
    x->status = status;
    x->silent = status_has_no_body(status) || strcmp(http1_method(&x->head), "HEAD") == 0;
}

static void mark_ended(struct exchange *x) {
    x->ended = true;
    conn_wake(x->conn);
}

/* The whole answer; the caller has checked that it may be given. */
static int respond(struct exchange *x, int status, const char *content_type, const void *body, size_t len) {
    _cleanup_buf_ struct buf head = {0};
    bool none = status_has_no_body(status);
    if (status < 200 || status > 599)
        return -SP_E_INVALID;
    if (len > x->conn->server->opt.out_max)
        return -SP_E_TOO_LARGE;
    buf_init(&head, HEAD_MAX);
    int r = put_head(x, &head, status, content_type, none ? FRAMING_NONE : FRAMING_LENGTH, len);
    if (r < 0)
        return r;
    mark_started(x, status);
    struct stream_piece pieces[2] = {{head.data, head.len}, {body, x->silent ? 0 : len}};
    x->body_out += pieces[1].len;
    r = stream_write_pieces(x->conn->stream, pieces, 2);
    if (r == -SP_E_TOO_LARGE)
        conn_cut(x->conn, EXCHANGE_ABORTED); /* cannot be: out_max and a head have room after the last answer left */
    mark_ended(x);
    return 0;
}

int exchange_respond(struct exchange *x, int status, const char *content_type, const void *body, size_t len) {
    if (!exchange_usable(x))
        return -SP_E_GONE;
    if (x->started)
        return -SP_E_CONFLICT;
    return respond(x, status, content_type, body, len);
}

/* ---- problems ---- */

static int send_problem(struct exchange *x, const struct http_problem *p) {
    const struct http_server_options *opt = &x->conn->server->opt;
    _cleanup_buf_ struct buf body = {0};
    const char *content_type = NULL;
    buf_init(&body, opt->out_max);
    int r = opt->render(opt->ctx, p, &body, &content_type);
    if (r < 0)
        return r;
    if ((p->status == 429 || p->status == 503) && !strcasestr(x->fields.data, "Retry-After:"))
        (void)http1_put_field(&x->fields, "Retry-After", "1");
    return respond(x, p->status, content_type, body.data, body.len);
}

int exchange_problem(struct exchange *x, int status, const char *code, const char *field, const char *detail) {
    struct http_problem p = {.status = status, .code = code, .field = field ? field : "", .detail = detail};
    if (!exchange_usable(x))
        return -SP_E_GONE;
    if (x->started)
        return -SP_E_CONFLICT;
    return send_problem(x, &p);
}

int exchange_fail(struct exchange *x, const struct sp_error *error) {
    return exchange_problem(x, sp_code_http_status(error->code), sp_code_name(error->code), error->field, error->text);
}

void exchange_usurp(struct exchange *x, enum exchange_end fate, int status, const char *code, const char *detail) {
    struct http_problem p = {.status = status, .code = code, .field = "", .detail = detail};
    x->usurped = true;
    x->fate = fate;
    if (x->started || send_problem(x, &p) < 0)
        conn_cut(x->conn, fate);
}

/* ---- streamed answers ---- */

int exchange_start(struct exchange *x, int status, const char *content_type, int64_t length) {
    _cleanup_buf_ struct buf head = {0};
    enum framing framing = FRAMING_LENGTH;
    if (!exchange_usable(x))
        return -SP_E_GONE;
    if (x->started)
        return -SP_E_CONFLICT;
    if (status < 200 || status > 599)
        return -SP_E_INVALID;
    if (status_has_no_body(status))
        framing = FRAMING_NONE;
    else if (length < 0)
        framing = x->head.minor == 0 ? FRAMING_CLOSE : FRAMING_CHUNKED;
    buf_init(&head, HEAD_MAX);
    int r = put_head(x, &head, status, content_type, framing, (uint64_t)length);
    if (r < 0)
        return r;
    mark_started(x, status);
    x->chunked = framing == FRAMING_CHUNKED;
    x->has_length = framing == FRAMING_LENGTH;
    x->length_left = x->has_length ? (uint64_t)length : 0;
    return stream_write(x->conn->stream, head.data, head.len);
}

static int write_piece(struct exchange *x, const void *data, size_t len) {
    char prefix[HTTP1_CHUNK_PREFIX_MAX];
    if (!x->chunked)
        return stream_write(x->conn->stream, data, len);
    struct stream_piece pieces[3] = {{prefix, http1_chunk_prefix(prefix, len)}, {data, len}, {"\r\n", 2}};
    return stream_write_pieces(x->conn->stream, pieces, 3);
}

int exchange_write(struct exchange *x, const void *data, size_t len) {
    const struct conn *c = exchange_usable(x);
    if (!c)
        return -SP_E_GONE;
    if (!x->started || x->ended)
        return -SP_E_CONFLICT;
    if (x->has_length && len > x->length_left)
        return -SP_E_INVALID;
    size_t queued = stream_queued(c->stream);
    if (len > x->queue_max || queued > x->queue_max - len)
        return -SP_E_TOO_LARGE;
    if (x->has_length)
        x->length_left -= len;
    if (len == 0 || x->silent)
        return 0;
    int r = write_piece(x, data, len);
    if (r < 0 && x->has_length)
        x->length_left += len;
    else if (r == 0)
        x->body_out += len;
    return r;
}

int exchange_end(struct exchange *x) {
    struct conn *c = exchange_usable(x);
    if (!c)
        return -SP_E_GONE;
    if (!x->started || x->ended)
        return -SP_E_CONFLICT;
    if (x->has_length && x->length_left > 0 && !x->silent) {
        conn_cut(c, EXCHANGE_ABORTED);
        return -SP_E_INVALID;
    }
    if (x->tunnel)
        stream_shutdown(c->stream);
    else if (x->chunked && !x->silent)
        (void)stream_write(c->stream, "0\r\n\r\n", 5); /* HTTP_HEAD_ROOM keeps room for it */
    mark_ended(x);
    return 0;
}

size_t exchange_queued(const struct exchange *x) {
    return x->conn ? stream_queued(x->conn->stream) : 0;
}

void exchange_set_queue_max(struct exchange *x, size_t max, size_t low_water) {
    const struct conn *c = exchange_usable(x);
    if (!c)
        return;
    size_t bound = c->server->opt.out_max;
    x->queue_max = max < bound ? max : bound;
    stream_set_bounds(c->stream, x->queue_max + HTTP_HEAD_ROOM,
                      low_water < x->queue_max ? low_water : x->queue_max / 2);
}

int exchange_continue(struct exchange *x) {
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const struct conn *c = exchange_usable(x);
    if (!c)
        return -SP_E_GONE;
    if (x->started)
        return -SP_E_CONFLICT;
    if (!x->head.expect_continue || x->continued || !c->body_pending || x->body_in > 0)
        return 0;
    x->continued = true;
    return stream_write(c->stream, text, sizeof(text) - 1);
}

int exchange_upgrade(struct exchange *x, const char *protocol) {
    _cleanup_buf_ struct buf head = {0};
    struct conn *c = exchange_usable(x);
    if (!c)
        return -SP_E_GONE;
    if (x->started || !x->head.upgrade || c->body_pending)
        return -SP_E_CONFLICT;
    buf_init(&head, HEAD_MAX);
    (void)http1_put_status_line(&head, 101);
    (void)buf_append(&head, x->fields.data, x->fields.len);
    (void)http1_put_field(&head, "Connection", "upgrade");
    (void)http1_put_field(&head, "Upgrade", protocol);
    (void)http1_put_head_end(&head);
    if (head.failed)
        return -SP_E_INVALID;
    x->started = x->tunnel = true;
    x->body_done = false;
    x->status = 101;
    c->closing = true;
    c->state = CONN_TUNNEL;
    int r = stream_write(c->stream, head.data, head.len);
    if (x->paused)
        stream_pause(c->stream);
    conn_wake(c); /* bytes that came behind the request */
    return r;
}

void exchange_abort(struct exchange *x) {
    struct conn *c = exchange_usable(x);
    if (c)
        conn_cut(c, EXCHANGE_ABORTED);
}
