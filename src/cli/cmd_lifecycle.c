/* SPDX-License-Identifier: Apache-2.0 */
/* pause, suspend, wake, rollback, snapshot, fork: what happens to a sandbox between create and delete. */
#include "base/text.h"
#include "cli/api.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/sandbox.h"
#include <string.h>

#define LIFECYCLE_WAIT_MS 180000
#define FORK_COUNT_MAX 100

/* POST /v1/sandboxes/ID/VERB. *ret_answer holds operation_id and whatever the call adds. */
static int ask(const struct api *a, const char *id, const char *verb, const json_t *body, json_t **ret_answer,
               struct sp_error *err) {
    char target[160];
    if (strchr(id, '/') || !text_printf(target, sizeof target, "/v1/sandboxes/%s/%s", id, verb))
        return sp_error_field(err, SP_E_INVALID, "SANDBOX", "%.40s is no sandbox id", id);
    return api_call(a, "POST", target, body, ret_answer, err);
}

static int wait_for(const struct api *a, const json_t *answer, const char *doing, json_t **ret_op,
                    struct sp_error *err) {
    const char *operation;
    int r = json_get_string(answer, "", "operation_id", 1, 63, &operation, err);
    return r < 0 ? r : api_wait_operation(a, operation, doing, LIFECYCLE_WAIT_MS, ret_op, err);
}

/* What a script needs is the id; with -o json the operation says how long each step took. */
static void print_result(const char *id, const json_t *op, const json_t *answer) {
    const json_t *shown = op ? op : json_object_get(answer, "operation");
    if (output_format() == OUTPUT_JSON)
        output_object(shown, NULL, 0);
    else
        (void)printf("%s\n", id);
}

static int one(const struct api *a, const char *id, const char *verb, const json_t *body, bool no_wait,
               struct sp_error *err) {
    _cleanup_json_ json_t *answer = NULL, *op = NULL;
    char doing[64];
    (void)text_printf(doing, sizeof doing, "waiting for %s", verb);
    int r = ask(a, id, verb, body, &answer, err);
    if (r == 0 && !no_wait)
        r = wait_for(a, answer, doing, &op, err);
    if (r == 0)
        print_result(id, op, answer);
    return r;
}

/* Every sandbox is tried; the first failure is what the command ends with, the others are said as they come. */
static int each(const struct command_args *in, const char *verb, struct sp_error *err) {
    struct command_args args = *in;
    bool no_wait = false;
    struct api a;
    const struct option_row rows[] = {{"--no-wait", 0, OPTION_FLAG, &no_wait}};
    int failed = 0, r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 1, 1000, "SANDBOX…", err)) < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    for (int i = 0; i < args.argc; i++) {
        struct sp_error why = {0};
        r = one(&a, args.argv[i], verb, NULL, no_wait, &why);
        if (r == 0)
            continue;
        if (args.argc > 1)
            (void)sp_error_wrap(&why, "%.40s", args.argv[i]);
        if (failed == 0) {
            failed = r;
            *err = why;
        } else
            (void)output_error(&why);
    }
    api_close(&a);
    return failed;
}

int cmd_pause(const struct command_args *in, int *ret_status, struct sp_error *err) {
    (void)ret_status;
    return each(in, "pause", err);
}
int cmd_suspend(const struct command_args *in, int *ret_status, struct sp_error *err) {
    (void)ret_status;
    return each(in, "suspend", err);
}
int cmd_wake(const struct command_args *in, int *ret_status, struct sp_error *err) {
    (void)ret_status;
    return each(in, "wake", err);
}

