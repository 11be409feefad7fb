/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space-gateway: the data plane of one node. Reads the settings, listens, runs the loop; on SIGTERM every stream is told
 * to come back (the client has its Last-Event-ID) and reports to control get a moment to go out.
 */
#include "base/log.h"
#include "gateway/gateway.h"
#include "gateway/session_report.h"
#include "io/listen.h"
#include <stdio.h>

#define GRACE_MS 3000u
#define REPORT_GRACE_MS 2000u

struct program {
    struct gateway gateway;
    struct loop *loop;
    struct loop_timer *ending;
    uint64_t give_up_ms;
};

/* No connection is left; wait for reports, but not for long. */
static void on_ending(void *ctx) {
    struct program *p = ctx;
    if (session_reports_waiting(p->gateway.reports) == 0 || loop_now_ms(p->loop) >= p->give_up_ms)
        loop_stop(p->loop);
}

static void on_stopped(void *ctx) {
    struct program *p = ctx;
    p->give_up_ms = loop_now_ms(p->loop) + REPORT_GRACE_MS;
    loop_timer_start(p->ending, 0, 20);
}

static void on_signal(int signum, void *ctx) {
    struct program *p = ctx;
    bool again = p->gateway.stopping;
    (void)signum;
    log_event(LOG_L_INFO, "stopping", NULL);
    p->gateway.stopping = true;
    http_server_stop(p->gateway.server, again ? 0 : GRACE_MS, on_stopped, p);
}

static int start(struct program *p, const struct settings *s, struct sp_error *err) {
    int fd = -1, r = loop_new(&p->loop, err);
    r = r < 0 ? r : gateway_init(&p->gateway, p->loop, s, err);
    r = r < 0 ? r : loop_on_stop_signal(p->loop, on_signal, p, err);
    r = r < 0 ? r : listen_tcp(s->gateway_listen, &fd, err);
    r = r < 0 ? r : http_server_listen(p->gateway.server, fd, err);
    if (r < 0)
        return r;
    p->ending = loop_timer_new(p->loop, on_ending, p);
    log_event(LOG_L_INFO, "listening", "address", s->gateway_listen, NULL);
    return 0;
}

int main(int argc, char **argv) {
    static struct settings settings;
    static struct program program;
    struct sp_error err = {0};
    enum log_level level = LOG_L_INFO;
    int next, status = 0;
    log_init("space-gateway", level);
    if (settings_load(&settings, argc, argv, "space-gateway [flags]", &next, &err) < 0 || next != argc) {
        if (err.code == SP_OK)
            sp_error_set(&err, SP_E_INVALID, "unexpected argument %s", argv[next]);
        log_error(LOG_L_ERROR, "bad_settings", &err, NULL);
        return sp_code_exit_status(err.code);
    }
    if (log_level_from_name(settings.log_level, &level))
        log_set_level(level);
    if (start(&program, &settings, &err) < 0) {
        log_error(LOG_L_ERROR, "start_failed", &err, NULL);
        status = sp_code_exit_status(err.code);
    } else {
        loop_run(program.loop);
    }
    loop_timer_free(program.ending);
    if (program.gateway.loop)
        gateway_done(&program.gateway);
    loop_free(program.loop);
    return status;
}
