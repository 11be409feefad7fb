/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP/1.1 parser over any bytes: the verdict and the body do not depend on segmentation, bounds hold, every
 * accepted head is unambiguous, and what is accepted can be written and read again with the same meaning. The first
 * byte chooses role, target forms and the second segmentation.
 */
#include "fuzz.h"
#include "wire/http1.h"
#include <string.h>
#include <strings.h>

#define BODY_MAX 4096u

struct result {
    enum http1_event last;
    enum http1_error error;
    unsigned heads;
    uint64_t body_len, body_sum;
    size_t used;
};

static void check_head(const struct http1_head *h, enum http1_role role) {
    FUZZ_CHECK(h->text.len <= HTTP1_HEAD_MAX && h->n_fields <= HTTP1_FIELDS_MAX);
    for (unsigned i = 0; i < h->n_fields; i++) {
        const struct http1_field *f = &h->fields[i];
        FUZZ_CHECK(http1_is_token(http1_field_name(h, i)) && http1_is_field_value(http1_field_value(h, i)));
        FUZZ_CHECK(strlen(http1_field_name(h, i)) == f->name_len && strlen(http1_field_value(h, i)) == f->value_len);
    }
    FUZZ_CHECK(!http1_get(h, "Transfer-Encoding") || !http1_get(h, "Content-Length"));
    FUZZ_CHECK(http1_count(h, "Content-Length") <= 1 && http1_count(h, "Transfer-Encoding") <= 1);
    FUZZ_CHECK(role == HTTP1_RESPONSE || http1_count(h, "Host") <= 1);
    FUZZ_CHECK(role == HTTP1_RESPONSE || h->minor == 0 || http1_get(h, "Host"));
    FUZZ_CHECK(h->framing != HTTP1_BODY_CHUNKED || strcasecmp(http1_get(h, "Transfer-Encoding"), "chunked") == 0);
    FUZZ_CHECK(role == HTTP1_RESPONSE || (http1_is_token(http1_method(h)) && strlen(http1_target(h)) == h->target_len));
}

/* Writes the head again and reads it back. */
static void check_rewrite(const struct http1_head *h, enum http1_role role, unsigned flags) {
    struct http1_parser p;
    struct http1_head again;
    struct http1_slice body;
    struct buf out;
    size_t used;
    buf_init(&out, 3 * HTTP1_HEAD_MAX);
    if (role == HTTP1_REQUEST)
        FUZZ_CHECK(http1_put_request_line(&out, http1_method(h), http1_target(h)) == 0);
    else
        FUZZ_CHECK(http1_put_status_line(&out, h->status) == 0);
    for (unsigned i = 0; i < h->n_fields; i++)
        FUZZ_CHECK(http1_put_field(&out, http1_field_name(h, i), http1_field_value(h, i)) == 0);
    FUZZ_CHECK(http1_put_head_end(&out) == 0);
    http1_head_init(&again);
    struct http1_limits limits = {.head_max = UINT16_MAX, .target_max = HTTP1_TARGET_MAX, .body_max = UINT64_MAX};
    http1_parser_init(&p, role, flags, &limits);
    http1_parser_start(&p, &again);
    enum http1_event ev = http1_parser_feed(&p, out.data, out.len, &used, &body);
    if (h->minor == 1) { /* 1.0 becomes 1.1, which asks for more */
        FUZZ_CHECK(ev == HTTP1_EV_HEAD && used == out.len && again.n_fields == h->n_fields);
        FUZZ_CHECK(again.framing == h->framing && again.content_length == h->content_length);
        FUZZ_CHECK(again.keep_alive == h->keep_alive && again.upgrade == h->upgrade);
    }
    http1_head_done(&again);
    buf_done(&out);
}

static struct result run(const uint8_t *data, size_t size, size_t step, enum http1_role role, unsigned flags,
                         bool check) {
    struct http1_limits limits = {.body_max = BODY_MAX};
    struct http1_parser p;
    struct http1_head head;
    struct result r = {0};
    size_t at = 0;
    http1_head_init(&head);
    http1_parser_init(&p, role, flags, &limits);
    http1_parser_start(&p, &head);
    for (;;) {
        struct http1_slice body;
        size_t used, piece = size - at < step ? size - at : step;
        r.last = http1_parser_feed(&p, (const char *)data + at, piece, &used, &body);
        FUZZ_CHECK(used <= piece);
        at += used;
        if (r.last == HTTP1_EV_HEAD) {
            r.heads++;
            check_head(&head, role);
            if (check)
                check_rewrite(&head, role, flags);
        } else if (r.last == HTTP1_EV_BODY) {
            FUZZ_CHECK(body.len > 0 && body.data >= (const char *)data + at - used);
            for (size_t i = 0; i < body.len; i++)
                r.body_sum = r.body_sum * 31 + (uint8_t)body.data[i];
            r.body_len += body.len;
            FUZZ_CHECK(r.body_len <= BODY_MAX);
        } else if (r.last != HTTP1_EV_MORE || at == size) {
            break;
        }
    }
    FUZZ_CHECK((r.last == HTTP1_EV_ERROR) == (p.error != HTTP1_OK));
    r.error = p.error;
    r.used = at;
    if (r.last == HTTP1_EV_MORE && http1_parser_eof(&p) == HTTP1_EV_ERROR)
        FUZZ_CHECK(p.error == HTTP1_E_TRUNCATED);
    http1_head_done(&head);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    enum http1_role role = data[0] & 1 ? HTTP1_RESPONSE : HTTP1_REQUEST;
    unsigned flags = (data[0] >> 1) & 7;
    size_t step = 1 + (data[0] >> 4);
    struct result whole = run(data + 1, size - 1, SIZE_MAX, role, flags, true);
    struct result pieces = run(data + 1, size - 1, step, role, flags, false);
    FUZZ_CHECK(whole.heads == pieces.heads && whole.body_len == pieces.body_len && whole.body_sum == pieces.body_sum);
    /* A head over its bound is noticed at the end of the piece that passes it, so the error may differ there. */
    FUZZ_CHECK((whole.last == HTTP1_EV_END) == (pieces.last == HTTP1_EV_END));
    if (whole.last == HTTP1_EV_END)
        FUZZ_CHECK(whole.used == pieces.used);
    return 0;
}
