/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: prepare a command, list, read. The data plane's side of them is handle_attach.c. */
#include "base/text.h"
#include "control/accepted.h"
#include "control/handlers.h"
#include "control/render.h"
#include "model/limits.h"
#include "model/policy.h"
#include "store/sandboxes.h"
#include "store/sessions.h"
#include <string.h>

#define SESSIONS_RETRY_S 2

static bool wakes_on_traffic(const struct sandbox *b) {
    struct lifecycle_policy p = lifecycle_policy_default();
    _cleanup_json_ json_t *fields = json_of_text(b->lifecycle, json_object());
    lifecycle_policy_merge(&p, fields);
    return p.wake_on_traffic;
}

/* Traffic wakes it, or is refused; on one that is waking already the session waits with it. */
static int check_asleep(struct request *rq, const struct sandbox *b) {
    if (b->operation_id)
        (void)text_copy(rq->problem_operation, sizeof(rq->problem_operation), b->operation_id);
    if (!wakes_on_traffic(b))
        return b->state == SANDBOX_WAKING ? request_problem(rq, PROBLEM_NOT_READY, "", "the sandbox is waking")
                                          : request_problem(rq, PROBLEM_SANDBOX_NOT_RUNNING, "",
                                                            "the sandbox is %s and lifecycle.wake_on_traffic is off",
                                                            sandbox_state_name(b->state));
    if (!b->gateway_url)
        return request_problem(rq, PROBLEM_NOT_READY, "", "the sandbox is %s and its node is not known",
                               sandbox_state_name(b->state));
    if (b->state == SANDBOX_WAKING)
        return 0;
    if (b->operation_id)
        return request_problem(rq, PROBLEM_NOT_READY, "", "the sandbox is %s and has an operation running",
                               sandbox_state_name(b->state));
    return lifecycle_wake_for_traffic(rq, b);
}

/* Running and ready, or on its way there, else why not. */
static int check_usable(struct request *rq, const struct sandbox *b) {
    if (b->state == SANDBOX_DELETING || b->state == SANDBOX_DELETED)
        return request_problem(rq, PROBLEM_GONE, "", "the sandbox is %s", sandbox_state_name(b->state));
    if (b->state == SANDBOX_PAUSED || b->state == SANDBOX_SUSPENDED || b->state == SANDBOX_WAKING)
        return check_asleep(rq, b);
    if (b->operation_id)
        (void)text_copy(rq->problem_operation, sizeof(rq->problem_operation), b->operation_id);
    if (b->state == SANDBOX_FAILED)
        return request_problem(rq, PROBLEM_NOT_READY, "", "the sandbox has failed: %s", b->error_code);
    if (b->state != SANDBOX_RUNNING)
        return request_problem(rq, PROBLEM_NOT_READY, "", "the sandbox is %s", sandbox_state_name(b->state));
    if (!b->ready || !b->gateway_url)
        return request_problem(rq, PROBLEM_NOT_READY, "", "the sandbox is running but its agent does not answer");
    return 0;
}

static int check_quota(struct request *rq, const struct sandbox *b) {
    uint64_t open = 0, max = rq->auth.max_sessions_per_sandbox;
    int r = session_count_open(rq->db, b->id, &open, &rq->err);
    if (r < 0 || open < max)
        return r;
    rq->retry_after_s = SESSIONS_RETRY_S;
    return request_problem(rq, PROBLEM_QUOTA_EXCEEDED, "max_sessions_per_sandbox",
                           "the sandbox has %llu open sessions of %llu", (unsigned long long)open,
                           (unsigned long long)max);
}

static int answer_created(struct request *rq, const char *id, const char *token) {
    _cleanup_result_ struct store_result *res = NULL;
    struct session x;
    int r = session_get(rq->db, id, rq->auth.tenant_id, &res, &x, &rq->err);
    if (r < 0)
        return r;
    json_t *o = json_object();
    put_text(o, "session_id", x.id);
    put_text(o, "sandbox_id", x.sandbox_id);
    put_text(o, "process_id", x.process_id);
    put_text(o, "attach_url", x.attach_url);
    put_text(o, "attachment_token", token);
    put_time(o, "expires_at", x.expires_ms);
    rq->answer = o;
    rq->status = 201;
    return 0;
}

static int insert(struct request *rq, const struct sandbox *b) {
    _cleanup_free_ char *command = json_print(rq->body);
    char id[ID_SIZE], process_id[ID_SIZE], token[TOKEN_SIZE], url[512];
    uint8_t hash[SHA256_SIZE];
    size_t base = strlen(b->gateway_url);
    id_new(id, ID_SESSION);
    id_new(process_id, ID_PROCESS);
    token_new(token, TOKEN_ATTACHMENT);
    sha256_memory(token, strlen(token), hash);
    if (base > 0 && b->gateway_url[base - 1] == '/')
        base--;
    if (base > 300 || !text_printf(url, sizeof(url), "%.*s/v1/sessions/%s/events", (int)base, b->gateway_url, id))
        return sp_error_set(&rq->err, SP_E_INTERNAL, "the gateway's URL is too long");
    struct session_new_row n = {.id = id,
                                .tenant_id = rq->auth.tenant_id,
                                .sandbox_id = b->id,
                                .process_id = process_id,
                                .command = command,
                                .attach_url = url,
                                .token_hash = hash,
                                .expires_in_s = LIMIT_VALUE(attachment_seconds)};
    int r = session_insert(rq->db, &n, &rq->err);
    if (r == 0)
        r = sandbox_touch(rq->db, b->id, &rq->err);
    if (r == 0)
        r = answer_created(rq, id, token);
    (void)text_copy(rq->object_id, sizeof(rq->object_id), id);
    text_wipe(token, sizeof(token));
    return r;
}

int handle_session_create(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct sandbox b;
    /* The lock keeps the count of sessions right, and the sandbox from being deleted meanwhile. */
    int r = sandbox_get(rq->db, request_param(rq, "sandbox_id"), rq->auth.tenant_id, true, &res, &b, &rq->err);
    if (r == 0)
        r = check_quota(rq, &b);
    if (r == 0)
        r = check_usable(rq, &b);
    return r < 0 ? r : insert(rq, &b);
}

int handle_session_get(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct session x;
    int r = session_get(rq->db, request_param(rq, "session_id"), rq->auth.tenant_id, &res, &x, &rq->err);
    if (r < 0)
        return r;
    rq->answer = render_session(&x);
    rq->status = 200;
    return 0;
}

int handle_session_list(struct request *rq) {
    _cleanup_result_ struct store_result *sandbox_res = NULL, *res = NULL;
    struct store_page page = request_page(rq);
    char cursor[STORE_CURSOR_SIZE] = "";
    struct sandbox b;
    int n = 0;
    int r = sandbox_get(rq->db, request_param(rq, "sandbox_id"), rq->auth.tenant_id, false, &sandbox_res, &b, &rq->err);
    if (r == 0)
        r = session_list(rq->db, b.id, &page, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    for (int i = 0; i < n && r == 0; i++) {
        struct session x;
        r = session_row(res, i, &x, &rq->err);
        if (r == 0)
            (void)json_array_append_new(items, render_session(&x));
        if (r == 0 && i + 1 == (int)page.limit)
            (void)store_cursor_format(cursor, x.created_us, x.id);
    }
    rq->answer = render_page(items, cursor);
    rq->status = 200;
    return r;
}
