/* SPDX-License-Identifier: Apache-2.0 */
/* One row a command: main finds it, checks the number of arguments, and calls it. */
#pragma once
#include "base/error.h"
#include "model/settings.h"
#include <stdbool.h>

struct command_args {
    const struct settings *settings;
    int argc;
    char **argv; /* argv[0] is the first word after the command's own name; NULL-ended */
};

/* Returns 0 or a negative code; *ret_status is the exit status on success (default 0). */
typedef int command_fn(const struct command_args *args, int *ret_status, struct sp_error *err);

struct command {
    const char *name;    /* "template build": up to two words */
    const char *usage;   /* after the name */
    const char *summary; /* one line */
    const char *details; /* more for --help of this command, or NULL */
    command_fn *run;
};

/* Options of one command: a row each, so that parsing, errors and help are the same everywhere. */
enum option_kind { OPTION_FLAG, OPTION_VALUE, OPTION_LIST };
struct option_row {
    const char *name; /* "--name" */
    char short_name;  /* 'o' or 0 */
    enum option_kind kind;
    void *target; /* bool *, const char **, or const char *[OPTION_LIST_MAX + 1] */
};
#define OPTION_LIST_MAX 64
/* Takes options out of args up to "--" or, with stop_at_word, the first word that is none. *ret_argc/argv is what is left
 * ("--" taken away), written into args->argv. An unknown option is SP_E_INVALID naming the nearest. */
int command_options(struct command_args *args, const struct option_row *rows, size_t n, bool stop_at_word,
                    struct sp_error *err);
/* Exactly min..max words left. */
int command_expect(const struct command_args *args, int min, int max, const char *what, struct sp_error *err);

command_fn cmd_up, cmd_supervise, cmd_down, cmd_doctor;
command_fn cmd_create, cmd_ls, cmd_get, cmd_rm, cmd_run, cmd_exec, cmd_logs;
command_fn cmd_pause, cmd_suspend, cmd_wake, cmd_snapshot, cmd_fork, cmd_rollback;
command_fn cmd_snapshots_ls, cmd_snapshots_get, cmd_snapshots_rm;
command_fn cmd_pool_ls, cmd_pool_set, cmd_pool_rm;
command_fn cmd_op_get, cmd_op_ls, cmd_op_wait;
command_fn cmd_template_build, cmd_template_ls, cmd_template_get, cmd_template_tag, cmd_template_rm;
