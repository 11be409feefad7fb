/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the http1_*.c files only: byte classes, and the steps of head parsing. */
#pragma once
#include "wire/http1.h"

#define HTTP1_C_TOKEN 1u  /* tchar of RFC 9110 */
#define HTTP1_C_TARGET 2u /* may stand in a request target: visible ASCII without " # < > */
#define HTTP1_C_VALUE 4u  /* may stand in a field value: HTAB, SP, visible ASCII, obs-text */
#define HTTP1_C_HOST 8u   /* may stand in an authority without user info */
extern const uint8_t http1_class[256];

static inline bool http1_is(char c, uint8_t class) {
    return (http1_class[(uint8_t)c] & class) != 0;
}

/* The line is h->text[at .. at+len), without its CRLF; it is NUL-ended in place. */
enum http1_error http1_parse_request_line(struct http1_parser *p, size_t at, size_t len);
enum http1_error http1_parse_status_line(struct http1_parser *p, size_t at, size_t len);
enum http1_error http1_parse_field(struct http1_head *h, size_t at, size_t len);
/* All fields are there: checks them together and derives framing, keep_alive, expect_continue, upgrade. */
enum http1_error http1_finish_head(struct http1_parser *p);
