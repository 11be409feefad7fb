/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One loop: the event stream, SIGINT and SIGTERM posted to the process, stdin posted in pieces, one request at a time. Output
 * is written with blocking writes: a slow terminal slows the stream, which is what is wanted.
 */
#include "cli/exec.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/text.h"
#include "cli/output.h"
#include "io/http_client.h"
#include "io/loop.h"
#include "wire/sse.h"
#include <errno.h>
#include <signal.h>
#include <string.h>

#define EVENT_MAX (256u << 10)
#define STDIN_PIECE 65536
#define RECONNECT_MS 500
#define GIVE_UP_MS 60000

enum follow_state { FOLLOW_CONNECTING, FOLLOW_STREAMING, FOLLOW_PAUSED, FOLLOW_ENDED };

struct follow {
    struct loop *loop;
    struct http_client *client;
    struct http_call *events, *signal_call, *stdin_call;
    struct loop_timer *reconnect;
    struct loop_watch *stdin_watch; /* NULL for a regular file, which epoll cannot watch and which is always ready */
    struct loop_task stdin_task;
    const struct exec_session *session;
    enum follow_state state;
    char origin[300], target[256];
    struct sse_decoder sse;
    struct deadline give_up; /* CONNECTING, PAUSED: since the stream was lost */
    enum exec_mode mode;
    bool started, incomplete, stdin_begun, stdin_over;
    unsigned interrupts;
    int status, result; /* ENDED */
    struct sp_error error;
    char chunk[STDIN_PIECE];
};

int exec_create(const struct api *a, const struct exec_request *req, struct exec_session *ret, struct sp_error *err) {
    _cleanup_json_ json_t *body = json_pack("{s:s,s:b}", "command", req->argv[0], "stdin", req->with_stdin ? 1 : 0);
    _cleanup_json_ json_t *answer = NULL;
    json_t *args = json_array(), *env = json_object();
    const char *id, *url, *token;
    char target[128];
    for (size_t i = 1; req->argv[i]; i++)
        json_array_append_new(args, json_string(req->argv[i]));
    for (size_t i = 0; req->env && req->env[i]; i++) {
        const char *eq = strchr(req->env[i], '=');
        if (!eq || eq == req->env[i])
            return sp_error_field(err, SP_E_INVALID, "--env", "must be NAME=VALUE");
        json_object_set_new_nocheck(env, strndupa(req->env[i], (size_t)(eq - req->env[i])), json_string(eq + 1));
    }
    if (!body || json_object_set_new(body, "args", args) < 0 || json_object_set_new(body, "env", env) < 0)
        return sp_error_field(err, SP_E_INVALID, "command", "must be UTF-8");
    if (req->cwd)
        json_object_set_new(body, "cwd", json_string(req->cwd));
    if (req->user)
        json_object_set_new(body, "user", json_string(req->user));
    if (req->timeout_s)
        json_object_set_new(body, "timeout_s", json_integer((json_int_t)req->timeout_s));
    if (!text_printf(target, sizeof target, "/v1/sandboxes/%s/sessions", req->sandbox_id))
        return sp_error_field(err, SP_E_INVALID, "sandbox", "is no sandbox id");
    int r = api_call(a, "POST", target, body, &answer, err);
    if (r < 0 || (r = json_get_string(answer, "", "session_id", 1, sizeof ret->id - 1, &id, err)) < 0 ||
        (r = json_get_string(answer, "", "attach_url", 1, sizeof ret->attach_url - 1, &url, err)) < 0 ||
        (r = json_get_string(answer, "", "attachment_token", 1, sizeof ret->token - 1, &token, err)) < 0)
        return r;
    (void)text_copy(ret->id, sizeof ret->id, id);
    (void)text_copy(ret->attach_url, sizeof ret->attach_url, url);
    (void)text_copy(ret->token, sizeof ret->token, token);
    return 0;
}

static void finish(struct follow *f, int result) {
    if (f->state == FOLLOW_ENDED)
        return;
    f->state = FOLLOW_ENDED;
    f->result = result;
    loop_stop(f->loop);
}

