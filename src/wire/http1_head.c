/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parsed head: storage and look-ups, byte classes, and the table of refusals. Pure; parsing is in http1.c and
 * http1_fields.c.
 */
#include "wire/http1_internal.h"
#include <assert.h>
#include <string.h>
#include <strings.h>

#define T HTTP1_C_TOKEN
#define G HTTP1_C_TARGET
#define V HTTP1_C_VALUE
#define H HTTP1_C_HOST
const uint8_t http1_class[256] = {
    ['\t'] = V,
    [' '] = V,
    ['0' ... '9'] = T | G | V | H,
    ['A' ... 'Z'] = T | G | V | H,
    ['a' ... 'z'] = T | G | V | H,
    ['!'] = T | G | V | H,
    ['"'] = V,
    ['#'] = T | V,
    ['$'] = T | G | V | H,
    ['%'] = T | G | V | H,
    ['&'] = T | G | V | H,
    ['\''] = T | G | V | H,
    ['('] = G | V | H,
    [')'] = G | V | H,
    ['*'] = T | G | V | H,
    ['+'] = T | G | V | H,
    [','] = G | V | H,
    ['-'] = T | G | V | H,
    ['.'] = T | G | V | H,
    ['/'] = G | V,
    [':'] = G | V | H,
    [';'] = G | V | H,
    ['<'] = V,
    ['='] = G | V | H,
    ['>'] = V,
    ['?'] = G | V,
    ['@'] = G | V,
    ['['] = G | V | H,
    ['\\'] = G | V,
    [']'] = G | V | H,
    ['^'] = T | G | V,
    ['_'] = T | G | V | H,
    ['`'] = T | G | V,
    ['{'] = G | V,
    ['|'] = T | G | V,
    ['}'] = G | V,
    ['~'] = T | G | V | H,
    [0x80 ... 0xff] = V,
};
#undef T
#undef G
#undef V
#undef H

static const struct {
    int status;
    const char *text;
} errors[HTTP1_E_COUNT_] = {
    [HTTP1_OK] = {200, "no error"},
    [HTTP1_E_LINE_ENDING] = {400, "lines must end with CR LF"},
    [HTTP1_E_START_LINE] = {400, "malformed start line"},
    [HTTP1_E_VERSION] = {505, "only HTTP/1.1 and HTTP/1.0 are spoken here"},
    [HTTP1_E_TARGET] = {400, "request target is not in an accepted form"},
    [HTTP1_E_TARGET_LONG] = {414, "request target is too long"},
    [HTTP1_E_FIELD_NAME] = {400, "malformed header field name"},
    [HTTP1_E_FIELD_VALUE] = {400, "control byte in a header field"},
    [HTTP1_E_FOLD] = {400, "folded header fields are not accepted"},
    [HTTP1_E_HEAD_LONG] = {431, "header is too long"},
    [HTTP1_E_FIELDS] = {431, "too many header fields"},
    [HTTP1_E_HOST] = {400, "exactly one valid Host field is required"},
    [HTTP1_E_DOUBLED] = {400, "a header field that must be single was given twice"},
    [HTTP1_E_CONTENT_LENGTH] = {400, "malformed Content-Length"},
    [HTTP1_E_TRANSFER] = {501, "Transfer-Encoding must be exactly chunked"},
    [HTTP1_E_BOTH_LENGTHS] = {400, "Content-Length and Transfer-Encoding exclude each other"},
    [HTTP1_E_NO_LENGTH] = {400, "a body length where none may be"},
    [HTTP1_E_EXPECT] = {417, "unknown expectation"},
    [HTTP1_E_CHUNK] = {400, "malformed chunk"},
    [HTTP1_E_CHUNK_LONG] = {400, "chunk line, extensions or trailers are too long"},
    [HTTP1_E_BODY_LONG] = {413, "body is too long"},
    [HTTP1_E_TRUNCATED] = {400, "the message was cut off"},
    [HTTP1_E_MEMORY] = {503, "out of memory"},
};

int http1_error_status(enum http1_error e) {
    return (unsigned)e < HTTP1_E_COUNT_ ? errors[e].status : 400;
}

const char *http1_error_text(enum http1_error e) {
    return (unsigned)e < HTTP1_E_COUNT_ ? errors[e].text : "unknown error";
}

void http1_head_init(struct http1_head *h) {
    memset(h, 0, sizeof(*h));
    buf_init(&h->text, HTTP1_HEAD_MAX);
}

void http1_head_reset(struct http1_head *h) {
    struct buf text = h->text;
    memset(h, 0, sizeof(*h));
    h->text = text;
    buf_reset(&h->text);
}

void http1_head_done(struct http1_head *h) {
    buf_done(&h->text);
    memset(h, 0, sizeof(*h));
}

static const char *text_at(const struct http1_head *h, uint16_t at) {
    return at ? h->text.data + at : "";
}

const char *http1_method(const struct http1_head *h) {
    return h->target_at ? h->text.data + h->method_at : "";
}

const char *http1_target(const struct http1_head *h) {
    return text_at(h, h->target_at);
}

const char *http1_reason_phrase(const struct http1_head *h) {
    return text_at(h, h->reason_at);
}

const char *http1_field_name(const struct http1_head *h, unsigned i) {
    assert(i < h->n_fields);
    return h->text.data + h->fields[i].name;
}

const char *http1_field_value(const struct http1_head *h, unsigned i) {
    assert(i < h->n_fields);
    return h->text.data + h->fields[i].value;
}

const char *http1_get(const struct http1_head *h, const char *name) {
    for (unsigned i = 0; i < h->n_fields; i++)
        if (strcasecmp(http1_field_name(h, i), name) == 0)
            return http1_field_value(h, i);
    return NULL;
}

unsigned http1_count(const struct http1_head *h, const char *name) {
    unsigned n = 0;
    for (unsigned i = 0; i < h->n_fields; i++)
        n += strcasecmp(http1_field_name(h, i), name) == 0;
    return n;
}

static bool list_has(const char *list, const char *token) {
    size_t want = strlen(token);
    while (*list) {
        list += strspn(list, " \t,");
        size_t len = strcspn(list, ",");
        size_t trimmed = len;
        while (trimmed && (list[trimmed - 1] == ' ' || list[trimmed - 1] == '\t'))
            trimmed--;
        if (trimmed == want && strncasecmp(list, token, want) == 0)
            return true;
        list += len;
    }
    return false;
}

bool http1_has_token(const struct http1_head *h, const char *name, const char *token) {
    for (unsigned i = 0; i < h->n_fields; i++)
        if (strcasecmp(http1_field_name(h, i), name) == 0 && list_has(http1_field_value(h, i), token))
            return true;
    return false;
}

bool http1_is_hop_by_hop(const struct http1_head *h, const char *name) {
    static const char *const hop[] = {"Connection",
                                      "Keep-Alive",
                                      "Proxy-Authenticate",
                                      "Proxy-Authorization",
                                      "Proxy-Connection",
                                      "TE",
                                      "Trailer",
                                      "Transfer-Encoding",
                                      "Upgrade"};
    for (size_t i = 0; i < sizeof(hop) / sizeof(hop[0]); i++)
        if (strcasecmp(name, hop[i]) == 0)
            return true;
    return http1_has_token(h, "Connection", name);
}

bool http1_is_token(const char *s) {
    if (!*s)
        return false;
    for (; *s; s++)
        if (!http1_is(*s, HTTP1_C_TOKEN))
            return false;
    return true;
}

bool http1_is_field_value(const char *s) {
    for (; *s; s++)
        if (!http1_is(*s, HTTP1_C_VALUE))
            return false;
    return true;
}
