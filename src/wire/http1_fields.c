/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of a head: start lines, fields, and the checks over the whole head that decide framing and connection use.
 * Works in place on head->text; offsets fit 16 bits because the head is bounded by 65535 bytes.
 */
#include "wire/http1_internal.h"
#include <string.h>
#include <strings.h>

static bool all_in(const char *s, size_t len, uint8_t class) {
    for (size_t i = 0; i < len; i++)
        if (!http1_is(s[i], class))
            return false;
    return true;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* "HTTP/1.0" or "HTTP/1.1", exactly 8 bytes. */
static enum http1_error parse_version(const char *s, int *ret_minor) {
    if (memcmp(s, "HTTP/", 5) != 0 || !is_digit(s[5]) || s[6] != '.' || !is_digit(s[7]))
        return HTTP1_E_START_LINE;
    if (s[5] != '1' || s[7] > '1')
        return HTTP1_E_VERSION;
    *ret_minor = s[7] - '0';
    return HTTP1_OK;
}

static bool is_absolute_form(const char *target, size_t len) {
    const char *colon = memchr(target, ':', len);
    size_t scheme = colon ? (size_t)(colon - target) : 0;
    if (scheme == 0 || len - scheme < 4 || memcmp(colon, "://", 3) != 0)
        return false;
    for (size_t i = 0; i < scheme; i++)
        if (!((target[i] | 0x20) >= 'a' && (target[i] | 0x20) <= 'z'))
            return false;
    return true;
}

static enum http1_error check_target(const struct http1_parser *p, const char *method, const char *target, size_t len,
                                     enum http1_form *ret) {
    if (len == 0 || !all_in(target, len, HTTP1_C_TARGET))
        return HTTP1_E_TARGET;
    bool connect = strcmp(method, "CONNECT") == 0;
    if (connect) {
        *ret = HTTP1_FORM_AUTHORITY;
        return (p->flags & HTTP1_ALLOW_AUTHORITY) && all_in(target, len, HTTP1_C_HOST) ? HTTP1_OK : HTTP1_E_TARGET;
    }
    if (target[0] == '/') {
        *ret = HTTP1_FORM_ORIGIN;
        return HTTP1_OK;
    }
    if (len == 1 && target[0] == '*') {
        *ret = HTTP1_FORM_ASTERISK;
        return (p->flags & HTTP1_ALLOW_ASTERISK) && strcmp(method, "OPTIONS") == 0 ? HTTP1_OK : HTTP1_E_TARGET;
    }
    *ret = HTTP1_FORM_ABSOLUTE;
    return (p->flags & HTTP1_ALLOW_ABSOLUTE) && is_absolute_form(target, len) ? HTTP1_OK : HTTP1_E_TARGET;
}

enum http1_error http1_parse_request_line(struct http1_parser *p, size_t at, size_t len) {
    struct http1_head *h = p->head;
    char *line = h->text.data + at;
    char *sp = memchr(line, ' ', len);
    if (!sp)
        return HTTP1_E_START_LINE;
    size_t method_len = (size_t)(sp - line);
    if (method_len == 0 || method_len > HTTP1_METHOD_MAX || !all_in(line, method_len, HTTP1_C_TOKEN))
        return HTTP1_E_START_LINE;
    char *target = sp + 1;
    size_t rest = len - method_len - 1;
    char *end = memchr(target, ' ', rest);
    if (!end || rest - (size_t)(end - target) != 1 + 8)
        return HTTP1_E_START_LINE;
    size_t target_len = (size_t)(end - target);
    enum http1_error e = parse_version(end + 1, &h->minor);
    if (e)
        return e;
    if (target_len > p->limits.target_max)
        return HTTP1_E_TARGET_LONG;
    *sp = '\0';
    *end = '\0';
    e = check_target(p, line, target, target_len, &h->form);
    if (e)
        return e;
    h->method_at = (uint16_t)at;
    h->target_at = (uint16_t)(target - h->text.data);
    h->target_len = (uint16_t)target_len;
    return HTTP1_OK;
}

/* "HTTP/1.1 200 OK"; an empty reason may come without its space. */
enum http1_error http1_parse_status_line(struct http1_parser *p, size_t at, size_t len) {
    struct http1_head *h = p->head;
    char *line = h->text.data + at;
    if (len < 12)
        return HTTP1_E_START_LINE;
    enum http1_error e = parse_version(line, &h->minor);
    if (e)
        return e;
    if (line[8] != ' ' || !is_digit(line[9]) || !is_digit(line[10]) || !is_digit(line[11]))
        return HTTP1_E_START_LINE;
    int status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
    if (status < 100 || status > 599 || (len > 12 && line[12] != ' '))
        return HTTP1_E_START_LINE;
    if (len > 13) {
        if (!all_in(line + 13, len - 13, HTTP1_C_VALUE))
            return HTTP1_E_START_LINE;
        h->reason_at = (uint16_t)(at + 13);
    }
    line[len] = '\0';
    h->status = status;
    return HTTP1_OK;
}

enum http1_error http1_parse_field(struct http1_head *h, size_t at, size_t len) {
    char *line = h->text.data + at;
    if (line[0] == ' ' || line[0] == '\t')
        return HTTP1_E_FOLD;
    if (h->n_fields == HTTP1_FIELDS_MAX)
        return HTTP1_E_FIELDS;
    char *colon = memchr(line, ':', len);
    if (!colon || colon == line || !all_in(line, (size_t)(colon - line), HTTP1_C_TOKEN))
        return HTTP1_E_FIELD_NAME;
    char *value = colon + 1, *end = line + len;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (!all_in(value, (size_t)(end - value), HTTP1_C_VALUE))
        return HTTP1_E_FIELD_VALUE;
    *colon = '\0';
    *end = '\0'; /* at most the CR of the line's end */
    h->fields[h->n_fields++] = (struct http1_field){
        .name = (uint16_t)at,
        .name_len = (uint16_t)(colon - line),
        .value = (uint16_t)(value - h->text.data),
        .value_len = (uint16_t)(end - value),
    };
    return HTTP1_OK;
}

/* An absolute or authority-form target must name the host that Host names. */
static bool target_agrees(const struct http1_head *h, const char *host) {
    const char *target = http1_target(h);
    if (h->form == HTTP1_FORM_AUTHORITY)
        return strcasecmp(target, host) == 0;
    if (h->form != HTTP1_FORM_ABSOLUTE)
        return true;
    const char *authority = strstr(target, "://") + 3;
    size_t len = strcspn(authority, "/?");
    return len == strlen(host) && strncasecmp(authority, host, len) == 0;
}

static enum http1_error check_host(const struct http1_head *h) {
    unsigned n = http1_count(h, "Host");
    if (n == 0)
        return h->minor == 0 ? HTTP1_OK : HTTP1_E_HOST;
    const char *host = http1_get(h, "Host");
    if (n > 1 || !*host || !all_in(host, strlen(host), HTTP1_C_HOST) || !target_agrees(h, host))
        return HTTP1_E_HOST;
    return HTTP1_OK;
}

static enum http1_error check_single(const struct http1_head *h) {
    static const char *const single[] = {"Authorization", "Content-Type",  "Content-Range",   "Range",    "Expect",
                                         "If-Range",      "Last-Event-ID", "Idempotency-Key", "Location", "Date"};
    for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++)
        if (http1_count(h, single[i]) > 1)
            return HTTP1_E_DOUBLED;
    return HTTP1_OK;
}

