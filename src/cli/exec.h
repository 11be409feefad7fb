/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs one command in a sandbox and follows it: output to our stdout and stderr, stdin when asked, Ctrl-C passed on,
 * reconnect with Last-Event-ID when the stream was cut. Success is judged by the whole rule: an exit event, and no gap,
 * resync or error.
 */
#pragma once
#include "cli/api.h"

struct exec_request {
    const char *sandbox_id;
    const char *const *argv; /* command and arguments, NULL-ended */
    const char *const *env;  /* K=V, NULL-ended; may be NULL */
    const char *cwd, *user;  /* NULL: the template's */
    uint64_t timeout_s;      /* 0: none */
    bool with_stdin;
};
struct exec_session {
    char id[64], attach_url[512], token[96];
};

/* Makes the session; the command starts when it is followed. */
int exec_create(const struct api *a, const struct exec_request *req, struct exec_session *ret, struct sp_error *err);
enum exec_mode { EXEC_FOLLOW, EXEC_WITH_STDIN, EXEC_DETACH /* leave once the process has started */ };
/* Follows until the end. *ret_status: the command's exit code, 128 + signal when one ended it. */
int exec_follow(const struct exec_session *session, enum exec_mode mode, int *ret_status, struct sp_error *err);
