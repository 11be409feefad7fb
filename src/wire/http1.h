/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict HTTP/1.1 codec, sans-I/O: bytes in, events out; and the serialisers. Used by the server and client in
 * src/io, by the guest agent (musl) and by the egress proxy. Needs base/buf only.
 *
 * Refused, never guessed at: two Content-Length (even equal ones), Content-Length with Transfer-Encoding, any
 * Transfer-Encoding but exactly "chunked", obs-fold, bare LF or CR, space before the colon, control bytes, names that
 * are no token, no Host or two in HTTP/1.1, doubled fields that must be single (Authorization, Content-Type, …),
 * targets that are not in the allowed form, trailing bytes after a chunk, over-long anything. HTTP/1.0 is
 * understood: it never keeps the connection and never has Transfer-Encoding. Trailers are checked and dropped.
 */
#pragma once
#include "base/buf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP1_HEAD_MAX 16384     /* default bound on start line + fields, bytes; never above 65535 */
#define HTTP1_TARGET_MAX 8192    /* default bound on the request target, bytes */
#define HTTP1_FIELDS_MAX 64      /* fixed: fields of a head */
#define HTTP1_METHOD_MAX 24      /* fixed: bytes of a method */
#define HTTP1_TRAILER_MAX 4096   /* fixed: bytes of all trailer lines */
#define HTTP1_CHUNK_LINE_MAX 256 /* fixed: bytes of one chunk-size line with its extensions */
#define HTTP1_CHUNK_EXT_MAX 8192 /* fixed: bytes of all chunk extensions of a message */

enum http1_role { HTTP1_REQUEST, HTTP1_RESPONSE };
enum http1_form { HTTP1_FORM_ORIGIN, HTTP1_FORM_ABSOLUTE, HTTP1_FORM_AUTHORITY, HTTP1_FORM_ASTERISK };
enum http1_framing { HTTP1_BODY_NONE, HTTP1_BODY_LENGTH, HTTP1_BODY_CHUNKED, HTTP1_BODY_UNTIL_CLOSE };

/* Flags of http1_parser_init: target forms beside origin-form. */
#define HTTP1_ALLOW_ABSOLUTE 1u
#define HTTP1_ALLOW_AUTHORITY 2u /* CONNECT only */
#define HTTP1_ALLOW_ASTERISK 4u  /* OPTIONS only */

/* A head. The caller owns it, the parser fills it; it stays valid and unchanged after HTTP1_EV_HEAD until the caller
 * resets or frees it, whatever happens to the parser. Texts are NUL-ended inside `text` and hold no NUL themselves. */
struct http1_head {
    struct buf text;
    struct http1_field {
        uint16_t name, name_len, value, value_len; /* offsets into text.data */
    } fields[HTTP1_FIELDS_MAX];
    unsigned n_fields;
    uint16_t method_at, target_at, target_len, reason_at;
    enum http1_form form;       /* requests */
    int status;                 /* responses: 100..599 */
    int minor;                  /* HTTP/1.<minor>: 0 or 1 */
    enum http1_framing framing; /* of the body that follows */
    uint64_t content_length;    /* HTTP1_BODY_LENGTH; for a response to HEAD what was announced, else 0 */
    bool has_content_length;    /* the field was there */
    bool keep_alive;            /* the connection can be used after this message */
    bool expect_continue;       /* request: the client waits for "100 Continue" before the body */
    bool upgrade;               /* Connection: upgrade and an Upgrade field are both there */
};

void http1_head_init(struct http1_head *h);
void http1_head_reset(struct http1_head *h);                 /* empties, keeps memory */
void http1_head_done(struct http1_head *h);                  /* frees; safe on a zeroed struct */
const char *http1_method(const struct http1_head *h);        /* requests, else "" */
const char *http1_target(const struct http1_head *h);        /* raw, as sent; requests, else "" */
const char *http1_reason_phrase(const struct http1_head *h); /* responses, as sent; may be "" */
/* Value of the first field of that name (any case), or NULL. */
const char *http1_get(const struct http1_head *h, const char *name);
unsigned http1_count(const struct http1_head *h, const char *name);
/* i < h->n_fields, asserted. */
const char *http1_field_name(const struct http1_head *h, unsigned i);
const char *http1_field_value(const struct http1_head *h, unsigned i);
/* True when a field called `name` holds `token` in its comma-separated lists; both compared in any case. */
bool http1_has_token(const struct http1_head *h, const char *name, const char *token);
/* For proxies: true when the field belongs to one hop: the standard ones (Connection, Keep-Alive, Proxy-*, TE, Trailer,
 * Transfer-Encoding, Upgrade) and those the Connection field names. Content-Length is not among them: the serialiser
 * of the next hop frames anew. */
bool http1_is_hop_by_hop(const struct http1_head *h, const char *name);
bool http1_is_token(const char *s);       /* non-empty, RFC 9110 token */
bool http1_is_field_value(const char *s); /* no control bytes but HTAB */

