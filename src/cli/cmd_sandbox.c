/* SPDX-License-Identifier: Apache-2.0 */
/* create, ls, get, rm: sandboxes as objects. */
#include "base/cleanup.h"
#include "base/text.h"
#include "cli/api.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/sandbox.h"
#include <string.h>

#define CREATE_WAIT_MS 180000
#define DELETE_WAIT_MS 60000

static const struct output_column sandbox_columns[] = {
    {"ID", "id"},
    {"NAME", "name"},
    {"STATE", "state"},
    {"READY", "ready"},
    {"TEMPLATE", "template.name"},
    {"TAG", "template.tag"},
    {"CREATED", "created_at"},
};
static const struct output_column sandbox_details[] = {
    {"id", "id"},
    {"name", "name"},
    {"state", "state"},
    {"ready", "ready"},
    {"template", "template.name"},
    {"tag", "template.tag"},
    {"digest", "template.digest"},
    {"vcpus", "resources.vcpus"},
    {"memory_mib", "resources.memory_mib"},
    {"node", "node_id"},
    {"accelerator", "accelerator"},
    {"kernel", "kernel"},
    {"vmm", "vmm"},
    {"metadata", "metadata"},
    {"error", "error"},
    {"timings", "timings"},
    {"created", "created_at"},
    {"started", "started_at"},
    {"deleted", "deleted_at"},
};

static int put_number(json_t *obj, const char *key, const char *text, const char *option, struct sp_error *err) {
    uint64_t v;
    if (!text)
        return 0;
    if (!text_to_u64(text, 1, INT32_MAX, &v))
        return sp_error_field(err, SP_E_INVALID, option, "must be a whole number above 0");
    json_object_set_new(obj, key, json_integer((json_int_t)v));
    return 0;
}

static int put_pairs(json_t *obj, const char *const *pairs, const char *option, struct sp_error *err) {
    for (size_t i = 0; pairs[i]; i++) {
        const char *eq = strchr(pairs[i], '=');
        if (!eq || eq == pairs[i])
            return sp_error_field(err, SP_E_INVALID, option, "must be NAME=VALUE");
        if (json_object_set_new(obj, strndupa(pairs[i], (size_t)(eq - pairs[i])), json_string(eq + 1)) < 0)
            return sp_error_field(err, SP_E_INVALID, option, "must be UTF-8");
    }
    return 0;
}

int sandbox_create(const struct api *a, const struct sandbox_options *o, const char *template_ref, char ret_id[64],
                   struct sp_error *err) {
    _cleanup_json_ json_t *body = json_pack("{s:s}", "template", template_ref), *answer = NULL;
    json_t *resources = json_object(), *env = json_object(), *metadata = json_object();
    const char *id, *operation;
    if (!body)
        return sp_error_field(err, SP_E_INVALID, "template", "must be UTF-8");
    json_object_set_new(body, "resources", resources);
    json_object_set_new(body, "env", env);
    json_object_set_new(body, "metadata", metadata);
    if (o->name)
        json_object_set_new(body, "name", json_string(o->name));
    int r = put_number(resources, "vcpus", o->vcpus, "--vcpus", err);
    if (r < 0 || (r = put_number(resources, "memory_mib", o->memory_mib, "--memory-mib", err)) < 0 ||
        (r = put_pairs(env, o->env, "--env", err)) < 0 || (r = put_pairs(metadata, o->labels, "--label", err)) < 0 ||
        (r = api_call(a, "POST", "/v1/sandboxes", body, &answer, err)) < 0 ||
        (r = json_get_string(json_object_get(answer, "sandbox"), "sandbox", "id", 1, 63, &id, err)) < 0 ||
        (r = json_get_string(answer, "", "operation_id", 1, 63, &operation, err)) < 0)
        return r;
    (void)text_copy(ret_id, 64, id);
    return o->no_wait ? 0 : api_wait_operation(a, operation, "creating the sandbox", CREATE_WAIT_MS, NULL, err);
}

int sandbox_delete(const struct api *a, const char *id, bool wait, struct sp_error *err) {
    _cleanup_json_ json_t *answer = NULL;
    const char *operation;
    char target[128];
    if (strchr(id, '/') || !text_printf(target, sizeof target, "/v1/sandboxes/%s", id))
        return sp_error_field(err, SP_E_INVALID, "sandbox", "%.40s is no sandbox id", id);
    int r = api_call(a, "DELETE", target, NULL, &answer, err);
    if (r < 0 || !wait || (r = json_get_string(answer, "", "operation_id", 1, 63, &operation, err)) < 0)
        return r;
    return api_wait_operation(a, operation, "deleting the sandbox", DELETE_WAIT_MS, NULL, err);
}

int cmd_create(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    struct sandbox_options o = {0};
    struct api a;
    char id[64];
    const struct option_row rows[] = {SANDBOX_OPTION_ROWS(o), {"--no-wait", 0, OPTION_FLAG, &o.no_wait}};
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 1, 1, "TEMPLATE", err)) < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = sandbox_create(&a, &o, args.argv[0], id, err);
    api_close(&a);
    if (r == 0)
        (void)printf("%s\n", id);
    return r;
}

int cmd_ls(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    _cleanup_json_ json_t *items = NULL, *deleted = NULL;
    const char *state = NULL;
    bool all = false;
    char target[128] = "/v1/sandboxes";
    struct api a;
    const struct option_row rows[] = {{"--state", 0, OPTION_VALUE, &state}, {"--all", 'a', OPTION_FLAG, &all}};
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 0, 0, "no words", err)) < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    if (state && !text_printf(target, sizeof target, "/v1/sandboxes?state=%.32s", state))
        return sp_error_field(err, SP_E_INVALID, "--state", "is too long");
    r = api_list(&a, target, &items, err);
    if (r == 0 && all && (r = api_list(&a, "/v1/sandboxes?state=deleted", &deleted, err)) == 0)
        json_array_extend(items, deleted);
    api_close(&a);
    if (r == 0)
        output_list(items, sandbox_columns, ARRAY_SIZE(sandbox_columns));
    return r;
}

int cmd_get(const struct command_args *in, int *ret_status, struct sp_error *err) {
    _cleanup_json_ json_t *sandbox = NULL;
    char target[128];
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 1, 1, "SANDBOX", err);
    if (r < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    if (!text_printf(target, sizeof target, "/v1/sandboxes/%.64s", in->argv[0]))
        return sp_error_field(err, SP_E_INVALID, "SANDBOX", "is too long");
    r = api_call(&a, "GET", target, NULL, &sandbox, err);
    api_close(&a);
    if (r == 0)
        output_object(sandbox, sandbox_details, ARRAY_SIZE(sandbox_details));
    return r;
}

int cmd_rm(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    bool no_wait = false;
    struct api a;
    const struct option_row rows[] = {{"--no-wait", 0, OPTION_FLAG, &no_wait}};
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 1, 1000, "SANDBOX…", err)) < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    for (int i = 0; r == 0 && i < args.argc; i++) {
        r = sandbox_delete(&a, args.argv[i], !no_wait, err);
        if (r == 0)
            (void)printf("%s\n", args.argv[i]);
    }
    api_close(&a);
    return r;
}
