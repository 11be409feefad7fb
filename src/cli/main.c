/* SPDX-License-Identifier: Apache-2.0 */
/* `space`: the table of commands, global flags, help. What a command does is in its own file. */
#include "base/banned.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/output.h"
#include <stdio.h>
#include <string.h>

static const struct command commands[] = {
    {"up", "", "start the whole system on this machine", "Needs root. Safe to repeat: starts what is not running.",
     cmd_up},
    {"down", "[--keep-sandboxes]", "stop the system and its sandboxes", NULL, cmd_down},
    {"doctor", "", "say what this host has and lacks", NULL, cmd_doctor},
    {"supervise", "", "run the daemons in the foreground (what `up` does in the background)", NULL, cmd_supervise},
    {"create",
     "(TEMPLATE | --snapshot SNAPSHOT) [--name N] [--vcpus N] [--memory-mib N] [--env K=V]… [--label K=V]… "
     "[--no-wait]\n"
     "         [--idle-pause S] [--idle-suspend S] [--delete-after S] [--max-life S] [--no-wake]\n"
     "         [--checkpoint-every S [--checkpoint-disk]]",
     "create a sandbox, print its id",
     "Idle: no open stream, no running command, no change by a client. 0 turns a policy off; without --idle-suspend a\n"
     "sandbox is suspended after six hours. --no-wake: a new command does not wake it. --checkpoint-disk: checkpoints "
     "hold\n"
     "the disk alone, and starting from one boots.",
     cmd_create},
    {"ls", "[--all] [--state S]", "list sandboxes: state, age, idle time, memory, disk",
     "MEMORY is the guest's, 0 when no VM holds any. DISK is what its snapshots alone hold of the host's.", cmd_ls},
    {"get", "SANDBOX", "show one sandbox", NULL, cmd_get},
    {"rm", "SANDBOX… [--no-wait]", "delete sandboxes", NULL, cmd_rm},
    {"pause", "SANDBOX… [--no-wait]", "stop a sandbox where it stands, in memory", NULL, cmd_pause},
    {"suspend", "SANDBOX… [--no-wait]", "put a sandbox on disk, give its memory back", NULL, cmd_suspend},
    {"wake", "SANDBOX… [--no-wait]", "let a paused, suspended or failed sandbox go on", NULL, cmd_wake},
    {"snapshot", "SANDBOX [--disk] [--name N] [--label K=V]… [--no-wait]",
     "keep a sandbox as it is now, print the snapshot's id",
     "The sandbox goes on; its guest stands still for milliseconds. --disk: its files alone. Small, and whoever starts "
     "from\n"
     "it boots: files come back, programs don't.",
     cmd_snapshot},
    {"fork", "SANDBOX [--count N] [--name N] [--env K=V]… [--label K=V]… [--no-wait]",
     "make sandboxes that go on from this moment, print their ids", NULL, cmd_fork},
    {"rollback", "SANDBOX SNAPSHOT [--no-wait]", "set a sandbox back to a snapshot of its line",
     "What ran in it ends, and what was not in a snapshot is lost.", cmd_rollback},
    {"snapshots ls", "[--sandbox SANDBOX] [--kind K]", "list snapshots", NULL, cmd_snapshots_ls},
    {"snapshots get", "SNAPSHOT", "show one snapshot", NULL, cmd_snapshots_get},
    {"snapshots rm", "SNAPSHOT…", "remove snapshots",
     "Refused while a sandbox is suspended on it. What was made from it stays.", cmd_snapshots_rm},
    {"snapshots", "[--sandbox SANDBOX] [--kind K]", "the same as snapshots ls", NULL, cmd_snapshots_ls},
    {"pool ls", "", "list pools of machines started ahead of need", NULL, cmd_pool_ls},
    {"pool set", "TEMPLATE SIZE [--vcpus N] [--memory-mib N]", "keep SIZE machines of a template ready",
     "A create of the same template and size takes one.", cmd_pool_set},
    {"pool rm", "TEMPLATE | POOL", "end a pool", NULL, cmd_pool_rm},
    {"run", "TEMPLATE [create and exec options] [--keep] -- COMMAND [ARG]…", "create, run one command, delete",
     "The exit status is the command's; 128 + N when signal N ended it.", cmd_run},
    {"exec", "SANDBOX [-i] [--user U] [--cwd D] [--env K=V]… [--timeout S] [--detach] -- COMMAND [ARG]…",
     "run a command in a sandbox", "-i passes standard input on. Ctrl-C reaches the command; the third one detaches.",
     cmd_exec},
    {"logs", "SESSION", "show the output of a command started with exec --detach", NULL, cmd_logs},
    {"op get", "OPERATION", "show an operation: how it went, where its milliseconds went",
     "START says what a start was made from: warm (a pool had one), blank (restored into a VMM that stood by), cold.",
     cmd_op_get},
    {"op ls", "[SANDBOX]", "list operations", NULL, cmd_op_ls},
    {"op wait", "OPERATION", "wait until an operation is over", NULL, cmd_op_wait},
    {"template build",
     "NAME[:TAG] (--from-dir DIR | --from-tar FILE | --from-oci DIR:TAG) [--manifest FILE] [--disk-mib N] [--private]",
     "build a template and register it", "Needs root: files keep their owners.", cmd_template_build},
    {"template ls", "", "list templates", NULL, cmd_template_ls},
    {"template get", "NAME", "show a template's tags and releases", NULL, cmd_template_get},
    {"template tag", "NAME:TAG DIGEST", "point a tag at a release", NULL, cmd_template_tag},
    {"template rm", "NAME[@DIGEST | :TAG]", "remove a template, a release or a tag", NULL, cmd_template_rm},
};

