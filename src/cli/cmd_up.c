/* SPDX-License-Identifier: Apache-2.0 */
/* up, supervise, down: the whole system on one machine. */
#include "base/banned.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/up/database.h"
#include "cli/up/initrd.h"
#include "cli/up/layout.h"
#include "cli/up/supervisor.h"
#include "io/http_client.h"
#include <string.h>
#include <time.h>

#define READY_TIMEOUT_MS 90000

struct installation {
    const struct settings *s;
    struct database database;
    bool private_database;
    struct service services[SERVICES_MAX];
    size_t n_services;
    unsigned kernels;
    char admin_token[80];
};

static int need_root(const char *what, struct sp_error *err) {
    return geteuid() == 0 ? 0 : sp_error_set(err, SP_E_FORBIDDEN, "`space %s` needs root: sudo space %s", what, what);
}

static int give_secrets(struct installation *sys, struct sp_error *err) {
    char internal[80];
    const struct settings *s = sys->s;
    int r = layout_secret(s, "etc/internal_token", "spi", internal, sizeof internal, err);
    if (r == 0)
        r = layout_secret(s, "etc/admin_token", "spm", sys->admin_token, sizeof sys->admin_token, err);
    if (r == 0)
        r = layout_give(s, "control", SETTINGS_UID_CONTROL, "internal_token", internal, err);
    if (r == 0)
        r = layout_give(s, "node", SETTINGS_UID_NODE, "internal_token", internal, err);
    if (r == 0)
        r = layout_give(s, "gateway", SETTINGS_UID_GATEWAY, "internal_token", internal, err);
    if (r == 0)
        r = layout_give(s, "control", SETTINGS_UID_CONTROL, "admin_token", sys->admin_token, err);
    text_wipe(internal, sizeof internal);
    return r;
}

/* Everything but running processes. Safe to repeat. */
static int prepare(struct installation *sys, struct sp_error *err) {
    const struct settings *s = sys->s;
    char libexec[512], agent[600];
    int r = layout_ensure(s, err);
    if (r < 0 || (r = services_libexec(libexec, sizeof libexec, err)) < 0)
        return r;
    if (!text_printf(agent, sizeof agent, "%s/space-guest", libexec))
        return sp_error_set(err, SP_E_INVALID, "the installation's path is too long");
    if ((r = initrd_prepare(s, agent, &sys->kernels, err)) < 0)
        return r;
    sys->private_database = s->database_url[0] == '\0';
    if (sys->private_database && (r = database_prepare(s, &sys->database, err)) < 0)
        return r;
    const char *url = sys->private_database ? sys->database.url : s->database_url;
    if ((r = give_secrets(sys, err)) < 0 || (r = layout_write_config(s, url, err)) < 0 ||
        (r = layout_write_client(s, sys->admin_token, err)) < 0)
        return r;
    return services_build(s, sys->private_database ? &sys->database : NULL, sys->services, &sys->n_services, err);
}

static bool answers(const char *listen, const char *target) {
    _cleanup_http_result_ struct http_result res = {0};
    char origin[96];
    if (!text_printf(origin, sizeof origin, "http://%s", listen))
        return false;
    struct http_request req = {.origin = origin, .target = target, .timeout_ms = 2000, .connect_timeout_ms = 500};
    return http_client_call_sync(&req, &res, NULL) == 0 && res.status == 200;
}

/* A node is there once control lists one that is ready. */
static bool node_is_ready(const struct installation *sys) {
    _cleanup_http_result_ struct http_result res = {0};
    char origin[96];
    if (!text_printf(origin, sizeof origin, "http://%s", sys->s->control_listen))
        return false;
    struct http_request req = {.origin = origin, .target = "/v1/nodes", .bearer = sys->admin_token, .timeout_ms = 2000};
    return http_client_call_sync(&req, &res, NULL) == 0 && res.status == 200 && strstr(res.body, "\"ready\"");
}