static void fail(struct follow *f, enum sp_code code, const char *text) {
    finish(f, sp_error_set(&f->error, code, "%s", text));
}

/* ---- events ---- */

static void on_output(struct follow *f, const json_t *data, int fd) {
    const char *text = json_string_value(json_object_get(data, "data"));
    size_t len = text ? strlen(text) : 0, n;
    _cleanup_free_ char *raw = malloc(len + 1);
    if (!raw || !text_unbase64(raw, len, text ? text : "", len, &n)) {
        fail(f, SP_E_PROTOCOL, "the data plane sent output that is not base64");
        return;
    }
    if (fd_write_all(fd, raw, n, &f->error) < 0)
        finish(f, -(int)f->error.code);
}

static void on_exited(struct follow *f, const json_t *data) {
    const json_t *code = json_object_get(data, "exit_code"), *sig = json_object_get(data, "signal");
    const char *reason = json_string_value(json_object_get(data, "reason"));
    f->status = json_is_integer(code) ? (int)json_integer_value(code) : 128 + (int)json_integer_value(sig);
    if (json_is_true(json_object_get(data, "oom_killed")))
        (void)fprintf(stderr, "space: the command was killed: out of memory in the sandbox\n");
    else if (reason && strcmp(reason, "timeout") == 0)
        (void)fprintf(stderr, "space: the command was killed: its time was over\n");
    if (f->incomplete && f->status == 0) {
        fail(f, SP_E_PROTOCOL, "the command exited 0, but part of its output was lost");
        return;
    }
    finish(f, 0);
}

static void on_remote_error(struct follow *f, const json_t *data) {
    char text[200];
    const char *m = json_string_value(json_object_get(data, "message"));
    text_escape(text, sizeof text, m ? m : "", m ? strlen(m) : 0);
    (void)sp_error_set(&f->error, SP_E_GUEST, "the stream ended, the command's outcome is unknown: %s (%s)", text,
                       json_string_value(json_object_get(data, "code")) ?: "unknown");
    finish(f, -SP_E_GUEST);
}

static void on_gap(struct follow *f, const char *what, const json_t *data) {
    char *text = json_dumps(data, JSON_COMPACT);
    (void)fprintf(stderr, "space: output was lost (%s %s)\n", what, text ? text : "");
    free(text);
    f->incomplete = true;
}

static void start_stdin(struct follow *f);

static void on_event(struct follow *f) {
    _cleanup_json_ json_t *data = NULL;
    const char *name = f->sse.event;
    if (json_parse(f->sse.data.data, f->sse.data.len, EVENT_MAX, &data, NULL) < 0) {
        fail(f, SP_E_PROTOCOL, "the data plane sent an event that is not JSON");
        return;
    }
    if (strcmp(name, "stdout") == 0 || strcmp(name, "pty") == 0)
        on_output(f, data, STDOUT_FILENO);
    else if (strcmp(name, "stderr") == 0)
        on_output(f, data, STDERR_FILENO);
    else if (strcmp(name, "process_exited") == 0)
        on_exited(f, data);
    else if (strcmp(name, "error") == 0)
        on_remote_error(f, data);
    else if (strcmp(name, "gap") == 0 || strcmp(name, "resync_required") == 0)
        on_gap(f, name, data);
    else if (strcmp(name, "process_started") == 0) {
        f->started = true;
        if (f->mode == EXEC_DETACH)
            finish(f, 0);
        start_stdin(f);
    }
}

static void on_body(struct http_call *c, void *user, const char *data, size_t len) {
    struct follow *f = user;
    (void)c;
    while (len > 0 && f->state == FOLLOW_STREAMING) {
        size_t used = 0;
        enum sse_result r = sse_decoder_feed(&f->sse, data, len, &used);
        if (r == SSE_ERROR) {
            fail(f, SP_E_PROTOCOL, "the data plane sent an event over its limit");
            return;
        }
        if (r == SSE_EVENT)
            on_event(f);
        data += used;
        len -= used;
        if (r == SSE_MORE)
            return;
    }
}

/* ---- connection ---- */

static void connect_events(struct follow *f);

