/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space-node: keeps this node's sandboxes as control wants them. Starting VMs is the broker's work, running one is its
 * space-vm's; killing this program stops neither, and the next one takes over what is there.
 */
#include "base/log.h"
#include "node/node.h"

static void on_signal(int signum, void *ctx) {
    (void)signum;
    log_event(LOG_L_INFO, "stopping", NULL);
    loop_stop(ctx);
}

static int run(struct loop *l, const struct settings *s, struct sp_error *err) {
    static struct node node;
    int r = loop_on_stop_signal(l, on_signal, l, err);
    r = r < 0 ? r : node_init(&node, l, s, err);
    if (r == 0)
        loop_run(l);
    node_done(&node);
    return r;
}

int main(int argc, char **argv) {
    static struct settings settings;
    struct sp_error err = {0};
    enum log_level level = LOG_L_INFO;
    struct loop *loop = NULL;
    int next, r;
    log_init("space-node", level);
    r = settings_load(&settings, argc, argv, "space-node [flags]", &next, &err);
    if (r == 0 && next != argc)
        r = sp_error_set(&err, SP_E_INVALID, "unexpected argument %s", argv[next]);
    if (r == 0 && log_level_from_name(settings.log_level, &level))
        log_set_level(level);
    r = r < 0 ? r : loop_new(&loop, &err);
    r = r < 0 ? r : run(loop, &settings, &err);
    loop_free(loop);
    if (r < 0)
        log_error(LOG_L_ERROR, "start_failed", &err, NULL);
    return r < 0 ? sp_code_exit_status(err.code) : 0;
}
