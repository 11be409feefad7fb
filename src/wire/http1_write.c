/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/1.1 serialisers into a bounded buffer. Text that could break the framing is refused, never escaped or cut. */
#include "wire/http1_internal.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int refuse(struct buf *out) {
    out->failed = true;
    return -EINVAL;
}

/* Joins texts; all or nothing, so that a failed line leaves no half behind. */
static int put_texts(struct buf *out, const char *const *texts, size_t n) {
    size_t before = out->len;
    for (size_t i = 0; i < n; i++) {
        int r = buf_append_str(out, texts[i]);
        if (r < 0) {
            if (out->len > before)
                out->data[before] = '\0';
            out->len = before;
            return r;
        }
    }
    return 0;
}

int http1_put_request_line(struct buf *out, const char *method, const char *target) {
    if (!http1_is_token(method) || strlen(method) > HTTP1_METHOD_MAX || !*target)
        return refuse(out);
    for (const char *c = target; *c; c++)
        if (!http1_is(*c, HTTP1_C_TARGET))
            return refuse(out);
    return put_texts(out, (const char *const[]){method, " ", target, " HTTP/1.1\r\n"}, 4);
}

int http1_put_status_line(struct buf *out, int status) {
    if (status < 100 || status > 599)
        return refuse(out);
    return buf_printf(out, "HTTP/1.1 %d %s\r\n", status, http1_reason(status));
}

int http1_put_field(struct buf *out, const char *name, const char *value) {
    if (!http1_is_token(name) || !http1_is_field_value(value))
        return refuse(out);
    return put_texts(out, (const char *const[]){name, ": ", value, "\r\n"}, 4);
}

int http1_put_field_u64(struct buf *out, const char *name, uint64_t value) {
    if (!http1_is_token(name))
        return refuse(out);
    return buf_printf(out, "%s: %" PRIu64 "\r\n", name, value);
}

int http1_put_head_end(struct buf *out) {
    return buf_append(out, "\r\n", 2);
}

size_t http1_chunk_prefix(char dst[HTTP1_CHUNK_PREFIX_MAX], size_t len) {
    return (size_t)snprintf(dst, HTTP1_CHUNK_PREFIX_MAX, "%zx\r\n", len);
}

int http1_put_chunk(struct buf *out, const void *data, size_t len) {
    if (len == 0)
        return 0;
    char prefix[HTTP1_CHUNK_PREFIX_MAX];
    size_t n = http1_chunk_prefix(prefix, len);
    char *dst = len > SIZE_MAX - n - 2 ? NULL : buf_reserve(out, n + len + 2);
    if (!dst) {
        out->failed = true;
        return -E2BIG;
    }
    memcpy(dst, prefix, n);
    memcpy(dst + n, data, len);
    memcpy(dst + n + len, "\r\n", 2);
    buf_commit(out, n + len + 2);
    return 0;
}

int http1_put_last_chunk(struct buf *out) {
    return buf_append(out, "0\r\n\r\n", 5);
}

const char *http1_reason(int status) {
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {100, "Continue"},
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {426, "Upgrade Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Unknown";
}