int cmd_rollback(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    bool no_wait = false;
    struct api a;
    const struct option_row rows[] = {{"--no-wait", 0, OPTION_FLAG, &no_wait}};
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 2, 2, "SANDBOX SNAPSHOT", err)) < 0)
        return r;
    _cleanup_json_ json_t *body = json_pack("{s:s}", "snapshot_id", args.argv[1]);
    if (!body)
        return sp_error_field(err, SP_E_INVALID, "SNAPSHOT", "must be UTF-8");
    if ((r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = one(&a, args.argv[0], "rollback", body, no_wait, err);
    api_close(&a);
    return r;
}

static int take_snapshot(const struct api *a, const char *id, const json_t *body, bool no_wait, struct sp_error *err) {
    _cleanup_json_ json_t *answer = NULL, *op = NULL;
    const char *snapshot;
    int r = ask(a, id, "snapshot", body, &answer, err);
    if (r == 0)
        r = json_get_string(json_object_get(answer, "snapshot"), "snapshot", "id", 1, 63, &snapshot, err);
    if (r == 0 && !no_wait)
        r = wait_for(a, answer, "taking the snapshot", &op, err);
    if (r == 0)
        print_result(snapshot, op, answer);
    return r;
}

int cmd_snapshot(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    const char *name = NULL, *labels[OPTION_LIST_MAX + 1] = {0};
    bool no_wait = false, disk = false;
    struct api a;
    const struct option_row rows[] = {{"--name", 0, OPTION_VALUE, &name},
                                      {"--label", 0, OPTION_LIST, labels},
                                      {"--disk", 0, OPTION_FLAG, &disk},
                                      {"--no-wait", 0, OPTION_FLAG, &no_wait}};
    _cleanup_json_ json_t *body = json_object();
    json_t *metadata = json_object();
    (void)ret_status;
    (void)json_object_set_new(body, "metadata", metadata);
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 1, 1, "SANDBOX", err)) < 0 ||
        (r = sandbox_put_pairs(metadata, labels, "--label", err)) < 0)
        return r;
    if (disk)
        (void)json_object_set_new(body, "content", json_string("disk"));
    if (name && json_object_set_new(body, "name", json_string(name)) < 0)
        return sp_error_field(err, SP_E_INVALID, "--name", "must be UTF-8");
    if ((r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = take_snapshot(&a, args.argv[0], body, no_wait, err);
    api_close(&a);
    return r;
}

/* Ids of the children that run on stdout, the others with their reason on stderr. Returns how many failed. */
static size_t print_children(const json_t *children) {
    size_t i, failed = 0;
    const json_t *child;
    json_array_foreach (children, i, child) {
        const char *id = json_string_value(json_object_get(child, "sandbox_id")) ?: "-";
        const json_t *e = json_object_get(child, "error");
        if (!json_is_object(e)) {
            if (output_format() != OUTPUT_JSON)
                (void)printf("%s\n", id);
            continue;
        }
        char why[200];
        const char *text = json_string_value(json_object_get(e, "message")) ?: "";
        failed++;
        (void)fprintf(stderr, "space: %s failed: %s (%s)\n", id, text_escape(why, sizeof why, text, strlen(text)),
                      json_string_value(json_object_get(e, "code")) ?: "unknown");
    }
    return failed;
}

static int make_fork(const struct api *a, const char *id, const json_t *body, bool no_wait, struct sp_error *err) {
    _cleanup_json_ json_t *answer = NULL, *op = NULL;
    const char *operation = "";
    char target[128];
    struct sp_error outcome = {0};
    int r = ask(a, id, "fork", body, &answer, err);
    if (r == 0)
        r = json_get_string(answer, "", "operation_id", 1, 63, &operation, err);
    if (r < 0)
        return r;
    int failed = no_wait ? 0 : wait_for(a, answer, "forking", NULL, &outcome);
    if (!text_printf(target, sizeof target, "/v1/operations/%.64s", operation))
        return sp_error_set(err, SP_E_PROTOCOL, "operation id too long");
    if ((r = api_call(a, "GET", target, NULL, &op, err)) < 0)
        return r;
    if (output_format() == OUTPUT_JSON)
        output_object(op, NULL, 0);
    const json_t *children = json_object_get(op, "children");
    size_t wrong = print_children(json_is_array(children) ? children : json_object_get(answer, "children"));
    if (failed < 0) {
        *err = outcome;
        return failed;
    }
    return wrong == 0 ? 0 : sp_error_set(err, SP_E_VMM, "%zu of the children failed", wrong);
}

int cmd_fork(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    const char *count = NULL, *name = NULL, *env[OPTION_LIST_MAX + 1] = {0}, *labels[OPTION_LIST_MAX + 1] = {0};
    uint64_t n = 1;
    bool no_wait = false;
    struct api a;
    const struct option_row rows[] = {{"--count", 'n', OPTION_VALUE, &count},
                                      {"--name", 0, OPTION_VALUE, &name},
                                      {"--env", 'e', OPTION_LIST, env},
                                      {"--label", 0, OPTION_LIST, labels},
                                      {"--no-wait", 0, OPTION_FLAG, &no_wait}};
    _cleanup_json_ json_t *body = json_pack("{s:{}, s:{}}", "env", "metadata");
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 1, 1, "SANDBOX", err)) < 0)
        return r;
    if (count && !text_to_u64(count, 1, FORK_COUNT_MAX, &n))
        return sp_error_field(err, SP_E_INVALID, "--count", "must be 1 to %d", FORK_COUNT_MAX);
    (void)json_object_set_new(body, "count", json_integer((json_int_t)n));
    if (name && json_object_set_new(body, "name", json_string(name)) < 0)
        return sp_error_field(err, SP_E_INVALID, "--name", "must be UTF-8");
    if ((r = sandbox_put_pairs(json_object_get(body, "env"), env, "--env", err)) < 0 ||
        (r = sandbox_put_pairs(json_object_get(body, "metadata"), labels, "--label", err)) < 0 ||
        (r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = make_fork(&a, args.argv[0], body, no_wait, err);
    api_close(&a);
    return r;
}
