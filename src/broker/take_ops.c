/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of live VMs: the job that takes one, and the one that clears up when that came to nothing. */
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/snapshot_take.h"
#include "broker/store_ops.h"
#include "broker/vm_ops.h"

#define TAKE_TIMEOUT_MS 600000
#define UNDO_TIMEOUT_MS 60000

static void settle(struct vm *vm) {
    json_decref(vm->seal_manifest);
    vm->seal_manifest = NULL;
    vm->seal_key[0] = '\0';
    vm->starter = (struct reply_to){0};
    vm->phase = VM_KEPT;
    vm_ops_settle(vm);
}

/* --- when it failed ------------------------------------------------------------------------------------------------- */

static int undo_work(void *arg, json_t **ret_result, struct sp_error *err) {
    struct vm *vm = arg;
    bool published = false;
    int r = snapshot_take_undo(&vm->broker->layout, vm->seal_key, &vm->record, &published, err);

    if (r == 0)
        *ret_result = json_pack("{s:b, s:s, s:s}", "published", published, "base", vm->record.base, "disk_base",
                                vm->record.disk_base);
    return r;
}

static void undo_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct vm *vm = arg;
    struct broker *b = vm->broker;
    const char *base = json_string_value(json_object_get(result, "base"));
    const char *disk_base = json_string_value(json_object_get(result, "disk_base"));

    if (error)
        log_error(LOG_L_ERROR, "snapshot_not_undone", error, "sandbox_id", vm->record.id, NULL);
    if (base)
        (void)text_copy(vm->record.base, sizeof(vm->record.base), base);
    if (disk_base)
        (void)text_copy(vm->record.disk_base, sizeof(vm->record.disk_base), disk_base);
    if (json_is_true(json_object_get(result, "published")))
        store_ops_stat_existing(b, vm->seal_key, &vm->starter); /* answers */
    else
        server_fail(b->server, &vm->starter, &vm->failure);
    vm->failure = (struct sp_error){0};
    settle(vm);
}

static void begin_undo(struct vm *vm, const struct sp_error *error) {
    const struct job_spec spec = {
        .name = "snapshot_undo", .timeout_ms = UNDO_TIMEOUT_MS, .arg = vm, .work = undo_work, .done = undo_done};
    struct sp_error err = {0};

    vm->failure = *error;
    if (vm->waiters) { /* goes with the VM */
        undo_done(vm, NULL, NULL);
        return;
    }
    if (jobs_add(vm->broker->jobs, &spec, &err) < 0)
        undo_done(vm, NULL, &err);
}

/* --- taking ---------------------------------------------------------------------------------------------------------- */

static int take_work(void *arg, json_t **ret_result, struct sp_error *err) {
    struct vm *vm = arg;
    const struct snapshot_take take = {.layout = &vm->broker->layout,
                                       .key = vm->seal_key,
                                       .then = vm->then,
                                       .content = vm->content,
                                       .node_manifest = vm->seal_manifest};
    return snapshot_take(&take, &vm->record, ret_result, err);
}

static bool is_good(struct broker *b, const char *key) {
    const struct snapshot_entry *snapshot = store_ops_snapshot(b, key);
    return snapshot && snapshot->trust == TRUST_GOOD;
}

static void take_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct vm *vm = arg;
    struct broker *b = vm->broker;
    const char *disk_base = vm->record.disk_base;

    if (error) {
        begin_undo(vm, error);
        return;
    }
    /* What it shares with its base is worth as much as the base. */
    if (is_good(b, vm->record.base) && (!disk_base[0] || !store_ops_snapshot(b, disk_base) || is_good(b, disk_base)))
        store_ops_sealed(b, vm->seal_key);
    else
        (void)store_ops_snapshot(b, vm->seal_key);
    store_ops_note_extents(b, vm->seal_key, (uint64_t)json_integer_value(json_object_get(result, "extents")));
    snapshot_take_based(&vm->record, vm->seal_key, vm->content);
    log_event(LOG_L_INFO, "snapshot_taken", "sandbox_id", vm->record.id, "snapshot", vm->seal_key, NULL);
    server_reply(b->server, &vm->starter, json_deep_copy(result));
    settle(vm);
}

static int check_take(struct broker *b, const struct vm *vm, const struct request *request, struct sp_error *err) {
    if (!vm || vm->unknown)
        return sp_error_field(err, SP_E_NOT_FOUND, "id", "there is no VM %s", request->id);
    if (vm->phase != VM_KEPT)
        return sp_error_set(err, SP_E_CONFLICT, "%s is %s", vm->record.id, vm_phase_name(vm->phase));
    if ((vm->record.mode != MODE_CLONE && vm->record.mode != MODE_BOOT) || !vm->record.base[0] || vm->record.spoiled)
        return sp_error_set(err, SP_E_CONFLICT, "%s was made from no snapshot", vm->record.id);
    if (vm->pidfd < 0 || process_is_dead(vm->pidfd))
        return sp_error_set(err, SP_E_VMM, "%s is dead", vm->record.id);
    if (store_ops_is_made(b, request->snapshot))
        return sp_error_set(err, SP_E_CONFLICT, "snapshot %s is being made", request->snapshot);
    return 0;
}

void vm_ops_snapshot(struct broker *b, struct request *request, const struct reply_to *to) {
    struct vm *vm = vm_table_find(&b->vms, request->id);
    const struct job_spec spec = {
        .name = "vm_snapshot", .timeout_ms = TAKE_TIMEOUT_MS, .arg = vm, .work = take_work, .done = take_done};
    const struct snapshot_entry *snapshot = store_ops_snapshot(b, request->snapshot);
    struct sp_error err = {0};

    if (snapshot && snapshot->trust == TRUST_REMOVING) {
        (void)sp_error_set(&err, SP_E_CONFLICT, "snapshot %s is being removed", request->snapshot);
        server_fail(b->server, to, &err);
        return;
    }
    if (snapshot) { /* taken before, perhaps by a job that could not say so any more */
        store_ops_stat_existing(b, request->snapshot, to);
        return;
    }
    if (check_take(b, vm, request, &err) < 0) {
        server_fail(b->server, to, &err);
        return;
    }
    vm->phase = VM_SNAPSHOT;
    vm->starter = *to;
    vm->then = (enum request_then)request->then;
    vm->content = (enum request_content)request->content;
    vm->seal_manifest = TAKE_PTR(request->manifest);
    memcpy(vm->seal_key, request->snapshot, sizeof(vm->seal_key));
    if (jobs_add(b->jobs, &spec, &err) < 0)
        take_done(vm, NULL, &err);
}
