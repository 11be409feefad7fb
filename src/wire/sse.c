/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events. The decoder gathers a line (ended by LF, CR or CRLF), applies it to the event being built and
 * hands the event out at the empty line; line and event are bounded.
 */
#include "wire/sse.h"
#include <errno.h>
#include <string.h>

static bool is_one_line(const char *s, size_t max) {
    return strlen(s) <= max && !s[strcspn(s, "\r\n")];
}

static int put_line(struct buf *out, const char *name, const char *data, size_t len) {
    int r = buf_append_str(out, name);
    if (r == 0)
        r = buf_append(out, data, len);
    return r < 0 ? r : buf_append_byte(out, '\n');
}

static int put_data(struct buf *out, const char *data, size_t len) {
    size_t at = 0;
    for (;;) {
        size_t n = 0;
        while (at + n < len && data[at + n] != '\n' && data[at + n] != '\r')
            n++;
        int r = put_line(out, "data: ", data + at, n);
        if (r < 0 || at + n == len)
            return r;
        bool crlf = data[at + n] == '\r' && at + n + 1 < len && data[at + n + 1] == '\n';
        at += n + (crlf ? 2 : 1);
    }
}

/* Takes back what was appended since `before`, so that a failure leaves no half event. */
static int undo(struct buf *out, size_t before, int r) {
    if (out->len > before)
        out->data[before] = '\0';
    out->len = before;
    out->failed = true;
    return r;
}

int sse_put_event(struct buf *out, const char *event, const char *id, const void *data, size_t len) {
    size_t before = out->len;
    int r = 0;
    if ((event && !is_one_line(event, SSE_NAME_MAX)) || (id && !is_one_line(id, SSE_ID_MAX)))
        return undo(out, before, -EINVAL);
    if (event)
        r = put_line(out, "event: ", event, strlen(event));
    if (r == 0 && id)
        r = put_line(out, "id: ", id, strlen(id));
    if (r == 0)
        r = put_data(out, data, len);
    if (r == 0)
        r = buf_append_byte(out, '\n');
    return r < 0 ? undo(out, before, r) : 0;
}

int sse_put_comment(struct buf *out, const char *text) {
    size_t before = out->len;
    if (!is_one_line(text, 1024))
        return undo(out, before, -EINVAL);
    int r = buf_printf(out, ":%s\n\n", text);
    return r < 0 ? undo(out, before, r) : 0;
}

void sse_decoder_init(struct sse_decoder *d, size_t max) {
    memset(d, 0, sizeof(*d));
    buf_init(&d->data, max);
    buf_init(&d->line, max + sizeof("event: "));
}

void sse_decoder_done(struct sse_decoder *d) {
    buf_done(&d->data);
    buf_done(&d->line);
    memset(d, 0, sizeof(*d));
}

bool sse_decoder_is_partial(const struct sse_decoder *d) {
    return d->line.len > 0 || (!d->clear && (d->had_data || d->next_event[0]));
}

static enum sse_result fail(struct sse_decoder *d) {
    d->failed = true;
    return SSE_ERROR;
}

static bool copy_field(char *dst, size_t max, const char *value, size_t len) {
    if (len > max)
        return false;
    memcpy(dst, value, len);
    dst[len] = '\0';
    return true;
}

static enum sse_result dispatch(struct sse_decoder *d) {
    if (!d->had_data) {
        d->next_event[0] = '\0';
        return SSE_MORE;
    }
    if (d->next_event[0])
        memcpy(d->event, d->next_event, sizeof(d->event));
    else
        memcpy(d->event, "message", sizeof("message"));
    d->clear = true;
    return SSE_EVENT;
}

/* One field line. Unknown names (retry among them) are skipped as the standard has it. */
static enum sse_result apply_field(struct sse_decoder *d, const char *line, size_t len) {
    const char *colon = memchr(line, ':', len);
    size_t name_len = colon ? (size_t)(colon - line) : len;
    const char *value = colon ? colon + 1 : line + len;
    size_t value_len = len - (size_t)(value - line);
    if (value_len && *value == ' ') {
        value++;
        value_len--;
    }
    if (name_len == 4 && memcmp(line, "data", 4) == 0) {
        if (d->had_data && buf_append_byte(&d->data, '\n') < 0)
            return fail(d);
        d->had_data = true;
        return buf_append(&d->data, value, value_len) < 0 ? fail(d) : SSE_MORE;
    }
    if (name_len == 5 && memcmp(line, "event", 5) == 0)
        return copy_field(d->next_event, SSE_NAME_MAX, value, value_len) ? SSE_MORE : fail(d);
    if (name_len == 2 && memcmp(line, "id", 2) == 0)
        return copy_field(d->id, SSE_ID_MAX, value, value_len) ? SSE_MORE : fail(d);
    return SSE_MORE;
}

static enum sse_result apply_line(struct sse_decoder *d) {
    const char *line = d->line.data;
    size_t len = d->line.len;
    enum sse_result r;
    if (!d->started && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3;
        len -= 3;
    }
    d->started = true;
    if (memchr(line, '\0', len))
        return fail(d);
    if (len == 0)
        r = dispatch(d);
    else
        r = line[0] == ':' ? SSE_COMMENT : apply_field(d, line, len);
    buf_reset(&d->line);
    return r;
}

enum sse_result sse_decoder_feed(struct sse_decoder *d, const char *data, size_t len, size_t *ret_used) {
    enum sse_result r = SSE_MORE;
    size_t at = 0;
    *ret_used = 0;
    if (d->failed)
        return SSE_ERROR;
    if (d->clear) {
        buf_reset(&d->data);
        d->next_event[0] = '\0';
        d->had_data = d->clear = false;
    }
    while (r == SSE_MORE && at < len) {
        if (d->skip_lf && data[at] == '\n')
            at++;
        d->skip_lf = false;
        size_t n = 0;
        while (at + n < len && data[at + n] != '\n' && data[at + n] != '\r')
            n++;
        if (buf_append(&d->line, data + at, n) < 0)
            r = fail(d);
        at += n;
        if (r == SSE_MORE && at < len) {
            d->skip_lf = data[at++] == '\r';
            r = apply_line(d);
        }
    }
    *ret_used = at;
    return r;
}
