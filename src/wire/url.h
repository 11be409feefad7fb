/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request targets and URLs: split into path and query, strict percent-decoding into bounded buffers, query lookup,
 * matching of a path against a routing pattern, absolute URLs for clients. Pure; needs base/{buf,error} only.
 */
#pragma once
#include "base/buf.h"
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define URL_PARAM_MAX 255 /* bytes of one decoded path parameter */
#define URL_PARAMS_MAX 4  /* parameters of a pattern */
#define URL_HOST_MAX 255

/* An origin-form target cut in two; borrows, nothing decoded. query is "" (len 0) when there is none. */
struct url_target {
    const char *path, *query;
    size_t path_len, query_len;
};
/* False unless it starts with '/'. */
bool url_target_split(const char *target, struct url_target *ret);

/* Decodes %XX into dst (NUL-ended). False for a bad escape, a NUL byte inside, or more than size - 1 bytes.
 * plus_is_space is for query strings. *ret_len may be NULL. */
bool url_decode(char *dst, size_t size, const char *src, size_t len, bool plus_is_space, size_t *ret_len);
/* A path fit for routing: starts with '/', no empty segment but a last one, good escapes, no NUL, no '.' or '..'
 * segment in any spelling, no encoded '/' or '\'. */
bool url_path_is_clean(const char *path, size_t len);

/* Parameters out of a path; names borrow from the pattern, tail from the path. */
struct url_params {
    unsigned n;
    struct {
        const char *name;
        size_t name_len;
        char value[URL_PARAM_MAX + 1];
    } item[URL_PARAMS_MAX];
    const char *tail; /* what "{...}" matched, raw, with its leading '/' or ""; NULL without one */
    size_t tail_len;
};
/* Pattern: "/v1/sandboxes/{id}/pause"; {name} takes one non-empty segment, decoded; a last segment "{...}" takes the
 * whole rest, undecoded and unchecked ("/x/{...}" matches "/x" and "/x/…"). Literal segments compare by bytes,
 * undecoded. False when it does not match or a parameter does not decode or fit; *ret is then undefined. */
bool url_match(const char *pattern, const char *path, size_t len, struct url_params *ret);
const char *url_param(const struct url_params *p, const char *name); /* NULL when the pattern has none of that name */

/* Walks "a=1&b=2": 1 a pair, 0 the end, -SP_E_INVALID a bad escape or a text that does not fit. Start with pos = 0.
 * Empty pairs are skipped; a key without '=' has the value "". */
int url_query_next(const char *query, size_t len, size_t *pos, char *key, size_t key_size, char *value,
                   size_t value_size);
/* 1 found, 0 absent, -SP_E_INVALID bad escape, given twice or value does not fit. */
int url_query_get(const char *query, size_t len, const char *key, char *value, size_t size);

/* For building targets; 0 or the buffer's error. */
int url_put_encoded(struct buf *out, const char *s); /* everything but unreserved becomes %XX, '/' too */
int url_put_path(struct buf *out, const char *s);    /* the same, '/' stays */
/* "?key=value" or "&key=value", depending on whether out holds a '?' already. */
int url_put_query(struct buf *out, const char *key, const char *value);

enum url_scheme { URL_HTTP, URL_HTTPS, URL_UNIX };
struct url {
    enum url_scheme scheme;
    char host[URL_HOST_MAX + 1]; /* name or address without brackets, lower case; URL_UNIX: the socket's path */
    uint16_t port;               /* 80 / 443 when not given; 0 for URL_UNIX */
    const char *target;          /* borrows from the text; "/" when it has none. URL_UNIX: always "/" */
};
/* "http://host[:port][/path[?query]]", "https://…", "unix:/absolute/path". No user info, no fragment, no spaces. */
int url_parse(const char *text, struct url *ret, struct sp_error *err);
/* "host", "host:port", "[v6]:port". *ret_port = fallback_port when there is none. Host is lower-cased, without
 * brackets. */
bool url_parse_authority(const char *text, uint16_t fallback_port, char host[URL_HOST_MAX + 1], uint16_t *ret_port);
