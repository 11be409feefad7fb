/* SPDX-License-Identifier: Apache-2.0 */
/* create, ls, get, rm: sandboxes as objects. */
#include "base/cleanup.h"
#include "base/text.h"
#include "cli/api.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/sandbox.h"
#include "cli/view.h"
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
    {"AGE", "_age"},
    {"IDLE", "_idle"},
    {"MEMORY", "_memory"},
    {"DISK", "_disk"},
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
    {"generation", "generation"},
    {"lifecycle", "lifecycle"},
    {"parent", "parent"},
    {"snapshot", "snapshot_id"},
    {"active", "active_at"},
    {"streams", "streams"},
    {"node", "node_id"},
    {"accelerator", "accelerator"},
    {"kernel", "kernel"},
    {"vmm", "vmm"},
    {"metadata", "metadata"},
    {"error", "error"},
    {"start", "start_kind"},
    {"ms", "_timings"},
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

int sandbox_put_pairs(json_t *obj, const char *const *pairs, const char *option, struct sp_error *err) {
    for (size_t i = 0; pairs[i]; i++) {
        const char *eq = strchr(pairs[i], '=');
        if (!eq || eq == pairs[i])
            return sp_error_field(err, SP_E_INVALID, option, "must be NAME=VALUE");
        if (json_object_set_new(obj, strndupa(pairs[i], (size_t)(eq - pairs[i])), json_string(eq + 1)) < 0)
            return sp_error_field(err, SP_E_INVALID, option, "must be UTF-8");
    }
    return 0;
}

/* 0 is a value here: it turns a policy off. */
static int put_seconds(json_t *obj, const char *key, const char *text, const char *option, struct sp_error *err) {
    uint64_t v;
    if (!text)
        return 0;
    if (!text_to_u64(text, 0, INT32_MAX, &v))
        return sp_error_field(err, SP_E_INVALID, option, "must be a whole number of seconds");
    json_object_set_new(obj, key, json_integer((json_int_t)v));
    return 0;
}

/* Only what was asked for: the rest is the server's default. */
static int put_lifecycle(json_t *body, const struct sandbox_options *o, struct sp_error *err) {
    const struct {
        const char *key, *value, *option;
    } rows[] = {{"idle_pause_after_s", o->idle_pause, "--idle-pause"},
                {"idle_suspend_after_s", o->idle_suspend, "--idle-suspend"},
                {"delete_after_s", o->delete_after, "--delete-after"},
                {"max_life_s", o->max_life, "--max-life"}};
    json_t *lifecycle = json_object(), *checkpoint = json_object();
    int r = put_seconds(checkpoint, "every_s", o->checkpoint_every, "--checkpoint-every", err);
    if (r == 0 && o->checkpoint_disk && json_object_size(checkpoint) == 0)
        r = sp_error_field(err, SP_E_INVALID, "--checkpoint-disk", "goes with --checkpoint-every");
    if (o->checkpoint_disk)
        (void)json_object_set_new(checkpoint, "content", json_string("disk"));
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(rows); i++)
        r = put_seconds(lifecycle, rows[i].key, rows[i].value, rows[i].option, err);
    if (o->no_wake)
        (void)json_object_set_new(lifecycle, "wake_on_traffic", json_false());
    if (json_object_size(checkpoint) > 0)
        (void)json_object_set(lifecycle, "checkpoint", checkpoint);
    if (json_object_size(lifecycle) > 0)
        (void)json_object_set(body, "lifecycle", lifecycle);
    json_decref(checkpoint);
    json_decref(lifecycle);
    return r;
}

