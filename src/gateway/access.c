/* SPDX-License-Identifier: Apache-2.0 */
/* Token checks, control's attach call, and what its refusals mean to a client. */
#include "gateway/access.h"
#include "base/log.h"
#include "base/text.h"
#include <string.h>

#define TOKEN_PREFIX_LEN 4
#define HOLD_MS 30000u /* for a sandbox that is waking */
#define ASK_FIRST_MS 20u
#define ASK_MAX_MS 200u
#define TOKEN_LEN (TOKEN_PREFIX_LEN + 43) /* 32 random bytes in base64url */

struct access {
    struct gateway *gateway;
    struct grant_key key;
    struct internal_call *call; /* or, while the sandbox wakes, the timer to ask again */
    struct loop_timer *again;
    uint64_t hold_until_ms, wait_ms;
    void (*done)(void *ctx, struct grant *grant, const struct problem *problem);
    void *ctx;
};

static int refuse(struct problem *p, int status, const char *code, const char *field, const char *text) {
    problem_set(p, status, code, field, "%s", text);
    return -1;
}

/* The session named in the path and the hash of the token. */
static int read_key(struct exchange *x, struct grant_key *ret, struct problem *p) {
    const char *id = exchange_param(x, "session_id"), *token = exchange_bearer(x);
    if (!token)
        return refuse(p, 401, "unauthorized", "Authorization",
                      "the Authorization header must carry the attachment token");
    if (text_starts_with(token, "spm_") || text_starts_with(token, "spi_"))
        return refuse(p, 401, "wrong_token_kind", "Authorization",
                      "the data plane takes attachment tokens (spa_) only");
    if (!text_starts_with(token, "spa_") || strlen(token) != TOKEN_LEN)
        return refuse(p, 401, "unauthorized", "Authorization", "not an attachment token");
    if (!id || !id_is_valid(id, "ses") || !text_copy(ret->session_id, sizeof(ret->session_id), id))
        return refuse(p, 404, "not_found", "session_id", "no such session");
    sha256_memory(token, TOKEN_LEN, ret->token);
    return 0;
}

/* Refusals of control that are the client's business; the code is control's own if it is one of the contract. */
static const struct {
    int status;
    const char *code, *field, *text;
} refusals[] = {
    {401, "unauthorized", "Authorization", "the attachment token is unknown, expired or of another session"},
    {404, "not_found", "session_id", "no such session"},
    {409, "sandbox_not_running", "", "the sandbox is not running"}, /* control's not_ready too, once held long enough */
    {410, "gone", "", "the session has expired, or its sandbox is gone"},
};

static void translate_refusal(const struct internal_answer *a, struct problem *p) {
    bool is_ours = strcmp(a->error.field, "Authorization") == 0; /* the internal token is what was refused */
    for (size_t i = 0; i < ARRAY_SIZE(refusals); i++)
        if (refusals[i].status == a->status && !is_ours) {
            problem_set(p, a->status, refusals[i].code, refusals[i].field, "%s", refusals[i].text);
            return;
        }
    log_error(is_ours ? LOG_L_ERROR : LOG_L_WARN, "attach_lookup_failed", &a->error, NULL);
    problem_set(p, 503, "unavailable", "", "the control plane does not answer");
}

/* A grant out of control's answer, for this gateway. */
static struct grant *take_grant(struct access *a, const json_t *body, struct problem *p) {
    struct sp_error err = {0};
    struct grant *grant;
    if (grant_parse(body, a->key.session_id, &grant, &err) < 0) {
        log_error(LOG_L_ERROR, "attach_answer_malformed", &err, "session_id", a->key.session_id, NULL);
        problem_set(p, 503, "unavailable", "", "the control plane gave a malformed answer");
        return NULL;
    }
    if (strcmp(grant->node_id, a->gateway->settings->node_id) != 0) {
        problem_set(p, 503, "unavailable", "", "the session is served by the gateway of node %s", grant->node_id);
        return grant_unref(grant);
    }
    return grant;
}

static int ask_control(struct access *a, struct problem *p);

static void finish(struct access *a, struct grant *grant, const struct problem *problem) {
    a->again = loop_timer_free(a->again);
    a->done(a->ctx, grant, problem);
    free(a);
}

static void ask_again(void *ctx) {
    struct access *a = ctx;
    struct problem problem = {0};
    if (ask_control(a, &problem) < 0)
        finish(a, NULL, &problem);
}

/* The sandbox is waking: it will be asked after once more. */
static bool hold(struct access *a, const struct internal_answer *answer) {
    uint64_t now = loop_now_ms(a->gateway->loop);
    if (answer->status != 409 || strcmp(answer->code, "not_ready") != 0)
        return false;
    if (!a->again) {
        a->again = loop_timer_new(a->gateway->loop, ask_again, a);
        a->hold_until_ms = now + HOLD_MS;
        a->wait_ms = ASK_FIRST_MS;
    } else
        a->wait_ms = a->wait_ms * 2 < ASK_MAX_MS ? a->wait_ms * 2 : ASK_MAX_MS;
    if (now >= a->hold_until_ms)
        return false;
    loop_timer_start(a->again, a->wait_ms, 0);
    return true;
}

static void on_answer(void *ctx, const struct internal_answer *answer) {
    struct access *a = ctx;
    struct problem problem = {0};
    struct grant *grant = NULL;
    a->call = NULL;
    if (hold(a, answer))
        return;
    if (answer->body)
        grant = take_grant(a, answer->body, &problem);
    else
        translate_refusal(answer, &problem);
    if (grant)
        grant_cache_put(a->gateway->grants, &a->key, grant, loop_now_ms(a->gateway->loop));
    finish(a, grant, grant ? NULL : &problem);
    grant_unref(grant);
}

static int ask_control(struct access *a, struct problem *p) {
    char hex[SHA256_HEX_SIZE];
    struct sp_error err = {0};
    _cleanup_json_ json_t *body = NULL;
    const struct internal_request req = {.method = "POST", .target = "/internal/v1/attach", .timeout_ms = 5000};
    struct internal_request filled = req;
    text_hex(hex, a->key.token, SHA256_SIZE);
    body = json_pack("{s:s, s:s}", "session_id", a->key.session_id, "token_sha256", hex);
    filled.body = body;
    if (!body || internal_call_start(a->gateway->control, &filled, on_answer, a, &a->call, &err) < 0)
        return refuse(p, 503, "unavailable", "", "too many requests at once");
    return 0;
}

int access_start(struct gateway *g, struct exchange *x, bool fresh,
                 void (*done)(void *ctx, struct grant *grant, const struct problem *problem), void *ctx,
                 struct access **ret, struct grant **ret_grant, struct problem *ret_problem) {
    struct grant_key key = {0};
    struct access *a;
    if (read_key(x, &key, ret_problem) < 0)
        return -1;
    if (!fresh && (*ret_grant = grant_cache_get(g->grants, &key, loop_now_ms(g->loop))))
        return 1;
    a = calloc(1, sizeof(*a));
    if (!a)
        return refuse(ret_problem, 503, "unavailable", "", "out of memory");
    *a = (struct access){.gateway = g, .key = key, .done = done, .ctx = ctx};
    if (ask_control(a, ret_problem) < 0) {
        free(a);
        return -1;
    }
    *ret = a;
    return 0;
}

struct access *access_cancel(struct access *a) {
    if (a) {
        internal_call_cancel(a->call);
        a->again = loop_timer_free(a->again);
        free(a);
    }
    return NULL;
}
