/* SPDX-License-Identifier: Apache-2.0 */
/* Spares: a blank gets its snapshot (a job), a loaded one its sandbox (at once). */
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/engine_ops.h"
#include "broker/store_ops.h"
#include "broker/vm_load.h"
#include "broker/vm_ops.h"

#define LOAD_TIMEOUT_MS 60000

/* --- bind ---------------------------------------------------------------------------------------------------------- */

static int bind(struct vm *vm, const char *sandbox, struct sp_error *err) {
    struct broker *b = vm->broker;
    int r = vm_bind(&b->layout, &vm->record, sandbox, err);

    if (r < 0)
        return r;
    vm_table_moved(&b->vms, vm);
    log_event(LOG_L_INFO, "vm_bound", "sandbox_id", sandbox, "spare", vm->record.cgroup, NULL);
    return 0;
}

/* 1: it was done before. */
static int check_bind(const struct broker *b, const struct vm *spare, const char *id, const char *sandbox,
                      struct sp_error *err) {
    const struct vm *other = vm_table_find(&b->vms, sandbox);

    if (other && strcmp(other->record.cgroup, id) == 0)
        return 1;
    if (other)
        return sp_error_set(err, SP_E_CONFLICT, "%s has a VM", sandbox);
    if (!spare || spare->unknown || spare->phase == VM_REMOVING)
        return sp_error_field(err, SP_E_NOT_FOUND, "id", "there is no spare %s", id);
    if (spare->phase != VM_KEPT)
        return sp_error_set(err, SP_E_CONFLICT, "%s is %s", id, vm_phase_name(spare->phase));
    if (spare->pidfd < 0 || process_is_dead(spare->pidfd))
        return sp_error_field(err, SP_E_NOT_FOUND, "id", "the spare %s is dead", id);
    if (spare->record.mode != MODE_CLONE)
        return sp_error_set(err, SP_E_CONFLICT, "%s was not loaded", id);
    return 0;
}

void vm_ops_bind(struct broker *b, struct request *request, const struct reply_to *to) {
    struct vm *spare = vm_table_find(&b->vms, request->id);
    struct sp_error err = {0};
    int r = check_bind(b, spare, request->id, request->sandbox, &err);

    if (r == 0)
        r = bind(spare, request->sandbox, &err);
    if (r < 0)
        server_fail(b->server, to, &err);
    else
        server_reply(b->server, to, NULL);
}

/* --- load ---------------------------------------------------------------------------------------------------------- */

static int load_work(void *arg, json_t **ret_result, struct sp_error *err) {
    struct vm *vm = arg;
    const struct vm_load load = {.layout = &vm->broker->layout, .config = vm->config, .bind = vm->bind};
    json_t *times = NULL;
    int r = vm_load(&load, &vm->record, &times, err);

    if (r == 0)
        *ret_result = json_pack("{s:o}", "timings_us", times);
    return r;
}

static void load_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct vm *vm = arg;
    struct broker *b = vm->broker;
    struct sp_error err = error ? *error : (struct sp_error){0};

    json_decref(vm->config);
    vm->config = NULL;
    vm->phase = VM_KEPT;
    vm->record.spoiled = error != NULL;
    if (!error) {
        vm->record.mode = MODE_CLONE;
        if (vm->bind[0] && bind(vm, vm->bind, &err) < 0)
            vm->record.spoiled = true;
    }
    vm->bind[0] = '\0';
    if (err.code != SP_OK)
        server_fail(b->server, &vm->starter, &err);
    else
        server_reply(b->server, &vm->starter,
                     json_pack("{s:I, s:O}", "uid", (json_int_t)vm->record.uid, "timings_us",
                               json_object_get(result, "timings_us")));
    vm->starter = (struct reply_to){0};
    vm_ops_settle(vm);
}

void vm_ops_launch_load(struct vm *vm) {
    const struct job_spec spec = {
        .name = "vm_load", .timeout_ms = LOAD_TIMEOUT_MS, .arg = vm, .work = load_work, .done = load_done};
    struct sp_error err = {0};

    vm->loading = false;
    vm->phase = VM_LOADING;
    if (jobs_add(vm->broker->jobs, &spec, &err) < 0)
        load_done(vm, NULL, &err);
}

void vm_ops_refuse_load(struct vm *vm, const struct sp_error *error) {
    vm->loading = false;
    load_done(vm, NULL, error);
}

static int check_load(struct broker *b, const struct vm *vm, const struct request *request,
                      struct snapshot_entry **ret_snapshot, struct sp_error *err) {
    if (!vm || vm->unknown)
        return sp_error_field(err, SP_E_NOT_FOUND, "id", "there is no spare %s", request->id);
    if (vm->phase != VM_KEPT)
        return sp_error_set(err, SP_E_CONFLICT, "%s is %s", request->id, vm_phase_name(vm->phase));
    if (vm->record.mode != MODE_BLANK || vm->record.spoiled)
        return sp_error_set(err, SP_E_CONFLICT, "%s was loaded before", request->id);
    if (strcmp(b->removing_template, request->template) == 0)
        return sp_error_set(err, SP_E_CONFLICT, "template %s is being removed", request->template);
    for (const struct vm *other = b->vms.first; request->bind[0] && other; other = other->next)
        if (strcmp(other->record.id, request->bind) == 0 || strcmp(other->bind, request->bind) == 0)
            return sp_error_set(err, SP_E_CONFLICT, "%s has a VM", request->bind);
    if (vm_ops_source(b, request->snapshot, ret_snapshot, err) < 0)
        return -(int)err->code;
    return engine_ops_fits(&vm->record, *ret_snapshot, err);
}

void vm_ops_load(struct broker *b, struct request *request, const struct reply_to *to) {
    struct vm *vm = vm_table_find(&b->vms, request->id);
    struct snapshot_entry *snapshot = NULL;
    struct sp_error err = {0};

    if (check_load(b, vm, request, &snapshot, &err) < 0) {
        server_fail(b->server, to, &err);
        return;
    }
    memcpy(vm->record.template, request->template, sizeof(vm->record.template));
    memcpy(vm->record.snapshot, request->snapshot, sizeof(vm->record.snapshot));
    memcpy(vm->record.base, request->snapshot, sizeof(vm->record.base));
    memcpy(vm->bind, request->bind, sizeof(vm->bind));
    vm->config = TAKE_PTR(request->config);
    vm->starter = *to;
    vm->loading = true;
    if (snapshot->trust == TRUST_GOOD) {
        vm_ops_launch_load(vm);
        return;
    }
    vm->phase = VM_CHECKING;
    store_ops_check(b, snapshot);
}
