/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error value: one table row a code (name, HTTP status, exit status, retryable) and the setters. Text that comes
 * in is made one line of valid UTF-8 here, so that every error can be logged and sent as JSON. Does no I/O.
 */
#define ERROR_C_
#include "base/error.h"
#include "base/text.h"
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct code_row {
    const char *name;
    int http_status;
    int exit_status; /* sysexits.h */
    bool retryable;
};

static const struct code_row code_rows[SP_E_COUNT_] = {
    [SP_OK] = {"ok", 200, 70, false},
    [SP_E_INVALID] = {"invalid", 400, 64, false},
    [SP_E_UNAUTHORIZED] = {"unauthorized", 401, 77, false},
    [SP_E_FORBIDDEN] = {"forbidden", 403, 77, false},
    [SP_E_NOT_FOUND] = {"not_found", 404, 66, false},
    [SP_E_CONFLICT] = {"conflict", 409, 73, false},
    [SP_E_GONE] = {"gone", 410, 66, false},
    [SP_E_TOO_LARGE] = {"too_large", 413, 65, false},
    [SP_E_IDEMPOTENCY] = {"idempotency_mismatch", 422, 65, false},
    [SP_E_QUOTA] = {"quota_exceeded", 429, 75, true},
    [SP_E_INTERNAL] = {"internal", 500, 70, false},
    [SP_E_UNSUPPORTED] = {"unsupported", 501, 69, false},
    [SP_E_NO_CAPACITY] = {"no_capacity", 503, 75, true},
    [SP_E_UNAVAILABLE] = {"unavailable", 503, 69, true},
    [SP_E_TIMEOUT] = {"timeout", 504, 75, true},
    [SP_E_IO] = {"io", 500, 74, false},
    [SP_E_NO_SPACE] = {"no_space", 507, 74, true},
    [SP_E_PROTOCOL] = {"protocol", 502, 76, false},
    [SP_E_CORRUPT] = {"corrupt", 500, 65, false},
    [SP_E_VMM] = {"vmm", 502, 71, false},
    [SP_E_GUEST] = {"guest", 502, 71, false},
};

static const struct code_row *code_row(enum sp_code code) {
    /* A code that came from another process may be out of range: then it is a fault of ours, whatever it was. */
    if ((unsigned)code >= SP_E_COUNT_)
        code = SP_E_INTERNAL;
    return &code_rows[code];
}

/* Cuts an incomplete sequence off the end, then makes what is left one line of valid UTF-8. */
static void clean_line(char *s, size_t len, bool was_cut) {
    size_t i;
    size_t back = 0;
    bool utf8;

    if (was_cut) {
        while (back < 3 && back < len && ((unsigned char)s[len - 1 - back] & 0xc0) == 0x80)
            back++;
        if (!text_is_utf8(s, len) && back < len && (unsigned char)s[len - 1 - back] >= 0xc0) {
            len -= back + 1;
            s[len] = '\0';
        }
    }
    utf8 = text_is_utf8(s, len);
    for (i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\n' || c == '\r' || c == '\t')
            s[i] = ' ';
        else if (c < 0x20 || c == 0x7f || (c >= 0x80 && !utf8))
            s[i] = '?';
    }
}

static void put_line_va(char *dst, size_t size, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));
static void put_line_va(char *dst, size_t size, const char *fmt, va_list ap) {
    int n = vsnprintf(dst, size, fmt, ap);
    if (n < 0) {
        dst[0] = '\0';
        return;
    }
    clean_line(dst, strlen(dst), (size_t)n >= size);
}

static void put_line(char *dst, size_t size, const char *text) {
    size_t len = strlen(text);
    bool cut = len >= size;
    if (cut)
        len = size - 1;
    memmove(dst, text, len);
    dst[len] = '\0';
    clean_line(dst, len, cut);
}

/* The text is formatted before anything is overwritten: an argument may point into *err. */
static int fill(struct sp_error *err, enum sp_code code, int err_no, const char *op, const char *field, const char *fmt,
                va_list ap) __attribute__((format(printf, 6, 0)));
static int fill(struct sp_error *err, enum sp_code code, int err_no, const char *op, const char *field, const char *fmt,
                va_list ap) {
    assert(code != SP_OK);
    if (err) {
        struct sp_error next = {.code = code, .err_no = err_no};
        put_line_va(next.text, sizeof(next.text), fmt, ap);
        put_line(next.op, sizeof(next.op), op);
        put_line(next.field, sizeof(next.field), field);
        *err = next;
    }
    return -(int)code;
}

int sp_error_set(struct sp_error *err, enum sp_code code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int r = fill(err, code, 0, "", "", fmt, ap);
    va_end(ap);
    return r;
}

int sp_error_field(struct sp_error *err, enum sp_code code, const char *field, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int r = fill(err, code, 0, "", field, fmt, ap);
    va_end(ap);
    return r;
}

static enum sp_code code_from_errno(int err_no) {
    switch (err_no) {
    case ENOSPC:
    case EDQUOT:
        return SP_E_NO_SPACE;
    case ENOENT:
        return SP_E_NOT_FOUND;
    case ETIMEDOUT:
        return SP_E_TIMEOUT;
    default:
        return SP_E_IO;
    }
}

int sp_error_errno(struct sp_error *err, int err_no, const char *op, const char *fmt, ...) {
    va_list ap;
    if (err_no < 0)
        err_no = -err_no;
    va_start(ap, fmt);
    int r = fill(err, code_from_errno(err_no), err_no, op, "", fmt, ap);
    va_end(ap);
    return r;
}

int sp_error_wrap(struct sp_error *err, const char *fmt, ...) {
    char text[sizeof(err->text)];
    size_t used;
    va_list ap;

    if (!err)
        return -(int)SP_E_INTERNAL;
    assert(err->code != SP_OK);
    va_start(ap, fmt);
    put_line_va(text, sizeof(text) - 2, fmt, ap); /* leaves room for ": " */
    va_end(ap);
    used = strlen(text);
    memcpy(text + used, ": ", 2);
    used += 2;
    put_line(text + used, sizeof(text) - used, err->text);
    memcpy(err->text, text, strlen(text) + 1);
    return -(int)err->code;
}

const char *sp_code_name(enum sp_code code) {
    return code_row(code)->name;
}

bool sp_code_from_name(const char *name, enum sp_code *ret_code) {
    for (int i = 0; i < SP_E_COUNT_; i++)
        if (strcmp(code_rows[i].name, name) == 0) {
            *ret_code = (enum sp_code)i;
            return true;
        }
    return false;
}

int sp_code_http_status(enum sp_code code) {
    return code_row(code)->http_status;
}

int sp_code_exit_status(enum sp_code code) {
    return code_row(code)->exit_status;
}

bool sp_code_is_retryable(enum sp_code code) {
    return code_row(code)->retryable;
}

/* snprintf that is meant to cut. */
static void clip(char *dst, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void clip(char *dst, size_t size, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(dst, size, fmt, ap) < 0 && size)
        dst[0] = '\0';
    va_end(ap);
}

const char *sp_error_format(const struct sp_error *err, char *buf, size_t size) {
    const char *sep = err->op[0] ? ": " : "";
    if (err->err_no)
        clip(buf, size, "%s%s%s (%s)", err->op, sep, err->text, strerror(err->err_no));
    else
        clip(buf, size, "%s%s%s", err->op, sep, err->text);
    return buf;
}
