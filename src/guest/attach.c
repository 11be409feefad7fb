/* SPDX-License-Identifier: Apache-2.0 */
/* ATTACH (start a command or come back to one) and PROBE (run one whose output nobody wants). */
#include "base/cleanup.h"
#include "base/text.h"
#include "guest/session.h"
#include <errno.h>
#include <string.h>

#define PATH_MAX_ 4096u
#define PTY_MAX 4096u
#define TIMEOUT_MAX_MS (30ull * 24 * 3600 * 1000)

/* Strings of a request, owned while it is looked at. */
struct strings {
    char id[PROCESS_ID_MAX + 2];
    char cwd[PATH_MAX_];
    char user[64];
    char **argv, **env;
};

static void strings_done(struct strings *s) {
    free(s->argv);
    free(s->env);
}

/* The fields ATTACH and PROBE share. NULL, or what is wrong. */
static const char *read_command(const struct record *rec, struct strings *s, struct process_request *req) {
    int r;

    if (record_get_string(rec, TAG_CWD, s->cwd, sizeof(s->cwd)) < 0)
        return "cwd is longer than 4095 bytes";
    if (s->cwd[0] && s->cwd[0] != '/')
        return "cwd must be absolute";
    if (record_get_string(rec, TAG_USER, s->user, sizeof(s->user)) < 0)
        return "user is longer than 63 bytes";
    r = session_list(rec, TAG_ARGV, SPAWN_MAX_ARGS, &s->argv);
    if (r == 0)
        r = session_list(rec, TAG_ENV, SPAWN_MAX_ENV, &s->env);
    if (r < 0)
        return r == -ENOMEM ? "" : "more than 4096 arguments or 1024 variables";
    req->argv = s->argv;
    req->env = s->env;
    req->cwd = s->cwd;
    req->user = s->user;
    req->timeout_ms = record_get_u64_or(rec, TAG_TIMEOUT_MS, 0);
    if (req->timeout_ms > TIMEOUT_MAX_MS)
        return "timeout_ms is over 30 days";
    return NULL;
}

static const char *read_pty(const struct record *rec, struct process_request *req) {
    uint64_t cols = record_get_u64_or(rec, TAG_PTY_COLS, 0), rows = record_get_u64_or(rec, TAG_PTY_ROWS, 0);
    if ((cols == 0) != (rows == 0) || cols > PTY_MAX || rows > PTY_MAX)
        return "pty_cols and pty_rows must be 1 to 4096";
    req->pty_cols = (unsigned)cols;
    req->pty_rows = (unsigned)rows;
    return NULL;
}

static void refuse(struct session *s, const char *what) {
    s->kind = SESSION_ATTACH; /* an ERROR on such a stream ends it */
    if (what[0])
        session_error(s, "invalid", what);
    else
        session_error(s, "no_memory", "out of memory");
}

static void start(struct session *s, const struct record *rec, struct strings *str) {
    struct process_request req = {.id = str->id, .parent = CGROUP_USER};
    const char *wrong = read_command(rec, str, &req), *code = NULL, *message = NULL;
    struct process *p;

    if (!wrong)
        wrong = read_pty(rec, &req);
    if (!wrong && !str->argv[0])
        wrong = "argv is missing";
    if (wrong) {
        refuse(s, wrong);
        return;
    }
    req.with_stdin = record_get_u64_or(rec, TAG_STDIN, 0) != 0;
    req.kill_on_disconnect = record_get_u64_or(rec, TAG_ON_DISCONNECT, DISCONNECT_KEEP) == DISCONNECT_KILL;
    s->kind = SESSION_ATTACH;
    if (process_start(s->agent, &req, &p, &code, &message) < 0)
        session_error(s, code, message);
    else if (reader_attach(s, p, rec, false) < 0)
        session_error(s, "no_memory", "out of memory");
}

void request_attach(struct session *s, const struct record *rec) {
    struct strings str = {0};
    struct process *p;

    if (record_get_string(rec, TAG_PROCESS_ID, str.id, sizeof(str.id)) < 1 || !process_id_is_good(str.id)) {
        refuse(s, "process_id must be 1 to 64 of A-Z a-z 0-9 _ - .");
        return;
    }
    p = process_find(&s->agent->processes, str.id);
    if (p) {
        s->kind = SESSION_ATTACH;
        if (reader_attach(s, p, rec, true) < 0)
            session_error(s, "no_memory", "out of memory");
    } else if (record_get_u64_or(rec, TAG_MAY_START, 0) == 0) {
        s->kind = SESSION_ATTACH;
        session_error(s, "not_found", "no such process");
    } else {
        start(s, rec, &str);
        strings_done(&str);
    }
}

static void probe_done(struct process *p) {
    struct session *s = p->done_arg;
    size_t mark;

    if (!s)
        return; /* the stream went first */
    s->probe = NULL;
    if (p->failure.stage == SPAWN_CWD || p->failure.stage == SPAWN_SETUP) {
        session_error(s, p->failure.stage == SPAWN_CWD ? "bad_cwd" : "internal", strerror(p->failure.err));
    } else {
        mark = session_begin(s, REC_EXITED);
        (void)record_put_u64(&s->out, TAG_EXIT_CODE, (uint64_t)p->exit_code);
        (void)record_put_u64(&s->out, TAG_SIGNAL, (uint64_t)p->exit_signal);
        (void)record_put_u64(&s->out, TAG_OOM_KILLED, p->oom_killed);
        (void)record_put_string(&s->out, TAG_REASON, p->reason);
        (void)record_put_u64(&s->out, TAG_DURATION_MS, (p->ended_ns - p->started_ns) / 1000000u);
        session_commit(s, mark);
    }
    session_ready(s);
}

void request_probe(struct session *s, const struct record *rec) {
    struct strings str = {0};
    struct process_request req = {.id = "", .hidden = true, .parent = CGROUP_USER, .done = probe_done, .done_arg = s};
    const char *wrong = read_command(rec, &str, &req), *code = NULL, *message = NULL;

    if (wrong)
        session_error(s, wrong[0] ? "invalid" : "no_memory", wrong[0] ? wrong : "out of memory");
    else if (process_start(s->agent, &req, &s->probe, &code, &message) < 0)
        session_error(s, code, message);
    else
        s->busy = true;
    strings_done(&str);
}
