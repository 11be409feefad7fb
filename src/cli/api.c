/* SPDX-License-Identifier: Apache-2.0 */
/* Calls, retries, waiting and paging of the management API. */
#include "cli/api.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/random.h"
#include "base/text.h"
#include "cli/output.h"
#include "io/http_client.h"
#include <fcntl.h>
#include <string.h>
#include <time.h>

#define API_TRIES 4
#define API_ANSWER_MAX (16u << 20)
#define API_ITEMS_MAX 100000
#define API_WAIT_S 30

static int open_file(struct api *a, const struct settings *s, struct sp_error *err) {
    char path[512];
    _cleanup_free_ char *text = NULL;
    _cleanup_json_ json_t *j = NULL;
    const char *url, *token;
    size_t len;
    struct sp_error why = {0};
    if (!text_printf(path, sizeof path, "%s/etc/client.json", s->state_dir))
        return sp_error_field(err, SP_E_INVALID, "state_dir", "is too long");
    if (file_read(AT_FDCWD, path, 4096, &text, &len, &why) < 0)
        return sp_error_set(err, why.code == SP_E_NOT_FOUND ? SP_E_UNAVAILABLE : SP_E_FORBIDDEN,
                            "%s: run `sudo space up` first, or set SPACE_API_URL and SPACE_TOKEN",
                            why.code == SP_E_NOT_FOUND ? "SPACE is not running here" : "client.json is for root only");
    int r = json_parse(text, len, 4096, &j, err);
    if (r < 0 || (r = json_get_string(j, "", "api_url", 1, sizeof a->url - 1, &url, err)) < 0 ||
        (r = json_get_string(j, "", "token", 1, sizeof a->token - 1, &token, err)) < 0)
        return sp_error_wrap(err, "%s", path);
    (void)text_copy(a->url, sizeof a->url, url);
    (void)text_copy(a->token, sizeof a->token, token);
    text_wipe(text, len);
    return 0;
}

int api_open(struct api *a, const struct settings *s, struct sp_error *err) {
    const char *url = getenv("SPACE_API_URL"), *token = getenv("SPACE_TOKEN");
    *a = (struct api){0};
    if (!url && !token)
        return open_file(a, s, err);
    if (!url || !token)
        return sp_error_set(err, SP_E_INVALID, "SPACE_API_URL and SPACE_TOKEN go together; %s is not set",
                            url ? "SPACE_TOKEN" : "SPACE_API_URL");
    if (!text_copy(a->url, sizeof a->url, url) || !text_copy(a->token, sizeof a->token, token))
        return sp_error_set(err, SP_E_INVALID, "SPACE_API_URL or SPACE_TOKEN is too long");
    return 0;
}

void api_close(struct api *a) {
    text_wipe(a->token, sizeof a->token);
}

/* The server's words, escaped: a terminal is not to obey them. */
static int problem_to_error(const struct http_result *res, struct sp_error *err) {
    _cleanup_json_ json_t *j = NULL;
    char detail[220];
    if (json_parse(res->body, res->body_len, API_ANSWER_MAX, &j, NULL) < 0 || !json_is_object(j))
        return sp_error_set(err, res->status >= 500 ? SP_E_UNAVAILABLE : SP_E_PROTOCOL,
                            "the API answered %d without a reason", res->status);
    const char *code = json_string_value(json_object_get(j, "code")),
               *text = json_string_value(json_object_get(j, "detail"));
    const char *field = json_string_value(json_object_get(j, "field"));
    enum sp_code c = SP_E_PROTOCOL;
    if (!code || !sp_code_from_name(code, &c))
        for (c = SP_E_INVALID; c < SP_E_COUNT_ && sp_code_http_status(c) != res->status; c++)
            continue;
    if (c == SP_E_COUNT_)
        c = res->status >= 500 ? SP_E_INTERNAL : SP_E_INVALID;
    text_escape(detail, sizeof detail, text ? text : "", text ? strlen(text) : 0);
    const char *operation = json_string_value(json_object_get(j, "operation_id"));
    char see[64] = "";
    if (operation && !strstr(detail, operation) && id_is_valid(operation, "op"))
        (void)text_printf(see, sizeof see, "; see: space op get %s", operation);
    return field ? sp_error_field(err, c, field, "%s%s", detail, see) : sp_error_set(err, c, "%s%s", detail, see);
}

static void pause_before_retry(unsigned attempt) {
    struct timespec t = {.tv_sec = 0, .tv_nsec = (long)(200 * NSEC_PER_MSEC) << attempt};
    t.tv_sec = t.tv_nsec / (long)NSEC_PER_SEC;
    t.tv_nsec %= (long)NSEC_PER_SEC;
    nanosleep(&t, NULL);
}

