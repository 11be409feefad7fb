/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The incremental HTTP/1.1 parser: gathers the head line by line into head->text (http1_fields.c reads the lines), then
 * hands out the body as slices of the input, unframing chunks. One state enum; every state consumes or ends.
 */
#include "wire/http1_internal.h"
#include <assert.h>
#include <string.h>

enum state {
    ST_START,    /* start line */
    ST_FIELDS,   /* field lines */
    ST_BODY,     /* the head was given; decides what follows */
    ST_LENGTH,   /* p->left bytes */
    ST_SIZE,     /* chunk-size line, gathered in p->line */
    ST_DATA,     /* p->left bytes of a chunk */
    ST_DATA_END, /* CRLF after it, gathered in p->line */
    ST_TRAILER,  /* byte by byte, see trailer_byte */
    ST_CLOSE,    /* until the peer closes */
    ST_END,      /* END is to be given */
    ST_FAILED,
};

void http1_parser_init(struct http1_parser *p, enum http1_role role, unsigned flags,
                       const struct http1_limits *limits) {
    memset(p, 0, sizeof(*p));
    p->role = role;
    p->flags = flags;
    p->limits = limits ? *limits : (struct http1_limits){.body_max = UINT64_MAX};
    if (p->limits.head_max == 0)
        p->limits.head_max = HTTP1_HEAD_MAX;
    if (p->limits.target_max == 0)
        p->limits.target_max = HTTP1_TARGET_MAX;
    assert(p->limits.head_max <= UINT16_MAX);
    p->state = ST_END;
}

void http1_parser_start(struct http1_parser *p, struct http1_head *head) {
    http1_head_reset(head);
    head->text.max = p->limits.head_max;
    p->head = head;
    p->state = p->error ? ST_FAILED : ST_START;
    p->no_body = false;
    p->line_at = 0;
    p->left = p->body_total = 0;
    p->ext_total = p->trailer_total = p->line_len = 0;
    p->trailer_state = 0;
}

void http1_parser_no_body(struct http1_parser *p) {
    p->no_body = true;
}

void http1_parser_set_body_max(struct http1_parser *p, uint64_t max) {
    p->limits.body_max = max;
}

bool http1_parser_is_idle(const struct http1_parser *p) {
    return p->state == ST_END || (p->state == ST_START && p->head->text.len == 0);
}

static enum http1_event fail(struct http1_parser *p, enum http1_error e) {
    p->error = e;
    p->state = ST_FAILED;
    return HTTP1_EV_ERROR;
}

/* One complete line of the head is in head->text. */
static enum http1_event head_line(struct http1_parser *p) {
    struct http1_head *h = p->head;
    size_t at = p->line_at, len = h->text.len - at - 1; /* without LF */
    enum http1_error e;
    if (len == 0 || h->text.data[at + len - 1] != '\r')
        return fail(p, HTTP1_E_LINE_ENDING);
    len--;
    p->line_at = h->text.len;
    if (p->state == ST_START) {
        e = p->role == HTTP1_REQUEST ? http1_parse_request_line(p, at, len) : http1_parse_status_line(p, at, len);
        p->state = ST_FIELDS;
        return e ? fail(p, e) : HTTP1_EV_MORE;
    }
    if (len > 0) {
        e = http1_parse_field(h, at, len);
        return e ? fail(p, e) : HTTP1_EV_MORE;
    }
    e = http1_finish_head(p);
    if (e)
        return fail(p, e);
    p->state = ST_BODY;
    return HTTP1_EV_HEAD;
}

static enum http1_event feed_head(struct http1_parser *p, const char *data, size_t len, size_t *used) {
    struct buf *text = &p->head->text;
    while (*used < len) {
        const char *at = data + *used;
        const char *lf = memchr(at, '\n', len - *used);
        size_t n = lf ? (size_t)(lf - at) + 1 : len - *used;
        int r = buf_append(text, at, n);
        if (r < 0 && text->len + n > text->max)
            return fail(p, p->state == ST_START && p->role == HTTP1_REQUEST ? HTTP1_E_TARGET_LONG : HTTP1_E_HEAD_LONG);
        if (r < 0)
            return fail(p, HTTP1_E_MEMORY);
        *used += n;
        if (!lf)
            break;
        enum http1_event ev = head_line(p);
        if (ev != HTTP1_EV_MORE)
            return ev;
    }
    return HTTP1_EV_MORE;
}

