/* SPDX-License-Identifier: Apache-2.0 */
/* POST …/resize and …/signal: small JSON bodies, checked here, one record to the agent. */
#include "base/json.h"
#include "base/text.h"
#include "gateway/session_call.h"
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <strings.h>

#define ANSWER_MS 10000u
#define SIZE_MAX_ 4096

static const struct exchange_events events = {.on_shutdown = session_call_on_shutdown,
                                              .on_close = session_call_on_close};

static bool any_process(const struct session_call *c, const struct grant *g, struct problem *p) {
    (void)c;
    (void)g;
    (void)p;
    return true;
}

static bool pty_only(const struct session_call *c, const struct grant *g, struct problem *p) {
    (void)c;
    if (!g->pty)
        problem_set(p, 409, "no_pty", "", "the session has no terminal");
    return g->pty;
}

/* True for "application/json", whatever parameters follow. */
static bool is_json(const struct exchange *x) {
    static const char type[] = "application/json";
    const char *value = exchange_header(x, "Content-Type");
    size_t len = sizeof(type) - 1;
    return value && strncasecmp(value, type, len) == 0 &&
           (value[len] == '\0' || value[len] == ';' || value[len] == ' ');
}

/* The body as an object of these keys, or NULL when x was answered. */
static json_t *read_body(struct exchange *x, const char *const *keys) {
    struct sp_error err = {0};
    json_t *body = NULL;
    size_t len;
    const char *text = exchange_body(x, &len);
    if (!is_json(x)) {
        (void)exchange_problem(x, 415, "unsupported_media_type", "Content-Type", "the body must be application/json");
        return NULL;
    }
    if (json_parse(text, len, GATEWAY_BODY_MAX, &body, &err) < 0 || !json_is_object(body)) {
        (void)exchange_problem(x, 400, "malformed", "", err.text[0] ? err.text : "the body must be a JSON object");
        json_decref(body);
        return NULL;
    }
    if (json_check_keys(body, "", keys, &err) < 0) {
        (void)exchange_problem(x, 400, "invalid", err.field, err.text);
        json_decref(body);
        return NULL;
    }
    return body;
}

/* ---- resize ---- */

static void put_resize(const struct session_call *c, struct buf *out) {
    size_t mark = record_begin(out, REC_RESIZE);
    (void)record_put_string(out, TAG_PROCESS_ID, c->process_id);
    (void)record_put_u64(out, TAG_COLS, c->cols);
    (void)record_put_u64(out, TAG_ROWS, c->rows);
    (void)record_end(out, mark);
}

static bool answer_resize(struct session_call *c, const struct record *ok, struct buf *out) {
    (void)c;
    (void)ok;
    return buf_append_str(out, "{}") == 0;
}

void resize_handler(struct exchange *x) {
    static const char *const keys[] = {"cols", "rows", NULL};
    static const struct session_call_kind kind = {.answer_ms = ANSWER_MS,
                                                  .check = pty_only,
                                                  .put = put_resize,
                                                  .answer = answer_resize,
                                                  .closed_code = "process_exited"};
    struct session_call fields = {0};
    struct sp_error err = {0};
    _cleanup_json_ json_t *body = read_body(x, keys);
    if (!body)
        return;
    if (json_get_u64(body, "", "cols", 1, SIZE_MAX_, &fields.cols, &err) < 0 ||
        json_get_u64(body, "", "rows", 1, SIZE_MAX_, &fields.rows, &err) < 0) {
        (void)exchange_problem(x, 400, "invalid", err.field, err.text);
        return;
    }
    session_call_start(x, &kind, &fields, &events);
}

/* ---- signal ---- */

static const struct {
    const char *name;
    uint64_t number, default_scope;
} signals[] = {
    {"HUP", SIGHUP, SCOPE_GROUP},    {"INT", SIGINT, SCOPE_GROUP},     {"QUIT", SIGQUIT, SCOPE_GROUP},
    {"KILL", SIGKILL, SCOPE_CGROUP}, {"USR1", SIGUSR1, SCOPE_GROUP},   {"USR2", SIGUSR2, SCOPE_GROUP},
    {"TERM", SIGTERM, SCOPE_GROUP},  {"CONT", SIGCONT, SCOPE_GROUP},   {"STOP", SIGSTOP, SCOPE_GROUP},
    {"TSTP", SIGTSTP, SCOPE_GROUP},  {"WINCH", SIGWINCH, SCOPE_GROUP},
};
static const struct {
    const char *name;
    uint64_t scope;
} scopes[] = {{"leader", SCOPE_LEADER}, {"group", SCOPE_GROUP}, {"cgroup", SCOPE_CGROUP}};

static int parse_signal(const json_t *body, struct session_call *ret, struct sp_error *err) {
    const char *name, *scope;
    if (json_get_string(body, "", "signal", 1, 16, &name, err) < 0 ||
        json_get_opt_string(body, "", "scope", 1, 16, "", &scope, err) < 0)
        return -SP_E_INVALID;
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        if (strcmp(name, signals[i].name) == 0) {
            ret->signal = signals[i].number;
            ret->scope = signals[i].default_scope;
        }
    if (!ret->signal)
        return sp_error_field(err, SP_E_INVALID, "signal", "signal must be a name like TERM, INT or KILL");
    if (!scope[0])
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(scopes); i++)
        if (strcmp(scope, scopes[i].name) == 0) {
            ret->scope = scopes[i].scope;
            return 0;
        }
    return sp_error_field(err, SP_E_INVALID, "scope", "scope must be leader, group or cgroup");
}

static void put_signal(const struct session_call *c, struct buf *out) {
    size_t mark = record_begin(out, REC_SIGNAL);
    (void)record_put_string(out, TAG_PROCESS_ID, c->process_id);
    (void)record_put_u64(out, TAG_SIGNAL, c->signal);
    (void)record_put_u64(out, TAG_SCOPE, c->scope);
    (void)record_end(out, mark);
}

static bool answer_signal(struct session_call *c, const struct record *ok, struct buf *out) {
    uint64_t remaining = record_get_u64_or(ok, TAG_REMAINING, 0);
    (void)c;
    return remaining <= INT32_MAX && buf_printf(out, "{\"remaining\":%" PRIu64 "}", remaining) == 0;
}

void signal_handler(struct exchange *x) {
    static const char *const keys[] = {"signal", "scope", NULL};
    static const struct session_call_kind kind = {.answer_ms = ANSWER_MS,
                                                  .check = any_process,
                                                  .put = put_signal,
                                                  .answer = answer_signal,
                                                  .closed_code = "process_exited"};
    struct session_call fields = {0};
    struct sp_error err = {0};
    _cleanup_json_ json_t *body = read_body(x, keys);
    if (!body)
        return;
    if (parse_signal(body, &fields, &err) < 0) {
        (void)exchange_problem(x, 400, "invalid", err.field, err.text);
        return;
    }
    session_call_start(x, &kind, &fields, &events);
}