static void on_head(struct http_call *c, void *user, const struct http_response *r) {
    struct follow *f = user;
    (void)c;
    if (r->status == 200) {
        f->state = FOLLOW_STREAMING;
        return;
    }
    if (r->status == 503 || r->status == 502 || r->status == 429) /* tried again when the call is done */
        return;
    (void)sp_error_set(&f->error,
                       r->status == 401   ? SP_E_UNAUTHORIZED
                       : r->status == 410 ? SP_E_GONE
                                          : SP_E_CONFLICT,
                       "the data plane refused the session (%d)", r->status);
    finish(f, -(int)f->error.code);
}

static void on_events_done(struct http_call *c, void *user, const struct sp_error *err, const struct http_response *r) {
    struct follow *f = user;
    (void)c;
    (void)r;
    f->events = NULL;
    if (f->state == FOLLOW_ENDED)
        return;
    if (f->state == FOLLOW_STREAMING) /* it was there and was cut: count from now */
        f->give_up = deadline_in_ms(GIVE_UP_MS);
    if (deadline_passed(f->give_up)) {
        f->error = err ? *err : (struct sp_error){.code = SP_E_UNAVAILABLE, .text = "the data plane does not answer"};
        finish(f, -(int)f->error.code);
        return;
    }
    f->state = FOLLOW_PAUSED;
    loop_timer_start(f->reconnect, RECONNECT_MS, 0);
}

static void connect_events(struct follow *f) {
    static const struct http_call_events events = {.on_head = on_head, .on_body = on_body, .on_done = on_events_done};
    char last[SSE_ID_MAX + 1];
    (void)text_copy(last, sizeof last, f->sse.id);
    const struct http_header headers[] = {{"Accept", "text/event-stream"}, {"Last-Event-ID", last}};
    struct http_request req = {.origin = f->origin,
                               .target = f->target,
                               .bearer = f->session->token,
                               .headers = headers,
                               .n_headers = *last ? 2 : 1,
                               .stream_response = true,
                               .idle_timeout_ms = 45000};
    sse_decoder_done(&f->sse);
    sse_decoder_init(&f->sse, EVENT_MAX);
    (void)text_copy(f->sse.id, sizeof f->sse.id, last);
    f->state = FOLLOW_CONNECTING;
    if (http_call_start(f->client, &req, &events, f, &f->events, &f->error) < 0)
        finish(f, -(int)f->error.code);
}

static void on_reconnect(void *ctx) {
    connect_events(ctx);
}

/* ---- signals and stdin ---- */

static int post(struct follow *f, const char *what, const char *content_type, const void *body, size_t len,
                const struct http_call_events *events, struct http_call **ret) {
    char target[320];
    size_t base = strlen(f->target) - strlen("events");
    if (!text_printf(target, sizeof target, "%.*s%s", (int)base, f->target, what))
        return -SP_E_INTERNAL;
    struct http_request req = {.origin = f->origin,
                               .method = "POST",
                               .target = target,
                               .bearer = f->session->token,
                               .content_type = content_type,
                               .body = body,
                               .body_len = len};
    return http_call_start(f->client, &req, events, f, ret, NULL);
}

static void on_signal_done(struct http_call *c, void *user, const struct sp_error *err, const struct http_response *r) {
    struct follow *f = user;
    (void)c;
    f->signal_call = NULL;
    if (err || (r && r->status >= 300))
        (void)fprintf(stderr, "space: the signal could not be delivered\n");
}

static void on_interrupt(int signum, void *ctx) {
    static const struct http_call_events events = {.on_done = on_signal_done};
    struct follow *f = ctx;
    f->interrupts++;
    if (f->interrupts >= 3) {
        f->status = 130;
        (void)fprintf(stderr, "space: detached; the command may still be running\n");
        finish(f, 0);
        return;
    }
    const char *body = signum == SIGTERM ? "{\"signal\":\"TERM\"}" : "{\"signal\":\"INT\"}";
    if (!f->signal_call && f->started)
        (void)post(f, "signal", "application/json", body, strlen(body), &events, &f->signal_call);
}

