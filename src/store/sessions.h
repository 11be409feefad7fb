/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: one command each, with the hash of its attachment token. */
#pragma once
#include "base/digest.h"
#include "model/states.h"
#include "store/store.h"

struct session {
    const char *id, *sandbox_id, *process_id, *tenant_id;
    enum session_state state;
    const char *command; /* the request's fields, JSON text */
    const char *attach_url;
    bool has_exit_code, has_signal;
    int64_t pid, exit_code, signal; /* pid 0: none */
    const char *reason;             /* NULL: none */
    int64_t created_ms, created_us, started_ms, exited_ms, expires_ms;
    bool is_expired;
};
int session_row(const struct store_result *res, int row, struct session *ret, struct sp_error *err);

struct session_new_row {
    const char *id, *tenant_id, *sandbox_id, *process_id, *command, *attach_url;
    const uint8_t *token_hash;
    uint64_t expires_in_s;
};
int session_insert(struct store *s, const struct session_new_row *n, struct sp_error *err);
int session_get(struct store *s, const char *id, const char *tenant_id, struct store_result **ret_res,
                struct session *ret, struct sp_error *err);
int session_list(struct store *s, const char *sandbox_id, const struct store_page *page, struct store_result **ret_res,
                 int *ret_n, struct sp_error *err);
/* Started, or created and not yet expired. */
int session_count_open(struct store *s, const char *sandbox_id, uint64_t *ret, struct sp_error *err);

/* For the data plane. */
struct session_attach {
    struct session session;
    enum sandbox_state sandbox_state;
    const char *node_id;        /* may be NULL */
    const char *user, *workdir; /* the template's defaults; may be NULL */
};
/* SP_E_NOT_FOUND no such session; SP_E_UNAUTHORIZED wrong token. */
int session_attach(struct store *s, const char *id, const uint8_t token_hash[SHA256_SIZE],
                   struct store_result **ret_res, struct session_attach *ret, struct sp_error *err);
/* Only forward: started, then exited; what came before is accepted and changes nothing. SP_E_NOT_FOUND. */
int session_report_started(struct store *s, const char *id, int64_t pid, struct sp_error *err);
struct session_exit {
    bool has_exit_code, has_signal;
    int64_t exit_code, signal;
    const char *reason; /* may be NULL */
};
int session_report_exited(struct store *s, const char *id, const struct session_exit *e, struct sp_error *err);
/* Of a sandbox that went away. */
int session_lose_all(struct store *s, const char *sandbox_id, struct sp_error *err);
