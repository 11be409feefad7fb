/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over control's replicas: one http_call at a time per call, the next address after a failure, the first one
 * again at the end (a kept connection that was closed meanwhile looks like a failure of its replica). Owns token and
 * addresses; knows nothing of what the calls mean.
 */
#include "io/internal_client.h"
#include "base/fdio.h"
#include "base/log.h"
#include "base/text.h"
#include "io/http_client.h"
#include "wire/url.h"
#include <assert.h>
#include <fcntl.h>
#include <string.h>

#define TOKEN_MAX 256
#define ORIGIN_MAX 256
#define BODY_MAX (4u * 1024 * 1024)
#define CONNECT_TIMEOUT_MS 2000
#define DEFAULT_TIMEOUT_MS 10000
#define CALLS_MAX 4096

struct internal_client {
    struct http_client *http;
    char origins[INTERNAL_URLS_MAX][ORIGIN_MAX];
    unsigned n_origins;
    unsigned preferred; /* index of the origin that answered last */
    char token[TOKEN_MAX + 1];
    char token_file[512];
    struct internal_call *calls; /* running ones, doubly linked */
};

struct internal_call {
    struct internal_client *client;
    struct internal_call *next, *prev;
    struct http_call *http;
    char *method, *target, *body;
    uint64_t timeout_ms;
    unsigned first, attempts; /* origin of the first attempt; attempts begun */
    bool token_reloaded;
    void (*done)(void *ctx, const struct internal_answer *a);
    void *ctx;
};

static int token_load(struct internal_client *c, char dst[TOKEN_MAX + 1], struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    size_t len;
    if (file_read(AT_FDCWD, c->token_file, TOKEN_MAX + 1, &text, &len, err) < 0)
        return sp_error_wrap(err, "internal token");
    len = strcspn(text, "\r\n");
    text[len] = '\0';
    if (len < 8 || !text_copy(dst, TOKEN_MAX + 1, text) || strspn(dst, " \t") || !http1_is_field_value(dst))
        return sp_error_set(err, SP_E_INVALID, "%s does not hold a token", c->token_file);
    text_wipe(text, len);
    return 0;
}

static int origins_parse(struct internal_client *c, const char *urls, struct sp_error *err) {
    while (*urls) {
        size_t len = strcspn(urls, ",");
        char *dst = c->origins[c->n_origins];
        struct url url;
        if (c->n_origins == INTERNAL_URLS_MAX || len >= ORIGIN_MAX)
            return sp_error_field(err, SP_E_INVALID, "internal_urls", "more than %d addresses, or one too long",
                                  INTERNAL_URLS_MAX);
        memcpy(dst, urls, len);
        dst[len] = '\0';
        if (len && dst[len - 1] == '/')
            dst[len - 1] = '\0';
        if (url_parse(dst, &url, err) < 0)
            return sp_error_wrap(err, "internal_urls");
        if (url.scheme == URL_HTTPS || strcmp(url.target, "/") != 0)
            return sp_error_field(err, SP_E_INVALID, "internal_urls", "must be http://host:port or unix:/path");
        c->n_origins++;
        urls += len + (urls[len] == ',');
    }
    return c->n_origins ? 0 : sp_error_field(err, SP_E_INVALID, "internal_urls", "names no address");
}