static int create_body(const struct sandbox_options *o, const char *template_ref, json_t **ret, struct sp_error *err) {
    _cleanup_json_ json_t *body =
        o->snapshot ? json_pack("{s:s}", "snapshot_id", o->snapshot) : json_pack("{s:s}", "template", template_ref);
    json_t *resources = json_object(), *env = json_object(), *metadata = json_object();
    int r = body ? 0 : sp_error_field(err, SP_E_INVALID, o->snapshot ? "--snapshot" : "TEMPLATE", "must be UTF-8");
    if (r == 0 && (r = put_number(resources, "vcpus", o->vcpus, "--vcpus", err)) == 0 &&
        (r = put_number(resources, "memory_mib", o->memory_mib, "--memory-mib", err)) == 0 &&
        (r = sandbox_put_pairs(env, o->env, "--env", err)) == 0 &&
        (r = sandbox_put_pairs(metadata, o->labels, "--label", err)) == 0)
        r = put_lifecycle(body, o, err);
    if (json_object_size(resources) > 0)
        (void)json_object_set(body, "resources", resources);
    (void)json_object_set(body, "env", env);
    (void)json_object_set(body, "metadata", metadata);
    json_decref(resources);
    json_decref(env);
    json_decref(metadata);
    if (r == 0 && o->name && json_object_set_new(body, "name", json_string(o->name)) < 0)
        r = sp_error_field(err, SP_E_INVALID, "--name", "must be UTF-8");
    if (r == 0)
        *ret = TAKE_PTR(body);
    return r;
}

int sandbox_create(const struct api *a, const struct sandbox_options *o, const char *template_ref, char ret_id[64],
                   struct sp_error *err) {
    _cleanup_json_ json_t *body = NULL, *answer = NULL;
    const char *id, *operation;
    int r = create_body(o, template_ref, &body, err);
    if (r < 0 || (r = api_call(a, "POST", "/v1/sandboxes", body, &answer, err)) < 0 ||
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
    const struct option_row rows[] = {SANDBOX_OPTION_ROWS(o),
                                      {"--snapshot", 0, OPTION_VALUE, &o.snapshot},
                                      {"--no-wait", 0, OPTION_FLAG, &o.no_wait}};
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    int words = o.snapshot ? 0 : 1;
    if (r < 0 ||
        (r = command_expect(&args, words, words, o.snapshot ? "no TEMPLATE beside --snapshot" : "TEMPLATE", err)) < 0 ||
        (r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = sandbox_create(&a, &o, args.argv[0], id, err);
    api_close(&a);
    if (r == 0)
        (void)printf("%s\n", id);
    return r;
}

static bool holds_memory(const char *state) {
    static const char *const without[] = {"suspended", "failed", "deleted"};
    for (size_t i = 0; i < ARRAY_SIZE(without); i++)
        if (strcmp(state, without[i]) == 0)
            return false;
    return true;
}

/* What a person wants to see of each: its age, for how long nobody used it, what it holds of memory and disk. */
static void fill_in(json_t *items, const json_t *snapshots) {
    char text[VIEW_SIZE];
    size_t i, k;
    json_t *item;
    const json_t *snapshot;
    json_array_foreach (items, i, item) {
        const char *id = json_string_value(json_object_get(item, "id")) ?: "",
                   *state = json_string_value(json_object_get(item, "state")) ?: "";
        json_int_t mib = json_integer_value(json_object_get(json_object_get(item, "resources"), "memory_mib")),
                   disk = 0;
        json_array_foreach (snapshots, k, snapshot)
            if (strcmp(json_string_value(json_object_get(snapshot, "sandbox_id")) ?: "", id) == 0)
                disk += json_integer_value(json_object_get(snapshot, "exclusive_bytes"));
        view_set_age(item, "_age", "created_at");
        view_set_age(item, "_idle", "active_at");
        if (json_integer_value(json_object_get(item, "streams")) > 0)
            (void)json_object_set_new(item, "_idle", json_string("in use"));
        (void)view_bytes(text, holds_memory(state) && mib > 0 ? (uint64_t)mib << 20 : 0);
        (void)json_object_set_new(item, "_memory", json_string(text));
        (void)json_object_set_new(item, "_disk", json_string(view_bytes(text, disk > 0 ? (uint64_t)disk : 0)));
    }
}

int cmd_ls(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    _cleanup_json_ json_t *items = NULL, *deleted = NULL, *snapshots = NULL;
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
    if (r == 0 && output_format() == OUTPUT_TABLE && (r = api_list(&a, "/v1/snapshots", &snapshots, err)) == 0)
        fill_in(items, snapshots);
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
    if (r == 0 && output_format() == OUTPUT_TABLE)
        view_set_timings(sandbox, "_timings");
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