static int wait_ready(const struct installation *sys, struct sp_error *err) {
    struct deadline d = deadline_in_ms(READY_TIMEOUT_MS);
    const struct timespec pause = {.tv_nsec = 50 * (long)NSEC_PER_MSEC};
    uint64_t begun = clock_monotonic_ns();
    const char *missing = "control";
    while (!deadline_passed(d)) {
        missing = !answers(sys->s->control_listen, "/readyz")   ? "control"
                  : !answers(sys->s->gateway_listen, "/readyz") ? "gateway"
                  : !node_is_ready(sys)                         ? "node"
                                                                : NULL;
        if (!missing) {
            output_progress_end();
            return 0;
        }
        if (clock_monotonic_ns() - begun > NSEC_PER_SEC)
            output_progress("waiting for %s … %llu s", missing,
                            (unsigned long long)((clock_monotonic_ns() - begun) / NSEC_PER_SEC));
        nanosleep(&pause, NULL);
    }
    output_progress_end();
    return sp_error_set(err, SP_E_TIMEOUT, "space-%s is not ready after %d s; see %s/log/%s.log", missing,
                        READY_TIMEOUT_MS / 1000, sys->s->state_dir, missing);
}

int cmd_up(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct installation sys = {.s = in->settings};
    bool started = false;
    (void)ret_status;
    int r = command_expect(in, 0, 0, "no words", err);
    if (r < 0 || (r = need_root("up", err)) < 0)
        return r;
    output_progress("preparing %s", in->settings->state_dir);
    if ((r = prepare(&sys, err)) < 0 ||
        (r = supervisor_spawn(sys.s, sys.services, sys.n_services, &started, err)) < 0 ||
        (r = wait_ready(&sys, err)) < 0)
        return r;
    (void)printf("%s\n  API         http://%s\n  data plane  %s\n  state       %s (logs in log/, admin token in "
                 "etc/admin_token)\n"
                 "  database    %s\n",
                 started ? "SPACE is up." : "SPACE was up already.", sys.s->control_listen, sys.s->gateway_url,
                 sys.s->state_dir,
                 sys.private_database ? "private PostgreSQL cluster in db/" : "the server in database_url");
    text_wipe(sys.admin_token, sizeof sys.admin_token);
    return 0;
}

int cmd_supervise(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct installation sys = {.s = in->settings};
    enum log_level level = LOG_L_INFO;
    (void)ret_status;
    int r = command_expect(in, 0, 0, "no words", err);
    if (r < 0 || (r = need_root("supervise", err)) < 0 || (r = prepare(&sys, err)) < 0)
        return r;
    log_level_from_name(sys.s->log_level, &level);
    log_init("space-supervisor", level);
    return supervisor_run(sys.s, sys.services, sys.n_services, err);
}

/* The broker's own clean-up mode: every VM, then the store's mount. */
static int release_host(const struct installation *sys, struct sp_error *err) {
    char libexec[512], program[600], config[512];
    int r = services_libexec(libexec, sizeof libexec, err);
    if (r < 0 || (r = layout_path(sys->s, "etc/space.conf", config, sizeof config, err)) < 0)
        return r;
    if (!text_printf(program, sizeof program, "%s/space-broker", libexec))
        return sp_error_set(err, SP_E_INVALID, "the installation's path is too long");
    const char *const argv[] = {program, "--config", config, "--release", NULL};
    const struct spawn_options opt = {.argv = argv, .cwd = "/"};
    return spawn_run(&opt, NULL, 0, deadline_in_ms(120000), NULL, NULL, err);
}

int cmd_down(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    struct installation sys = {.s = in->settings};
    bool keep = false;
    char config[512];
    const struct option_row rows[] = {{"--keep-sandboxes", 0, OPTION_FLAG, &keep}};
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 0, 0, "no words", err)) < 0 || (r = need_root("down", err)) < 0 ||
        (r = layout_path(sys.s, "etc/space.conf", config, sizeof config, err)) < 0)
        return r;
    if (access(config, F_OK) < 0) {
        (void)printf("SPACE is not set up in %s; nothing to stop.\n", sys.s->state_dir);
        return 0;
    }
    if ((r = database_find(sys.s, &sys.database, &sys.private_database, err)) < 0 ||
        (r = services_build(sys.s, sys.private_database ? &sys.database : NULL, sys.services, &sys.n_services, err)) <
            0 ||
        (r = supervisor_stop(sys.s, sys.services, sys.n_services, err)) < 0)
        return r;
    if (!keep && (r = release_host(&sys, err)) < 0)
        return r;
    (void)printf("SPACE is down%s.\n", keep ? "; its sandboxes go on" : "");
    return 0;
}