static bool parse_length(const char *s, uint64_t *ret) {
    uint64_t v = 0;
    if (!*s)
        return false;
    for (; *s; s++) {
        if (!is_digit(*s) || v > ((uint64_t)INT64_MAX - 9) / 10)
            return false;
        v = v * 10 + (uint64_t)(*s - '0');
    }
    *ret = v;
    return true;
}

/* Reads both length fields; says which there is. */
static enum http1_error parse_lengths(struct http1_head *h, bool *ret_chunked) {
    unsigned lengths = http1_count(h, "Content-Length"), codings = http1_count(h, "Transfer-Encoding");
    *ret_chunked = codings > 0;
    if (lengths && codings)
        return HTTP1_E_BOTH_LENGTHS;
    if (lengths > 1)
        return HTTP1_E_CONTENT_LENGTH;
    if (lengths && !parse_length(http1_get(h, "Content-Length"), &h->content_length))
        return HTTP1_E_CONTENT_LENGTH;
    h->has_content_length = lengths > 0;
    if (codings && h->minor == 0)
        return HTTP1_E_NO_LENGTH;
    if (codings && (codings > 1 || strcasecmp(http1_get(h, "Transfer-Encoding"), "chunked") != 0))
        return HTTP1_E_TRANSFER;
    return HTTP1_OK;
}

static enum http1_error finish_request(struct http1_parser *p) {
    struct http1_head *h = p->head;
    bool chunked;
    enum http1_error e = check_host(h);
    if (!e)
        e = parse_lengths(h, &chunked);
    if (e)
        return e;
    h->framing = chunked ? HTTP1_BODY_CHUNKED : h->has_content_length ? HTTP1_BODY_LENGTH : HTTP1_BODY_NONE;
    const char *expect = h->minor ? http1_get(h, "Expect") : NULL;
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return HTTP1_E_EXPECT;
    h->expect_continue = expect && (chunked || h->content_length > 0);
    return HTTP1_OK;
}

static enum http1_error finish_response(struct http1_parser *p) {
    struct http1_head *h = p->head;
    bool chunked;
    enum http1_error e = parse_lengths(h, &chunked);
    if (e)
        return e;
    bool bodyless = h->status < 200 || h->status == 204;
    if (bodyless && (chunked || h->content_length > 0))
        return HTTP1_E_NO_LENGTH;
    if (bodyless || h->status == 304 || p->no_body)
        h->framing = HTTP1_BODY_NONE;
    else if (chunked)
        h->framing = HTTP1_BODY_CHUNKED;
    else
        h->framing = h->has_content_length ? HTTP1_BODY_LENGTH : HTTP1_BODY_UNTIL_CLOSE;
    return HTTP1_OK;
}

enum http1_error http1_finish_head(struct http1_parser *p) {
    struct http1_head *h = p->head;
    enum http1_error e = check_single(h);
    if (!e)
        e = p->role == HTTP1_REQUEST ? finish_request(p) : finish_response(p);
    if (e)
        return e;
    h->keep_alive = h->minor == 1 && !http1_has_token(h, "Connection", "close") && h->framing != HTTP1_BODY_UNTIL_CLOSE;
    h->upgrade = h->minor == 1 && http1_has_token(h, "Connection", "upgrade") && http1_get(h, "Upgrade");
    return HTTP1_OK;
}
