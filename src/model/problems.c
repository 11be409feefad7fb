/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the table of problem codes, and its Markdown form. */
#include "model/problems.h"
#include "base/text.h"
#include "model/states.h"
#include <assert.h>
#include <string.h>

static const struct problem_row rows[PROBLEM_CODE_COUNT_] = {
    [PROBLEM_BAD_REQUEST] = {"bad_request", 400, "The HTTP message is not well formed",
                             "from the HTTP layer; with status 414, 417, 501 or 505 where those fit"},
    [PROBLEM_MALFORMED] = {"malformed", 400, "The body is not acceptable JSON",
                           "not JSON, a key given twice, nested too deep, or bytes that are no UTF-8"},
    [PROBLEM_INVALID] =
        {"invalid", 400, "A field breaks its rule",
         "`field` names the field, parameter or header; `detail` the rule, and the nearest known name of "
         "an unknown one"},
    [PROBLEM_UNAUTHORIZED] = {"unauthorized", 401, "No valid token",
                              "the token is missing, unknown, expired or revoked"},
    [PROBLEM_WRONG_TOKEN_KIND] =
        {"wrong_token_kind", 401, "The wrong kind of token",
         "a management token at the data plane, an attachment token at the management API, or an "
         "internal one at either"},
    [PROBLEM_FORBIDDEN] = {"forbidden", 403, "The token lacks the scope", "`detail` names the scope"},
    [PROBLEM_NOT_FOUND] = {"not_found", 404, "No such object",
                           "the tenant has none of this id, or there is no such path"},
    [PROBLEM_TEMPLATE_NOT_FOUND] = {"template_not_found", 404, "No such template",
                                    "neither the tenant nor the shared templates have it"},
    [PROBLEM_METHOD_NOT_ALLOWED] = {"method_not_allowed", 405, "Method not allowed", "`Allow` lists those that are"},
    [PROBLEM_REQUEST_TIMEOUT] = {"request_timeout", 408, "The request came too slowly", "send it again"},
    [PROBLEM_CONFLICT] = {"conflict", 409, "The state does not allow it", "another object or state stands in the way"},
    [PROBLEM_NOT_READY] = {"not_ready", 409, "The sandbox is not running and ready",
                           "wait for the operation in `operation_id`, if there is one"},
    [PROBLEM_OPERATION_IN_PROGRESS] = {"operation_in_progress", 409, "Another operation runs on the sandbox",
                                       "wait for the operation in `operation_id`, or delete the sandbox"},
    [PROBLEM_WRONG_STATE] = {"wrong_state", 409, "The state does not allow it", "`detail` names the state"},
    [PROBLEM_IN_USE] = {"in_use", 409, "It is in use", "`detail` says by what"},
    [PROBLEM_SNAPSHOT_IN_USE] = {"snapshot_in_use", 409, "The snapshot is in use",
                                 "a sandbox is suspended on it, starts from it, or has no other; `detail` names it"},
    [PROBLEM_REPLAY_UNAVAILABLE] =
        {"replay_unavailable", 409, "The secret can no longer be shown",
         "the key was used, but its answer was sealed under a platform secret that has changed "
         "since; use a new key"},
    [PROBLEM_SANDBOX_NOT_RUNNING] = {"sandbox_not_running", 409, "The sandbox is not running", "data plane"},
    [PROBLEM_NOT_STARTED] = {"not_started", 409, "The command has not started", "attach to the event stream first"},
    [PROBLEM_STDIN_CLOSED] = {"stdin_closed", 409, "Standard input is closed", "it was closed, or never kept open"},
    [PROBLEM_NO_PTY] = {"no_pty", 409, "The command has no terminal", "the session was made without `pty`"},
    [PROBLEM_PROCESS_EXITED] = {"process_exited", 409, "The command has ended", "data plane"},
    [PROBLEM_GONE] = {"gone", 410, "It no longer exists",
                      "the sandbox was deleted, the token revoked, or the session expired"},
    [PROBLEM_TOO_LARGE] = {"too_large", 413, "The body is too large", "see the limits"},
    [PROBLEM_UNSUPPORTED_MEDIA_TYPE] = {"unsupported_media_type", 415, "The body is not declared as JSON",
                                        "`Content-Type: application/json` is needed, or the type the route names"},
    [PROBLEM_IDEMPOTENCY_MISMATCH] = {"idempotency_mismatch", 422, "The key was used with another body",
                                      "take a new key, or send the first body again"},
    [PROBLEM_QUOTA_EXCEEDED] = {"quota_exceeded", 429, "A quota is used up",
                                "`field` names the quota; `Retry-After` is a guess"},
    [PROBLEM_RATE_LIMITED] = {"rate_limited", 429, "Too many requests", "wait for `Retry-After` seconds"},
    [PROBLEM_TOO_MANY_STREAMS] = {"too_many_streams", 429, "Too many streams", "data plane"},
    [PROBLEM_HEAD_TOO_LARGE] = {"head_too_large", 431, "The request's head is too large", "from the HTTP layer"},
    [PROBLEM_INTERNAL] = {"internal", 500, "A fault of the platform", "the log has the details"},
    [PROBLEM_UNSUPPORTED] = {"unsupported", 501, "Not offered here", "from the HTTP layer"},
    [PROBLEM_BAD_GATEWAY] = {"bad_gateway", 502, "A part of the platform failed", "data plane"},
    [PROBLEM_NO_CAPACITY] = {"no_capacity", 503, "No node has room",
                             "nothing was created; wait for `Retry-After` seconds"},
    [PROBLEM_UNAVAILABLE] = {"unavailable", 503, "The service cannot answer now",
                             "a mutation may or may not have happened: repeat it with the same `Idempotency-Key`"},
    [PROBLEM_TIMEOUT] = {"timeout", 504, "A part of the platform did not answer in time", "data plane"},
};