int internal_client_new(struct loop *l, const char *urls, const char *token_file, struct internal_client **ret,
                        struct sp_error *err) {
    const struct http_client_options options = {.idle_per_origin = 16, .max_calls = CALLS_MAX};
    struct internal_client *c = calloc(1, sizeof(*c));
    int r;
    if (!c)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    if (!text_copy(c->token_file, sizeof(c->token_file), token_file))
        r = sp_error_field(err, SP_E_INVALID, "internal_token_file", "path too long");
    else if ((r = origins_parse(c, urls, err)) == 0 && (r = token_load(c, c->token, err)) == 0)
        r = http_client_new(l, &options, &c->http, err);
    if (r < 0) {
        internal_client_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

static void call_free(struct internal_call *call) {
    struct internal_client *c = call->client;
    if (call->prev)
        call->prev->next = call->next;
    else
        c->calls = call->next;
    if (call->next)
        call->next->prev = call->prev;
    free(call->method);
    free(call->target);
    free(call->body);
    free(call);
}

struct internal_client *internal_client_free(struct internal_client *c) {
    if (!c)
        return NULL;
    while (c->calls)
        internal_call_cancel(c->calls);
    http_client_free(c->http);
    text_wipe(c->token, sizeof(c->token));
    free(c);
    return NULL;
}

/* Only the statuses of our own codes; what is left of a class counts as its general member. */
static enum sp_code code_of_status(int status) {
    for (int code = SP_E_INVALID; code < SP_E_COUNT_; code++)
        if (sp_code_http_status((enum sp_code)code) == status)
            return (enum sp_code)code;
    return status >= 500 ? SP_E_UNAVAILABLE : status >= 400 ? SP_E_INVALID : SP_E_PROTOCOL;
}

static void problem_parse(const json_t *problem, struct internal_answer *ret) {
    const char *code = "", *field = "", *detail = "";
    (void)json_get_opt_string(problem, "", "code", 1, INTERNAL_CODE_MAX - 1, "", &code, NULL);
    (void)json_get_opt_string(problem, "", "field", 0, sizeof(ret->error.field) - 1, "", &field, NULL);
    (void)json_get_opt_string(problem, "", "detail", 0, 4096, "", &detail, NULL);
    if (!text_is_utf8(code, strlen(code)) || code[strspn(code, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        code = "";
    (void)text_copy(ret->code, sizeof(ret->code), code);
    (void)text_copy(ret->error.field, sizeof(ret->error.field), field);
    (void)text_escape(ret->error.text, sizeof(ret->error.text), detail, strlen(detail));
}

void internal_answer_parse(int status, const char *body, size_t len, json_t **ret_body, struct internal_answer *ret) {
    json_t *object = NULL;
    struct sp_error why = {0};
    int r = json_parse(body, len, BODY_MAX, &object, &why);

    *ret = (struct internal_answer){.status = status};
    *ret_body = NULL;
    if (status >= 200 && status < 300) {
        if (r == 0 && json_is_object(object)) {
            *ret_body = object;
            ret->body = object;
            return;
        }
        sp_error_set(&ret->error, SP_E_PROTOCOL, "control's answer is no JSON object");
    } else {
        if (r == 0 && json_is_object(object))
            problem_parse(object, ret);
        ret->error.code = code_of_status(status);
        if (!ret->error.text[0])
            (void)text_printf(ret->error.text, sizeof(ret->error.text), "control answered %d", status);
    }
    if (!ret->code[0])
        (void)text_copy(ret->code, sizeof(ret->code), sp_code_name(ret->error.code));
    json_decref(object);
}

static void call_finish(struct internal_call *call, const struct internal_answer *a) {
    void (*done)(void *, const struct internal_answer *) = call->done;
    void *ctx = call->ctx;
    call->http = NULL;
    call_free(call);
    done(ctx, a);
}

static int call_attempt(struct internal_call *call, struct sp_error *err);

/* True when the rejected token was an old one, and a newer one is loaded now. */
static bool token_changed(struct internal_client *c) {
    char token[TOKEN_MAX + 1] = "";
    struct sp_error err = {0};
    bool changed;
    if (token_load(c, token, &err) < 0) {
        log_error(LOG_L_WARN, "internal_token_unreadable", &err, NULL);
        return false;
    }
    changed = strcmp(token, c->token) != 0;
    if (changed) {
        memcpy(c->token, token, sizeof(token));
        log_event(LOG_L_INFO, "internal_token_reloaded", NULL);
    }
    text_wipe(token, sizeof(token));
    return changed;
}

/* Another attempt makes sense and was begun. */
static bool call_walk(struct internal_call *call, const struct sp_error *failure, const struct http_response *r) {
    bool again;
    if (!failure && r->status == 401 && !call->token_reloaded) {
        call->token_reloaded = true;
        again = token_changed(call->client);
        call->attempts -= again;
    } else {
        again = (failure || r->status >= 500) && call->attempts <= call->client->n_origins;
    }
    return again && call_attempt(call, NULL) == 0;
}

static void on_done(struct http_call *http, void *user, const struct sp_error *failure, const struct http_response *r) {
    struct internal_call *call = user;
    struct internal_client *c = call->client;
    struct internal_answer answer = {0};
    _cleanup_json_ json_t *body = NULL;
    (void)http;
    call->http = NULL;
    if (call_walk(call, failure, r))
        return;
    if (failure) {
        answer.error = *failure;
        (void)text_copy(answer.code, sizeof(answer.code), sp_code_name(failure->code));
    } else {
        internal_answer_parse(r->status, r->body, r->body_len, &body, &answer);
        if (r->status < 500)
            c->preferred = (call->first + call->attempts - 1) % c->n_origins;
    }
    call_finish(call, &answer);
}

static int call_attempt(struct internal_call *call, struct sp_error *err) {
    static const struct http_call_events events = {.on_done = on_done};
    struct internal_client *c = call->client;
    const struct http_request req = {
        .origin = c->origins[(call->first + call->attempts) % c->n_origins],
        .method = call->method,
        .target = call->target,
        .bearer = c->token,
        .content_type = call->body ? "application/json" : NULL,
        .body = call->body,
        .body_len = call->body ? strlen(call->body) : 0,
        .response_max = BODY_MAX,
        .timeout_ms = call->timeout_ms,
        .connect_timeout_ms = CONNECT_TIMEOUT_MS,
    };
    int r = http_call_start(c->http, &req, &events, call, &call->http, err);
    if (r == 0)
        call->attempts++;
    return r;
}

int internal_call_start(struct internal_client *c, const struct internal_request *req,
                        void (*done)(void *ctx, const struct internal_answer *a), void *ctx, struct internal_call **ret,
                        struct sp_error *err) {
    struct internal_call *call = calloc(1, sizeof(*call));
    int r;
    if (!call)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    *call = (struct internal_call){.client = c,
                                   .next = c->calls,
                                   .method = strdup(req->method),
                                   .target = strdup(req->target),
                                   .body = req->body ? json_print(req->body) : NULL,
                                   .timeout_ms = req->timeout_ms ? req->timeout_ms : DEFAULT_TIMEOUT_MS,
                                   .first = c->preferred,
                                   .done = done,
                                   .ctx = ctx};
    if (c->calls)
        c->calls->prev = call;
    c->calls = call;
    r = call->method && call->target ? call_attempt(call, err) : sp_error_set(err, SP_E_INTERNAL, "out of memory");
    if (r < 0) {
        call_free(call);
        return r;
    }
    *ret = call;
    return 0;
}

struct internal_call *internal_call_cancel(struct internal_call *call) {
    if (call) {
        http_call_cancel(call->http);
        call_free(call);
    }
    return NULL;
}
