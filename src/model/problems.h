/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `code`s of problem documents, one row each: HTTP status, title, meaning. docs/reference/errors.md is printed from
 * it and a test compares it with ErrorCode in spec/openapi.yaml. Finer than sp_code: what a client can tell apart.
 */
#pragma once
#include "base/buf.h"
#include "base/error.h"
#include <stdbool.h>

enum problem_code {
    PROBLEM_BAD_REQUEST,
    PROBLEM_MALFORMED,
    PROBLEM_INVALID,
    PROBLEM_UNAUTHORIZED,
    PROBLEM_WRONG_TOKEN_KIND,
    PROBLEM_FORBIDDEN,
    PROBLEM_NOT_FOUND,
    PROBLEM_TEMPLATE_NOT_FOUND,
    PROBLEM_METHOD_NOT_ALLOWED,
    PROBLEM_REQUEST_TIMEOUT,
    PROBLEM_CONFLICT,
    PROBLEM_NOT_READY,
    PROBLEM_OPERATION_IN_PROGRESS,
    PROBLEM_WRONG_STATE,
    PROBLEM_IN_USE,
    PROBLEM_SNAPSHOT_IN_USE,
    PROBLEM_REPLAY_UNAVAILABLE,
    PROBLEM_SANDBOX_NOT_RUNNING,
    PROBLEM_NOT_STARTED,
    PROBLEM_STDIN_CLOSED,
    PROBLEM_NO_PTY,
    PROBLEM_PROCESS_EXITED,
    PROBLEM_GONE,
    PROBLEM_TOO_LARGE,
    PROBLEM_UNSUPPORTED_MEDIA_TYPE,
    PROBLEM_IDEMPOTENCY_MISMATCH,
    PROBLEM_QUOTA_EXCEEDED,
    PROBLEM_RATE_LIMITED,
    PROBLEM_TOO_MANY_STREAMS,
    PROBLEM_HEAD_TOO_LARGE,
    PROBLEM_INTERNAL,
    PROBLEM_UNSUPPORTED,
    PROBLEM_BAD_GATEWAY,
    PROBLEM_NO_CAPACITY,
    PROBLEM_UNAVAILABLE,
    PROBLEM_TIMEOUT,
    PROBLEM_CODE_COUNT_
};

struct problem_row {
    const char *code;
    int status;
    const char *title; /* a few words */
    const char *text;  /* a sentence for the docs */
};
const struct problem_row *problem_row(enum problem_code code);
/* The row of a stable code, or NULL. */
const struct problem_row *problem_find(const char *code);
/* The code a plain error is shown as. */
enum problem_code problem_of_error(enum sp_code code);
/* The whole of docs/reference/errors.md. */
int problems_print_markdown(struct buf *out);