const struct problem_row *problem_row(enum problem_code code) {
    assert((unsigned)code < PROBLEM_CODE_COUNT_);
    return &rows[code];
}

const struct problem_row *problem_find(const char *code) {
    for (size_t i = 0; i < PROBLEM_CODE_COUNT_; i++)
        if (strcmp(rows[i].code, code) == 0)
            return &rows[i];
    return NULL;
}

enum problem_code problem_of_error(enum sp_code code) {
    static const enum problem_code map[SP_E_COUNT_] = {
        [SP_OK] = PROBLEM_INTERNAL,
        [SP_E_INVALID] = PROBLEM_INVALID,
        [SP_E_UNAUTHORIZED] = PROBLEM_UNAUTHORIZED,
        [SP_E_FORBIDDEN] = PROBLEM_FORBIDDEN,
        [SP_E_NOT_FOUND] = PROBLEM_NOT_FOUND,
        [SP_E_CONFLICT] = PROBLEM_CONFLICT,
        [SP_E_GONE] = PROBLEM_GONE,
        [SP_E_TOO_LARGE] = PROBLEM_TOO_LARGE,
        [SP_E_IDEMPOTENCY] = PROBLEM_IDEMPOTENCY_MISMATCH,
        [SP_E_QUOTA] = PROBLEM_QUOTA_EXCEEDED,
        [SP_E_INTERNAL] = PROBLEM_INTERNAL,
        [SP_E_UNSUPPORTED] = PROBLEM_UNSUPPORTED,
        [SP_E_NO_CAPACITY] = PROBLEM_NO_CAPACITY,
        [SP_E_UNAVAILABLE] = PROBLEM_UNAVAILABLE,
        [SP_E_TIMEOUT] = PROBLEM_TIMEOUT,
        [SP_E_IO] = PROBLEM_INTERNAL,
        [SP_E_NO_SPACE] = PROBLEM_INTERNAL,
        [SP_E_PROTOCOL] = PROBLEM_BAD_GATEWAY,
        [SP_E_CORRUPT] = PROBLEM_INTERNAL,
        [SP_E_VMM] = PROBLEM_BAD_GATEWAY,
        [SP_E_GUEST] = PROBLEM_BAD_GATEWAY,
    };
    return (unsigned)code < SP_E_COUNT_ ? map[code] : PROBLEM_INTERNAL;
}

int problems_print_markdown(struct buf *out) {
    (void)buf_append_str(out, "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
                              "<!-- Printed from src/model by `space-describe errors`; a test compares. -->\n"
                              "# Errors\n\n"
                              "Every error of both APIs is an `application/problem+json` document:\n"
                              "`{type, title, status, code, detail, field?, operation_id?}`. `code` is stable; "
                              "`detail` is for people. Which codes\n"
                              "a route may answer is `x-error-codes` in `spec/openapi.yaml`.\n\n"
                              "| code | status | meaning | note |\n|---|---|---|---|\n");
    for (size_t i = 0; i < PROBLEM_CODE_COUNT_; i++)
        (void)buf_printf(out, "| `%s` | %d | %s | %s |\n", rows[i].code, rows[i].status, rows[i].title, rows[i].text);
    (void)buf_append_str(
        out, "\n## Why a sandbox or an operation failed\n\n`error.code` of a sandbox or an operation whose state is "
             "`failed`:\n\n| code | meaning |\n|---|---|\n");
    for (unsigned f = FAILURE_NONE + 1; f < FAILURE_COUNT_; f++)
        (void)buf_printf(out, "| `%s` | %s |\n", failure_name((enum failure)f), failure_text((enum failure)f));
    return out->failed ? -1 : 0;
}
