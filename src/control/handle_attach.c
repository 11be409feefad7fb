/* SPDX-License-Identifier: Apache-2.0 */
/* What gateways call: is this attachment token good, and what became of the process (spec/internal-api.md). */
#include "base/text.h"
#include "control/handlers.h"
#include "control/render.h"
#include "store/sessions.h"
#include <string.h>

static int check_attach(struct request *rq, const struct session_attach *a) {
    if (a->sandbox_state == SANDBOX_DELETING || a->sandbox_state == SANDBOX_DELETED)
        return request_problem(rq, PROBLEM_GONE, "", "the sandbox is %s", sandbox_state_name(a->sandbox_state));
    if (a->session.is_expired)
        return request_problem(rq, PROBLEM_GONE, "", "the session has expired");
    if (a->sandbox_state == SANDBOX_WAKING)
        return request_problem(rq, PROBLEM_NOT_READY, "", "the sandbox is waking");
    if (a->sandbox_state != SANDBOX_RUNNING)
        return request_problem(rq, PROBLEM_SANDBOX_NOT_RUNNING, "", "the sandbox is %s",
                               sandbox_state_name(a->sandbox_state));
    return 0;
}

/* What the caller did not say, the template does; its directory goes with its user, another user starts at home. */
static void put_defaults(json_t *o, const struct session_attach *a) {
    bool chose_user = !json_is_null(json_object_get(o, "user"));
    if (!chose_user && a->user)
        put_text(o, "user", a->user);
    if (!chose_user && a->workdir && json_is_null(json_object_get(o, "cwd")))
        put_text(o, "cwd", a->workdir);
}

static void put_command(json_t *o, const char *command_text) {
    static const char *const fields[] = {"command", "args",  "env",       "cwd",          "user",
                                         "pty",     "stdin", "timeout_s", "on_disconnect"};
    _cleanup_json_ json_t *command = json_of_text(command_text, json_object());
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        json_t *v = json_object_get(command, fields[i]);
        put_new(o, fields[i], v ? json_incref(v) : json_null());
    }
    if (!json_object_get(command, "args"))
        put_new(o, "args", json_array());
    if (!json_object_get(command, "env"))
        put_new(o, "env", json_object());
    if (!json_object_get(command, "stdin"))
        put_bool(o, "stdin", false);
    if (!json_object_get(command, "on_disconnect"))
        put_text(o, "on_disconnect", "keep");
}

int handle_attach(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    const char *id = NULL, *hex = NULL;
    uint8_t hash[SHA256_SIZE] = {0};
    struct session_attach a = {0};
    int r = json_get_string(rq->body, "", "session_id", 1, 31, &id, &rq->err);
    if (r == 0)
        r = json_get_string(rq->body, "", "token_sha256", 64, 64, &hex, &rq->err);
    if (r == 0 && !text_unhex(hash, sizeof(hash), hex))
        r = sp_error_field(&rq->err, SP_E_INVALID, "token_sha256", "token_sha256 must be 64 hexadecimal digits");
    if (r == 0)
        r = session_attach(rq->db, id, hash, &res, &a, &rq->err);
    if (r == 0)
        r = check_attach(rq, &a);
    if (r < 0)
        return r;
    json_t *o = json_object();
    put_text(o, "session_id", a.session.id);
    put_text(o, "sandbox_id", a.session.sandbox_id);
    put_text(o, "process_id", a.session.process_id);
    put_text(o, "node_id", a.node_id);
    put_command(o, a.session.command);
    put_defaults(o, &a);
    put_bool(o, "may_start", a.session.state == SESSION_CREATED);
    put_text(o, "sandbox_state", sandbox_state_name(a.sandbox_state));
    put_time(o, "expires_at", a.session.expires_ms);
    rq->answer = o;
    rq->status = 200;
    return 0;
}

static int read_exit(struct request *rq, struct session_exit *e) {
    const json_t *code = json_object_get(rq->body, "exit_code"), *signal = json_object_get(rq->body, "signal");
    if ((code && !json_is_null(code) && !json_is_integer(code)) ||
        (signal && !json_is_null(signal) && !json_is_integer(signal)))
        return sp_error_field(&rq->err, SP_E_INVALID, "exit_code",
                              "exit_code and signal must be whole numbers or null");
    e->has_exit_code = json_is_integer(code);
    e->exit_code = json_integer_value(code);
    e->has_signal = json_is_integer(signal);
    e->signal = json_integer_value(signal);
    return json_get_opt_string(rq->body, "", "reason", 0, 128, NULL, &e->reason, &rq->err);
}

int handle_session_state(struct request *rq) {
    const char *id = request_param(rq, "session_id"), *state = NULL;
    struct session_exit e = {0};
    uint64_t pid = 0;
    int r = json_get_string(rq->body, "", "state", 1, 16, &state, &rq->err);
    if (r == 0)
        r = json_get_opt_u64(rq->body, "", "pid", 0, INT32_MAX, 0, &pid, &rq->err);
    if (r < 0)
        return r;
    if (strcmp(state, "started") == 0)
        r = session_report_started(rq->db, id, (int64_t)pid, &rq->err);
    else if (strcmp(state, "exited") == 0) {
        r = read_exit(rq, &e);
        if (r == 0)
            r = session_report_exited(rq->db, id, &e, &rq->err);
    } else
        r = sp_error_field(&rq->err, SP_E_INVALID, "state", "state must be started or exited");
    if (r == 0) {
        rq->answer = json_object();
        rq->status = 200;
    }
    return r;
}