int api_call(const struct api *a, const char *method, const char *target, const json_t *body, json_t **ret,
             struct sp_error *err) {
    _cleanup_free_ char *text = body ? json_print(body) : NULL;
    char key[ID_SIZE];
    id_generate(key, "key");
    const struct http_header headers[] = {{"Idempotency-Key", key}};
    const bool mutation = strcmp(method, "GET") != 0;
    struct http_request req = {.origin = a->url,
                               .method = method,
                               .target = target,
                               .bearer = a->token,
                               .body = text,
                               .body_len = text ? strlen(text) : 0,
                               .content_type = text ? "application/json" : NULL,
                               .headers = headers,
                               .n_headers = mutation ? 1 : 0,
                               .timeout_ms = 120000,
                               .response_max = API_ANSWER_MAX};
    for (unsigned attempt = 0;; attempt++) {
        _cleanup_http_result_ struct http_result res = {0};
        struct sp_error why = {0};
        int r = http_client_call_sync(&req, &res, &why);
        if (r == 0 && res.status < 300) {
            if (!ret)
                return 0;
            *ret = NULL;
            return res.body_len ? json_parse(res.body, res.body_len, API_ANSWER_MAX, ret, err) : 0;
        }
        if (r == 0)
            r = problem_to_error(&res, &why);
        bool again =
            why.code == SP_E_UNAVAILABLE || why.code == SP_E_TIMEOUT || (why.code == SP_E_PROTOCOL && res.status == 0);
        if (!again || attempt + 1 == API_TRIES) {
            if (err)
                *err = why;
            return r;
        }
        pause_before_retry(attempt);
    }
}

static int operation_outcome(const json_t *op, struct sp_error *err) {
    const json_t *e = json_object_get(op, "error");
    const char *code = json_string_value(json_object_get(e, "code")),
               *text = json_string_value(json_object_get(e, "message"));
    char shown[200];
    if (strcmp(json_string_value(json_object_get(op, "state")) ?: "", "succeeded") == 0)
        return 0;
    text_escape(shown, sizeof shown, text ? text : "", text ? strlen(text) : 0);
    return sp_error_set(err, SP_E_VMM, "%s failed: %s (%s)",
                        json_string_value(json_object_get(op, "kind")) ?: "operation", shown, code ? code : "unknown");
}

int api_wait_operation(const struct api *a, const char *operation_id, const char *doing, uint64_t timeout_ms,
                       json_t **ret, struct sp_error *err) {
    struct deadline d = deadline_in_ms(timeout_ms);
    uint64_t begun = clock_monotonic_ns();
    unsigned wait_s = 1; /* short first, so that something slow is said after a second */
    for (;;) {
        _cleanup_json_ json_t *op = NULL;
        char target[128];
        if (!text_printf(target, sizeof target, "/v1/operations/%s?wait=%u", operation_id, wait_s))
            return sp_error_set(err, SP_E_PROTOCOL, "operation id too long");
        int r = api_call(a, "GET", target, NULL, &op, err);
        if (r < 0)
            return r;
        const char *state = json_string_value(json_object_get(op, "state"));
        if (state && (strcmp(state, "succeeded") == 0 || strcmp(state, "failed") == 0)) {
            output_progress_end();
            r = operation_outcome(op, err);
            if (r == 0 && ret)
                *ret = TAKE_PTR(op);
            return r;
        }
        if (deadline_passed(d)) {
            output_progress_end();
            return sp_error_set(err, SP_E_TIMEOUT, "%s is still %s; look again with: space op get %s", doing,
                                state ? state : "unknown", operation_id);
        }
        output_progress("%s … %llu s", doing, (unsigned long long)((clock_monotonic_ns() - begun) / NSEC_PER_SEC));
        wait_s = output_is_terminal() ? 1 : API_WAIT_S;
    }
}

int api_list(const struct api *a, const char *target, json_t **ret, struct sp_error *err) {
    _cleanup_json_ json_t *all = json_array();
    char page_target[1024], cursor[160] = "";
    while (json_array_size(all) < API_ITEMS_MAX) {
        _cleanup_json_ json_t *page = NULL;
        const char *sep = strchr(target, '?') ? "&" : "?";
        if (!text_printf(page_target, sizeof page_target, "%s%slimit=200%s%s", target, sep, *cursor ? "&cursor=" : "",
                         cursor))
            return sp_error_set(err, SP_E_INVALID, "filter too long");
        int r = api_call(a, "GET", page_target, NULL, &page, err);
        if (r < 0)
            return r;
        json_array_extend(all, json_object_get(page, "items"));
        const char *next = json_string_value(json_object_get(page, "next_cursor"));
        if (!next || !text_copy(cursor, sizeof cursor, next))
            break;
    }
    *ret = TAKE_PTR(all);
    return 0;
}