static void print_help(void) {
    (void)printf("space: a Linux microVM of its own for every agent task\n\n"
                 "usage: space [--state-dir DIR] [--json] COMMAND …\n\n");
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        (void)printf("  %-15s %s\n", commands[i].name, commands[i].summary);
    (void)printf("\n`space COMMAND --help` shows a command's options, `space --help` all settings.\n");
}

/* Matches "template build" against argv[0] argv[1]; returns the number of words, 0 when it is not this one. */
static int match(const struct command *c, int argc, char **argv) {
    size_t first = strcspn(c->name, " ");
    if (strlen(argv[0]) != first || memcmp(c->name, argv[0], first) != 0)
        return 0;
    if (c->name[first] == '\0')
        return 1;
    return argc > 1 && strcmp(c->name + first + 1, argv[1]) == 0 ? 2 : 0;
}

static int unknown(int argc, char **argv) {
    const char *names[ARRAY_SIZE(commands)];
    char word[130];
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        size_t n = strlen(argv[0]);
        names[i] = commands[i].name;
        if (strncmp(names[i], argv[0], n) == 0 && names[i][n] == ' ' && argc < 2) {
            (void)fprintf(stderr, "space: usage: %s %s\n", commands[i].name, commands[i].usage);
            return 64;
        }
    }
    if (!text_printf(word, sizeof word, argc > 1 && strcmp(argv[0], "template") == 0 ? "%s %s" : "%s", argv[0],
                     argc > 1 ? argv[1] : ""))
        word[0] = '\0';
    const char *near = text_nearest(word, names, ARRAY_SIZE(commands));
    (void)fprintf(stderr, "space: no command %s%s%s%s; see: space help\n", word, near ? "; did you mean " : "",
                  near ? near : "", near ? "?" : "");
    return 64;
}

static bool wants_help(int argc, char **argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* `-o json`, or `--json`, is taken wherever it stands before "--". */
static int take_format(int argc, char **argv) {
    int kept = 0;
    bool rest = false;
    for (int i = 0; i < argc; i++) {
        rest = rest || strcmp(argv[i], "--") == 0;
        if (!rest && strcmp(argv[i], "-o") == 0 && i + 1 < argc && strcmp(argv[i + 1], "json") == 0) {
            output_set_format(OUTPUT_JSON);
            i++;
            continue;
        }
        if (!rest && strcmp(argv[i], "--json") == 0) {
            output_set_format(OUTPUT_JSON);
            continue;
        }
        argv[kept++] = argv[i];
    }
    argv[kept] = NULL;
    return kept;
}

static int run(const struct settings *s, int argc, char **argv) {
    struct sp_error err = {0};
    int status = 0;
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        const struct command *c = &commands[i];
        int words = match(c, argc, argv);
        if (words == 0)
            continue;
        if (wants_help(argc - words, argv + words)) {
            (void)printf("usage: space %s %s\n\n%s.\n%s%s", c->name, c->usage, c->summary, c->details ? c->details : "",
                         c->details ? "\n" : "");
            return 0;
        }
        const struct command_args args = {.settings = s, .argc = argc - words, .argv = argv + words};
        return c->run(&args, &status, &err) < 0 ? output_error(&err) : status;
    }
    return unknown(argc, argv);
}

int main(int argc, char **argv) {
    static struct settings settings;
    struct sp_error err = {0};
    int next = 1;
    log_init("space", LOG_L_WARN);
    argc = take_format(argc, argv);
    if (settings_load(&settings, argc, argv, "space [SETTING]… COMMAND …", &next, &err) < 0)
        return output_error(&err);
    if (next < argc && strcmp(argv[next], "--") == 0)
        next++;
    if (next >= argc || strcmp(argv[next], "help") == 0) {
        print_help();
        return next >= argc ? 64 : 0;
    }
    return run(&settings, argc - next, argv + next);
}
