/* SPDX-License-Identifier: Apache-2.0 */
/* op get, op ls, op wait: records of asynchronous requests. */
#include "base/text.h"
#include "cli/api.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/view.h"

static const struct output_column columns[] = {
    {"ID", "id"},
    {"KIND", "kind"},
    {"STATE", "state"},
    {"SANDBOX", "sandbox_id"},
    {"REASON", "reason"},
    {"START", "start_kind"},
    {"MS", "timings.control_total_ms"},
    {"ACCEPTED", "accepted_at"},
    {"ERROR", "error"},
};
static const struct output_column details[] = {
    {"id", "id"},
    {"kind", "kind"},
    {"state", "state"},
    {"sandbox", "sandbox_id"},
    {"reason", "reason"},
    {"snapshot", "snapshot_id"},
    {"start", "start_kind"},
    {"ms", "_timings"},
    {"accepted", "accepted_at"},
    {"started", "started_at"},
    {"finished", "finished_at"},
    {"children", "children"},
    {"error", "error"},
};

static void show(json_t *op) {
    if (output_format() == OUTPUT_TABLE)
        view_set_timings(op, "_timings");
    output_object(op, details, ARRAY_SIZE(details));
}

int cmd_op_get(const struct command_args *in, int *ret_status, struct sp_error *err) {
    _cleanup_json_ json_t *op = NULL;
    char target[128];
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 1, 1, "OPERATION", err);
    if (r < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    if (!text_printf(target, sizeof target, "/v1/operations/%.64s", in->argv[0]))
        return sp_error_field(err, SP_E_INVALID, "OPERATION", "is too long");
    r = api_call(&a, "GET", target, NULL, &op, err);
    api_close(&a);
    if (r == 0)
        show(op);
    return r;
}

int cmd_op_ls(const struct command_args *in, int *ret_status, struct sp_error *err) {
    _cleanup_json_ json_t *items = NULL;
    char target[128] = "/v1/operations";
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 0, 1, "[SANDBOX]", err);
    if (r < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    if (in->argc == 1 && !text_printf(target, sizeof target, "/v1/operations?sandbox_id=%.64s", in->argv[0]))
        return sp_error_field(err, SP_E_INVALID, "SANDBOX", "is too long");
    r = api_list(&a, target, &items, err);
    api_close(&a);
    if (r == 0)
        output_list(items, columns, ARRAY_SIZE(columns));
    return r;
}

int cmd_op_wait(const struct command_args *in, int *ret_status, struct sp_error *err) {
    _cleanup_json_ json_t *op = NULL;
    struct api a;
    (void)ret_status;
    int r = command_expect(in, 1, 1, "OPERATION", err);
    if (r < 0 || (r = api_open(&a, in->settings, err)) < 0)
        return r;
    r = api_wait_operation(&a, in->argv[0], "waiting for the operation", 3600 * 1000ull, &op, err);
    api_close(&a);
    if (r == 0)
        show(op);
    return r;
}
