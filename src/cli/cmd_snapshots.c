/* SPDX-License-Identifier: Apache-2.0 */
/* snapshots ls, get, rm: what sandboxes can be brought back from. */
#include "base/text.h"
#include "cli/api.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/view.h"
#include <string.h>

static const struct output_column columns[] = {
    {"ID", "id"},
    {"NAME", "name"},
    {"KIND", "kind"},
    {"CONTENT", "content"},
    {"STATE", "state"},
    {"SANDBOX", "sandbox_id"},
    {"GEN", "generation"},
    {"AGE", "_age"},
    {"MEMORY", "_memory"},
    {"DISK", "_disk"},
    {"EXCLUSIVE", "_exclusive"},
};
static const struct output_column details[] = {
    {"id", "id"},
    {"name", "name"},
    {"kind", "kind"},
    {"content", "content"},
    {"state", "state"},
    {"sandbox", "sandbox_id"},
    {"generation", "generation"},
    {"parent", "parent_id"},
    {"node", "node_id"},
    {"memory", "memory_bytes"},
    {"disk", "disk_bytes"},
    {"exclusive", "exclusive_bytes"},
    {"stall_us", "stall_us"},
    {"template", "template.digest"},
    {"metadata", "metadata"},
    {"error", "error"},
    {"created", "created_at"},
    {"ready", "ready_at"},
};

int cmd_snapshots_ls(const struct command_args *in, int *ret_status, struct sp_error *err) {
    struct command_args args = *in;
    _cleanup_json_ json_t *items = NULL;
    const char *sandbox = NULL, *kind = NULL;
    char target[192];
    size_t i;
    json_t *item;
    struct api a;
    const struct option_row rows[] = {{"--sandbox", 0, OPTION_VALUE, &sandbox}, {"--kind", 0, OPTION_VALUE, &kind}};
    (void)ret_status;
    int r = command_options(&args, rows, ARRAY_SIZE(rows), false, err);
    if (r < 0 || (r = command_expect(&args, 0, 0, "no words", err)) < 0)
        return r;
    if (!text_printf(target, sizeof target, "/v1/snapshots%s%.64s%s%.32s", sandbox ? "?sandbox_id=" : "",
                     sandbox ? sandbox : "",
                     !kind     ? ""
                     : sandbox ? "&kind="
                               : "?kind=",
                     kind ? kind : ""))
        return sp_error_field(err, SP_E_INVALID, "--sandbox", "is too long");
    if ((r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = api_list(&a, target, &items, err);
    api_close(&a);
    if (r < 0)
        return r;
    if (output_format() == OUTPUT_TABLE)
        json_array_foreach (items, i, item) {
            view_set_age(item, "_age", "created_at");
            view_set_bytes(item, "_memory", "memory_bytes");
            view_set_bytes(item, "_disk", "disk_bytes");
            view_set_bytes(item, "_exclusive", "exclusive_bytes");
        }
    output_list(items, columns, ARRAY_SIZE(columns));
    return 0;
}

static int snapshot_target(char target[128], const char *id, struct sp_error *err) {
    if (strchr(id, '/') || !text_printf(target, 128, "/v1/snapshots/%s", id))
        return sp_error_field(err, SP_E_INVALID, "SNAPSHOT", "%.40s is no snapshot id", id);
    return 0;
}

int cmd_snapshots_get(const struct command_args *in, int *ret_status, struct sp_error *err) {
    _cleanup_json_ json_t *snapshot = NULL;
    char target[128];
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 1, 1, "SNAPSHOT", err);
    if (r < 0 || (r = snapshot_target(target, in->argv[0], err)) < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = api_call(&a, "GET", target, NULL, &snapshot, err);
    api_close(&a);
    if (r == 0)
        output_object(snapshot, details, ARRAY_SIZE(details));
    return r;
}

int cmd_snapshots_rm(const struct command_args *in, int *ret_status, struct sp_error *err) {
    char target[128];
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 1, 1000, "SNAPSHOT…", err);
    if (r < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    for (int i = 0; r == 0 && i < in->argc; i++) {
        if ((r = snapshot_target(target, in->argv[i], err)) == 0)
            r = api_call(&a, "DELETE", target, NULL, NULL, err);
        if (r == 0)
            (void)printf("%s\n", in->argv[i]);
    }
    api_close(&a);
    return r;
}