/* After the head: where the body begins. A declared length over the bound fails before a byte of it is taken. */
static enum http1_event begin_body(struct http1_parser *p) {
    const struct http1_head *h = p->head;
    switch (h->framing) {
    case HTTP1_BODY_NONE:
        p->state = ST_END;
        break;
    case HTTP1_BODY_LENGTH:
        if (h->content_length > p->limits.body_max)
            return fail(p, HTTP1_E_BODY_LONG);
        p->left = h->content_length;
        p->state = p->left ? ST_LENGTH : ST_END;
        break;
    case HTTP1_BODY_CHUNKED:
        p->state = ST_SIZE;
        break;
    case HTTP1_BODY_UNTIL_CLOSE:
        p->state = ST_CLOSE;
        break;
    }
    return HTTP1_EV_MORE;
}

/* Hands out up to p->left bytes; *used moves past them. */
static enum http1_event feed_slice(struct http1_parser *p, const char *data, size_t len, size_t *used,
                                   struct http1_slice *ret_body, enum state next) {
    size_t n = len - *used;
    if (n > p->left)
        n = (size_t)p->left;
    *ret_body = (struct http1_slice){data + *used, n};
    *used += n;
    p->left -= n;
    p->body_total += n;
    if (p->left == 0)
        p->state = (int)next;
    return HTTP1_EV_BODY;
}

static enum http1_event feed_until_close(struct http1_parser *p, const char *data, size_t len, size_t *used,
                                         struct http1_slice *ret_body) {
    p->left = p->limits.body_max - p->body_total;
    if (p->left == 0)
        return fail(p, HTTP1_E_BODY_LONG);
    return feed_slice(p, data, len, used, ret_body, ST_CLOSE);
}