static void await_stdin(struct follow *f) {
    if (f->stdin_watch)
        loop_watch_set(f->stdin_watch, LOOP_READABLE);
    else
        loop_defer(f->loop, &f->stdin_task);
}

static void on_stdin_done(struct http_call *c, void *user, const struct sp_error *err, const struct http_response *r) {
    struct follow *f = user;
    (void)c;
    f->stdin_call = NULL;
    if (err || (r && r->status >= 300)) /* closed by the command: what cat does with a closed pipe */
        f->stdin_over = true;
    if (!f->stdin_over)
        await_stdin(f);
}

static void on_stdin(void *ctx) {
    static const struct http_call_events calls = {.on_done = on_stdin_done};
    struct follow *f = ctx;
    ssize_t n = read(STDIN_FILENO, f->chunk, sizeof f->chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        await_stdin(f);
        return;
    }
    f->stdin_over = n <= 0;
    if (post(f, n <= 0 ? "stdin?close=1" : "stdin", "application/octet-stream", f->chunk, n > 0 ? (size_t)n : 0, &calls,
             &f->stdin_call) < 0)
        f->stdin_over = true;
}

static void on_stdin_ready(unsigned events, void *ctx) {
    struct follow *f = ctx;
    (void)events;
    loop_watch_set(f->stdin_watch, 0); /* one piece at a time: the next read waits for the answer */
    on_stdin(f);
}

static void start_stdin(struct follow *f) {
    struct sp_error not_watchable;
    if (f->mode != EXEC_WITH_STDIN || f->stdin_begun)
        return;
    f->stdin_begun = true;
    f->stdin_task = (struct loop_task){.fn = on_stdin, .ctx = f};
    (void)loop_watch_new(f->loop, STDIN_FILENO, on_stdin_ready, f, &f->stdin_watch, &not_watchable);
    await_stdin(f);
}

static int split_url(struct follow *f, const char *url, struct sp_error *err) {
    const char *scheme = strstr(url, "://"), *path = scheme ? strchr(scheme + 3, '/') : NULL;
    if (!text_starts_with(url, "http://") || !path)
        return sp_error_set(err, SP_E_UNSUPPORTED, "the data plane's address %.80s is not http://", url);
    if (!text_printf(f->origin, sizeof f->origin, "%.*s", (int)(path - url), url) ||
        !text_copy(f->target, sizeof f->target, path) || strlen(path) < strlen("/events"))
        return sp_error_set(err, SP_E_PROTOCOL, "the data plane's address is too long");
    return 0;
}

static int follow_open(struct follow *f, struct sp_error *err) {
    int r = split_url(f, f->session->attach_url, err);
    if (r < 0 || (r = loop_new(&f->loop, err)) < 0 || (r = http_client_new(f->loop, NULL, &f->client, err)) < 0 ||
        (r = loop_on_stop_signal(f->loop, on_interrupt, f, err)) < 0)
        return r;
    f->reconnect = loop_timer_new(f->loop, on_reconnect, f);
    f->give_up = deadline_in_ms(GIVE_UP_MS);
    return 0;
}

static void follow_close(struct follow *f) {
    loop_defer_cancel(&f->stdin_task);
    f->stdin_watch = loop_watch_free(f->stdin_watch, false);
    f->reconnect = loop_timer_free(f->reconnect);
    f->client = http_client_free(f->client);
    f->loop = loop_free(f->loop);
    sse_decoder_done(&f->sse);
}

int exec_follow(const struct exec_session *session, enum exec_mode mode, int *ret_status, struct sp_error *err) {
    _cleanup_free_ struct follow *f = calloc(1, sizeof *f);
    if (!f)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    f->session = session;
    f->mode = mode;
    sse_decoder_init(&f->sse, EVENT_MAX);
    int r = follow_open(f, err);
    if (r == 0) {
        connect_events(f);
        if (f->state != FOLLOW_ENDED)
            loop_run(f->loop);
        r = f->result;
        if (r < 0 && err)
            *err = f->error;
        if (r == 0)
            *ret_status = f->status;
    }
    follow_close(f);
    return r;
}
