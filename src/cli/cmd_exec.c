/* SPDX-License-Identifier: Apache-2.0 */
/* run, exec, logs: commands in sandboxes. */
#include "base/text.h"
#include "cli/command.h"
#include "cli/exec.h"
#include "cli/output.h"
#include "cli/sandbox.h"
#include "cli/session_file.h"
#include <signal.h>
#include <string.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signum) {
    (void)signum;
    interrupted = 1;
}

struct exec_options {
    struct exec_request req;
    const char *timeout;
    bool detach, keep;
};
#define EXEC_OPTION_ROWS(o)                                                                                            \
    {"--user", 'u', OPTION_VALUE, &(o).req.user}, {"--cwd", 'w', OPTION_VALUE, &(o).req.cwd},                          \
        {"--timeout", 0, OPTION_VALUE, &(o).timeout}, {                                                                \
        "--stdin", 'i', OPTION_FLAG, &(o).req.with_stdin                                                               \
    }

static int finish_options(struct exec_options *o, const char *const *argv, struct sp_error *err) {
    o->req.argv = argv;
    if (o->timeout && !text_to_u64(o->timeout, 1, 604800, &o->req.timeout_s))
        return sp_error_field(err, SP_E_INVALID, "--timeout", "must be 1 to 604800 seconds");
    return 0;
}

static int run_session(const struct api *a, const struct exec_options *o, int *ret_status, struct sp_error *err) {
    struct exec_session session = {0};
    enum exec_mode mode = o->detach ? EXEC_DETACH : o->req.with_stdin ? EXEC_WITH_STDIN : EXEC_FOLLOW;
    int r = exec_create(a, &o->req, &session, err);
    if (r == 0 && o->detach)
        r = session_file_write(&session, err);
    if (r == 0)
        r = exec_follow(&session, mode, ret_status, err);
    if (r == 0 && o->detach)
        (void)printf("%s\n", session.id);
    text_wipe(session.token, sizeof session.token);
    return r;
}

int cmd_exec(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    struct exec_options o = {0};
    const char *env[OPTION_LIST_MAX + 1] = {0};
    struct api a;
    const struct option_row rows[] = {EXEC_OPTION_ROWS(o),
                                      {"--env", 'e', OPTION_LIST, env},
                                      {"--detach", 'd', OPTION_FLAG, &o.detach}};
    int r = command_options(&args, rows, ARRAY_SIZE(rows), true, err);
    if (r < 0 || (r = command_expect(&args, 2, INT32_MAX, "SANDBOX -- COMMAND [ARG]…", err)) < 0)
        return r;
    o.req.sandbox_id = args.argv[0];
    o.req.env = env;
    if ((r = finish_options(&o, (const char *const *)args.argv + 1, err)) < 0 ||
        (r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = run_session(&a, &o, ret_status, err);
    api_close(&a);
    return r;
}

/* Whatever happens after the sandbox exists, it is deleted again: on Ctrl-C while it starts, too. */
static int create_and_run(const struct api *a, const struct sandbox_options *so, struct exec_options *o,
                          const char *template_ref, int *ret_status, struct sp_error *err) {
    char id[64] = "";
    struct sp_error delete_error = {0};
    struct sigaction act = {.sa_handler = on_interrupt}, old;
    sigemptyset(&act.sa_mask);
    (void)sigaction(SIGINT, &act, &old);
    int r = sandbox_create(a, so, template_ref, id, err);
    if (r == 0 && interrupted)
        *ret_status = 130;
    else if (r == 0) {
        o->req.sandbox_id = id;
        r = run_session(a, o, ret_status, err);
        o->req.sandbox_id = NULL;
    }
    (void)sigaction(SIGINT, &act, NULL);
    if (*id && !o->keep && sandbox_delete(a, id, true, &delete_error) < 0) {
        (void)fprintf(stderr, "space: sandbox %s could not be deleted; try: space rm %s\n", id, id);
        (void)output_error(&delete_error);
    }
    if (*id && o->keep)
        (void)fprintf(stderr, "space: kept sandbox %s\n", id);
    (void)sigaction(SIGINT, &old, NULL);
    return r;
}

int cmd_run(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    struct exec_options o = {0};
    struct sandbox_options so = {0};
    struct api a;
    const struct option_row rows[] = {SANDBOX_OPTION_ROWS(so),
                                      EXEC_OPTION_ROWS(o),
                                      {"--keep", 0, OPTION_FLAG, &o.keep}};
    int r = command_options(&args, rows, ARRAY_SIZE(rows), true, err);
    if (r < 0 || (r = command_expect(&args, 2, INT32_MAX, "TEMPLATE -- COMMAND [ARG]…", err)) < 0)
        return r;
    if ((r = finish_options(&o, (const char *const *)args.argv + 1, err)) < 0 ||
        (r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = create_and_run(&a, &so, &o, args.argv[0], ret_status, err);
    api_close(&a);
    return r;
}

int cmd_logs(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct exec_session session = {0};
    int r = command_expect(in, 1, 1, "SESSION", err);
    if (r < 0 || (r = session_file_read(in->argv[0], &session, err)) < 0)
        return r;
    r = exec_follow(&session, EXEC_FOLLOW, ret_status, err);
    text_wipe(session.token, sizeof session.token);
    return r;
}