/* Why a message was refused; one row each in http1.c gives the HTTP status to answer with and a text. */
enum http1_error {
    HTTP1_OK = 0,
    HTTP1_E_LINE_ENDING,    /* bare LF or CR                                    400 */
    HTTP1_E_START_LINE,     /* not "METHOD SP target SP HTTP/1.x" / status line  400 */
    HTTP1_E_VERSION,        /* not HTTP/1.0 or 1.1                               505 */
    HTTP1_E_TARGET,         /* form not allowed or forbidden byte                400 */
    HTTP1_E_TARGET_LONG,    /*                                                   414 */
    HTTP1_E_FIELD_NAME,     /* no token, space before colon, no colon            400 */
    HTTP1_E_FIELD_VALUE,    /* control byte                                      400 */
    HTTP1_E_FOLD,           /* obs-fold                                          400 */
    HTTP1_E_HEAD_LONG,      /* over head_max                                     431 */
    HTTP1_E_FIELDS,         /* more than HTTP1_FIELDS_MAX                        431 */
    HTTP1_E_HOST,           /* none, two, or not an authority                    400 */
    HTTP1_E_DOUBLED,        /* a single-valued field given twice                 400 */
    HTTP1_E_CONTENT_LENGTH, /* not one decimal number below 2^63                 400 */
    HTTP1_E_TRANSFER,       /* Transfer-Encoding is not exactly "chunked"        501 */
    HTTP1_E_BOTH_LENGTHS,   /* Content-Length and Transfer-Encoding              400 */
    HTTP1_E_NO_LENGTH,      /* either where none may be (1xx, 204, HTTP/1.0)     400 */
    HTTP1_E_EXPECT,         /* unknown expectation                               417 */
    HTTP1_E_CHUNK,          /* malformed chunk or trailer                        400 */
    HTTP1_E_CHUNK_LONG,     /* chunk line, extensions or trailers over the limit 400 */
    HTTP1_E_BODY_LONG,      /* body over body_max                                413 */
    HTTP1_E_TRUNCATED,      /* the peer closed inside a message                  400 */
    HTTP1_E_MEMORY,         /*                                                   503 */
    HTTP1_E_COUNT_
};
int http1_error_status(enum http1_error e);
const char *http1_error_text(enum http1_error e);

struct http1_limits {
    size_t head_max;   /* 0: HTTP1_HEAD_MAX */
    size_t target_max; /* 0: HTTP1_TARGET_MAX */
    uint64_t body_max; /* bytes of body after decoding; UINT64_MAX: none. http1_parser_set_body_max changes it */
};

enum http1_event {
    HTTP1_EV_MORE,  /* all input is used; feed more */
    HTTP1_EV_HEAD,  /* the head is complete; feed the rest again */
    HTTP1_EV_BODY,  /* *ret_body is a piece of body inside the input; feed the rest again */
    HTTP1_EV_END,   /* the message is over; the rest belongs to the next one: http1_parser_start() before feeding */
    HTTP1_EV_ERROR, /* sticky; see parser->error */
};

struct http1_slice {
    const char *data;
    size_t len;
};

struct http1_parser {
    enum http1_error error;
    /* private: */
    enum http1_role role;
    unsigned flags;
    struct http1_limits limits;
    struct http1_head *head;
    int state;
    bool no_body;        /* answer to HEAD */
    size_t line_at;      /* start of the current line in head->text */
    uint64_t left;       /* bytes left of the body or of the chunk */
    uint64_t body_total; /* decoded so far */
    size_t ext_total, trailer_total;
    char line[HTTP1_CHUNK_LINE_MAX + 2];
    size_t line_len;
    int trailer_state;
};

/* limits NULL: defaults and body_max UINT64_MAX. Owns no memory. */
void http1_parser_init(struct http1_parser *p, enum http1_role role, unsigned flags, const struct http1_limits *limits);
/* Begins a message into `head` (reset here; borrowed until END or the next start). Clears no error. */
void http1_parser_start(struct http1_parser *p, struct http1_head *head);
/* The next response answers a HEAD request: no body whatever its fields say. Call after http1_parser_start. */
void http1_parser_no_body(struct http1_parser *p);
/* A tighter bound for this message; after HTTP1_EV_HEAD. A longer Content-Length fails at the next feed. */
void http1_parser_set_body_max(struct http1_parser *p, uint64_t max);
/* One step. *ret_used ≤ len bytes were taken. With len = 0 still yields a pending END. A 1xx response is a message of
 * its own (HEAD, END); after 101 the rest of the input is the new protocol's. */
enum http1_event http1_parser_feed(struct http1_parser *p, const char *data, size_t len, size_t *ret_used,
                                   struct http1_slice *ret_body);
/* The peer closed. END: that completed an until-close body; MORE: between messages, clean; ERROR: truncated. */
enum http1_event http1_parser_eof(struct http1_parser *p);
/* True before the first byte of a message. */
bool http1_parser_is_idle(const struct http1_parser *p);

/* Serialisers. 0, -E2BIG/-ENOMEM from the buffer, -EINVAL for text that could break the framing (a control byte in a
 * value, no token as a name, a space in a target). Every failure also sets out->failed, so a chain is checked once. */
int http1_put_request_line(struct buf *out, const char *method, const char *target);
int http1_put_status_line(struct buf *out, int status); /* HTTP/1.1, standard reason */
int http1_put_field(struct buf *out, const char *name, const char *value);
int http1_put_field_u64(struct buf *out, const char *name, uint64_t value);
int http1_put_head_end(struct buf *out);
/* One chunk; len = 0 puts nothing (it would end the body). */
int http1_put_chunk(struct buf *out, const void *data, size_t len);
int http1_put_last_chunk(struct buf *out);
/* "1a2b\r\n" without NUL, for writing a chunk without copying it; the data is followed by "\r\n". Returns its
 * length. */
#define HTTP1_CHUNK_PREFIX_MAX 20
size_t http1_chunk_prefix(char dst[HTTP1_CHUNK_PREFIX_MAX], size_t len);
const char *http1_reason(int status); /* "OK"; "Unknown" for others */