/* Gathers p->line up to LF. True when it is complete: it ends with CRLF then (else p has failed). */
static bool feed_line(struct http1_parser *p, const char *data, size_t len, size_t *used) {
    while (*used < len) {
        char c = data[(*used)++];
        if (p->line_len == sizeof(p->line)) {
            fail(p, HTTP1_E_CHUNK_LONG);
            return false;
        }
        p->line[p->line_len++] = c;
        if (c != '\n')
            continue;
        if (p->line_len < 2 || p->line[p->line_len - 2] != '\r') {
            fail(p, HTTP1_E_LINE_ENDING);
            return false;
        }
        p->line_len -= 2;
        return true;
    }
    return false;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "1a2b" or "1a2b;extension"; the size has 1 to 15 digits. */
static enum http1_error parse_chunk_size(struct http1_parser *p, uint64_t *ret) {
    uint64_t v = 0;
    size_t i = 0;
    for (; i < p->line_len && i < 16; i++) {
        int d = hex_digit(p->line[i]);
        if (d < 0)
            break;
        v = v << 4 | (uint64_t)d;
    }
    if (i == 0 || i > 15 || (i < p->line_len && p->line[i] != ';'))
        return HTTP1_E_CHUNK;
    p->ext_total += p->line_len - i;
    if (p->ext_total > HTTP1_CHUNK_EXT_MAX)
        return HTTP1_E_CHUNK_LONG;
    for (; i < p->line_len; i++)
        if (!http1_is(p->line[i], HTTP1_C_VALUE))
            return HTTP1_E_CHUNK;
    *ret = v;
    return HTTP1_OK;
}

static enum http1_event chunk_size_line(struct http1_parser *p) {
    uint64_t size;
    enum http1_error e = parse_chunk_size(p, &size);
    if (e)
        return fail(p, e);
    p->line_len = 0;
    if (size > p->limits.body_max || p->body_total > p->limits.body_max - size)
        return fail(p, HTTP1_E_BODY_LONG);
    p->left = size;
    p->state = size ? ST_DATA : ST_TRAILER;
    return HTTP1_EV_MORE;
}

enum trailer_state { TR_LINE, TR_NAME, TR_VALUE, TR_VALUE_LF, TR_END_LF };

/* One byte of the trailer section; false when it may not stand there. */
static bool trailer_byte(struct http1_parser *p, char c) {
    switch ((enum trailer_state)p->trailer_state) {
    case TR_LINE:
        p->trailer_state = c == '\r' ? TR_END_LF : TR_NAME;
        return c == '\r' || http1_is(c, HTTP1_C_TOKEN);
    case TR_NAME:
        if (c == ':')
            p->trailer_state = TR_VALUE;
        return c == ':' || http1_is(c, HTTP1_C_TOKEN);
    case TR_VALUE:
        if (c == '\r')
            p->trailer_state = TR_VALUE_LF;
        return c == '\r' || http1_is(c, HTTP1_C_VALUE);
    case TR_VALUE_LF:
        p->trailer_state = TR_LINE;
        return c == '\n';
    case TR_END_LF:
        p->state = ST_END;
        return c == '\n';
    }
    return false;
}

static enum http1_event feed_trailer(struct http1_parser *p, const char *data, size_t len, size_t *used) {
    while (*used < len && p->state == ST_TRAILER) {
        if (++p->trailer_total > HTTP1_TRAILER_MAX)
            return fail(p, HTTP1_E_CHUNK_LONG);
        if (!trailer_byte(p, data[(*used)++]))
            return fail(p, HTTP1_E_CHUNK);
    }
    return HTTP1_EV_MORE;
}

/* States that gather a line. */
static enum http1_event feed_chunk_line(struct http1_parser *p, const char *data, size_t len, size_t *used) {
    if (!feed_line(p, data, len, used))
        return p->error ? HTTP1_EV_ERROR : HTTP1_EV_MORE;
    if (p->state == ST_SIZE)
        return chunk_size_line(p);
    if (p->line_len != 0)
        return fail(p, HTTP1_E_CHUNK);
    p->state = ST_SIZE;
    return HTTP1_EV_MORE;
}

enum http1_event http1_parser_feed(struct http1_parser *p, const char *data, size_t len, size_t *ret_used,
                                   struct http1_slice *ret_body) {
    enum http1_event ev = HTTP1_EV_MORE;
    *ret_used = 0;
    *ret_body = (struct http1_slice){0};
    while (ev == HTTP1_EV_MORE) {
        if (p->state == ST_FAILED)
            return HTTP1_EV_ERROR;
        if (p->state == ST_END)
            return HTTP1_EV_END;
        if (p->state == ST_BODY) {
            ev = begin_body(p);
            continue;
        }
        if (*ret_used == len)
            return HTTP1_EV_MORE;
        switch ((enum state)p->state) {
        case ST_START:
        case ST_FIELDS:
            ev = feed_head(p, data, len, ret_used);
            break;
        case ST_LENGTH:
            ev = feed_slice(p, data, len, ret_used, ret_body, ST_END);
            break;
        case ST_DATA:
            ev = feed_slice(p, data, len, ret_used, ret_body, ST_DATA_END);
            break;
        case ST_SIZE:
        case ST_DATA_END:
            ev = feed_chunk_line(p, data, len, ret_used);
            break;
        case ST_TRAILER:
            ev = feed_trailer(p, data, len, ret_used);
            break;
        case ST_CLOSE:
            ev = feed_until_close(p, data, len, ret_used, ret_body);
            break;
        case ST_BODY:
        case ST_END:
        case ST_FAILED:
            break; /* handled above */
        }
    }
    return ev;
}

enum http1_event http1_parser_eof(struct http1_parser *p) {
    if (p->state == ST_FAILED)
        return HTTP1_EV_ERROR;
    if (p->state == ST_BODY)
        begin_body(p);
    if (p->state == ST_CLOSE) {
        p->state = ST_END;
        return HTTP1_EV_END;
    }
    return http1_parser_is_idle(p) ? HTTP1_EV_MORE : fail(p, HTTP1_E_TRUNCATED);
}
