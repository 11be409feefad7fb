/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one error value of every program. It lives in the caller, never allocates, and crosses process
 * boundaries as it is (sp_error_encode / sp_error_decode in json.h). The code decides HTTP status, exit code and
 * whether a retry makes sense: one row each in error.c.
 *
 * Contract of every fallible function: `int f(..., struct sp_error *err)` returns 0 or a negative sp_code;
 * err may be NULL; on failure outputs are untouched. Context is added going up with sp_error_wrap(); it is
 * logged once, where the decision is made.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum sp_code {
    SP_OK = 0,
    SP_E_INVALID,      /* a field of the caller's input is wrong: names the field and the limit    400 */
    SP_E_UNAUTHORIZED, /* missing, unknown, expired or wrong kind of token                         401 */
    SP_E_FORBIDDEN,    /* token is good but lacks the scope                                        403 */
    SP_E_NOT_FOUND,    /* no such object for this tenant                                           404 */
    SP_E_CONFLICT,     /* state does not allow it, or another operation is running                 409 */
    SP_E_GONE,         /* existed, no longer does                                                  410 */
    SP_E_TOO_LARGE,    /* body, list or header over its limit                                      413 */
    SP_E_IDEMPOTENCY,  /* same Idempotency-Key, other body                                         422 */
    SP_E_QUOTA,        /* tenant quota or rate: retry later                                        429 */
    SP_E_INTERNAL,     /* a fault of ours                                                          500 */
    SP_E_UNSUPPORTED,  /* known, but not offered here                                              501 */
    SP_E_NO_CAPACITY,  /* no node has room                                                         503 */
    SP_E_UNAVAILABLE,  /* a peer we need does not answer; retry                                    503 */
    SP_E_TIMEOUT,      /* a deadline passed                                                        504 */
    SP_E_IO,           /* the host's kernel or disk refused (see err_no)                           500 */
    SP_E_NO_SPACE,     /* host disk full                                                           507 */
    SP_E_PROTOCOL,     /* a peer broke its protocol                                                502 */
    SP_E_CORRUPT,      /* stored data failed its check                                             500 */
    SP_E_VMM,          /* the VMM failed or died                                                   502 */
    SP_E_GUEST,        /* the guest agent refused, failed or is silent                             502 */
    SP_E_COUNT_
};

struct sp_error {
    enum sp_code code;
    int err_no;     /* errno or 0 */
    char op[48];    /* what was being done, e.g. "open", "qmp migrate-incoming"; may be "" */
    char field[64]; /* the input field at fault, e.g. "resources.memory_mib"; may be "" */
    char text[256]; /* for people; one line, no secrets, guest bytes only escaped */
};

/* All of these return -code, so that `return sp_error_set(...)` reads well. err may be NULL. */
int sp_error_set(struct sp_error *err, enum sp_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int sp_error_field(struct sp_error *err, enum sp_code code, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Maps err_no to a code: ENOSPC/EDQUOT → SP_E_NO_SPACE, ENOENT → SP_E_NOT_FOUND, ETIMEDOUT → SP_E_TIMEOUT, else SP_E_IO. */
int sp_error_errno(struct sp_error *err, int err_no, const char *op, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Puts "context: " before the text; keeps code, errno, field. Returns -err->code. */
int sp_error_wrap(struct sp_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

const char *sp_code_name(enum sp_code code); /* stable, e.g. "not_found"; what the API calls `code` */
bool sp_code_from_name(const char *name, enum sp_code *ret_code);
int sp_code_http_status(enum sp_code code);
int sp_code_exit_status(enum sp_code code); /* process exit code of the CLI, sysexits-like, never 0 */
bool sp_code_is_retryable(enum sp_code code);

/* "op: text (strerror)" into buf; always NUL-ended. Returns buf. */
const char *sp_error_format(const struct sp_error *err, char *buf, size_t size);

/* Static analysis sees one file at a time: tell it that these never return success. */
#if defined(__clang_analyzer__) && !defined(ERROR_C_)
#define sp_error_set(...) ((void)sp_error_set(__VA_ARGS__), -(int)SP_E_INTERNAL)
#define sp_error_field(...) ((void)sp_error_field(__VA_ARGS__), -(int)SP_E_INTERNAL)
#define sp_error_errno(...) ((void)sp_error_errno(__VA_ARGS__), -(int)SP_E_INTERNAL)
#define sp_error_wrap(...) ((void)sp_error_wrap(__VA_ARGS__), -(int)SP_E_INTERNAL)
#endif
