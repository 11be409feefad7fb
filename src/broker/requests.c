/* SPDX-License-Identifier: Apache-2.0 */
/* One handler a request: answers itself or hands over to the operations. */
#include "base/json.h"
#include "base/log.h"
#include "broker/broker.h"
#include "broker/engine_ops.h"
#include "broker/store_ops.h"
#include "broker/vm_ops.h"
#include "host/stat.h"

#define PAGE_MAX 100 /* VMs in one reply: ≤ 300 bytes each */

static void on_hello(struct broker *b, struct request *request, const struct reply_to *to) {
    struct sp_error err;
    json_t *accelerators, *hello;

    if (request->version != BROKER_PROTOCOL_VERSION) {
        (void)sp_error_field(&err, SP_E_UNSUPPORTED, "version", "this broker speaks version %d",
                             BROKER_PROTOCOL_VERSION);
        server_fail(b->server, to, &err);
        return;
    }
    accelerators = b->has_kvm ? json_pack("[s, s]", "kvm", "tcg") : json_pack("[s]", "tcg");
    hello = json_pack("{s:i, s:o, s:s}", "version", BROKER_PROTOCOL_VERSION, "accelerators", accelerators, "cgroup",
                      cgroup_root_version(b->cgroups));
    if (b->engine.digest[0])
        (void)json_object_set_new(hello, "engine", json_string(b->engine.digest));
    server_reply(b->server, to, hello);
}

static void on_vm_stop(struct broker *b, struct request *request, const struct reply_to *to) {
    vm_ops_stop(b, request->id, to);
}

static bool vm_counts_as_alive(const struct vm *vm) {
    switch (vm->phase) {
    case VM_CHECKING:
        return !vm->loading || vm->pidfd >= 0;
    case VM_STARTING:
        return true; /* about to be; a node must not take it for dead */
    case VM_KEPT:
    case VM_LOADING:
    case VM_SNAPSHOT:
        return vm->pidfd >= 0 && !process_is_dead(vm->pidfd);
    default:
        return false;
    }
}

static void on_vm_list(struct broker *b, struct request *request, const struct reply_to *to) {
    json_t *list = json_array();
    bool more = false;

    for (const struct vm *vm = b->vms.first; vm; vm = vm->next) {
        const struct vm_record *rec = &vm->record;
        if (vm->unknown || (request->after[0] && strcmp(rec->id, request->after) <= 0))
            continue;
        if (json_array_size(list) == PAGE_MAX) {
            more = true;
            break;
        }
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:b, s:I, s:I}", "id", rec->id, "mode",
                            request_mode_names[rec->mode], "snapshot", rec->snapshot, "phase", vm_phase_name(vm->phase),
                            "pid", (json_int_t)rec->process.pid, "start_time", (json_int_t)rec->process.start_time,
                            "vmm_pid", (json_int_t)rec->vmm_pid, "alive", vm_counts_as_alive(vm), "uid",
                            (json_int_t)rec->uid, "created_realtime_ns", (json_int_t)rec->created_ns));
    }
    server_reply(b->server, to, json_pack("{s:o, s:b}", "vms", list, "more", more));
}

static void on_snapshot_stat(struct broker *b, struct request *request, const struct reply_to *to) {
    store_ops_stat(b, request->snapshot, to);
}

static void on_snapshot_list(struct broker *b, struct request *request, const struct reply_to *to) {
    store_ops_list_snapshots(b, request->after, to);
}

static void on_snapshot_remove(struct broker *b, struct request *request, const struct reply_to *to) {
    store_ops_remove_snapshot(b, request->snapshot, to);
}

static void on_template_list(struct broker *b, struct request *request, const struct reply_to *to) {
    (void)request;
    store_ops_list(b, to);
}

static void on_template_remove(struct broker *b, struct request *request, const struct reply_to *to) {
    store_ops_remove_template(b, request->template, to);
}

static void on_engine_list(struct broker *b, struct request *request, const struct reply_to *to) {
    (void)request;
    engine_ops_list(b, to);
}

static void on_engine_remove(struct broker *b, struct request *request, const struct reply_to *to) {
    engine_ops_remove(b, request->engine, to);
}

static void on_stat(struct broker *b, struct request *request, const struct reply_to *to) {
    struct sp_error err = {0};
    struct host_stat st;

    (void)request;
    if (host_stat_get(b->layout.store, &st, &err) < 0) {
        server_fail(b->server, to, &err);
        return;
    }
    server_reply(b->server, to,
                 json_pack("{s:I, s:I, s:I}", "store_free_mib", (json_int_t)st.store_free_mib, "store_total_mib",
                           (json_int_t)st.store_total_mib, "memory_available_mib",
                           (json_int_t)st.memory_available_mib));
}

static void on_sweep(struct broker *b, struct request *request, const struct reply_to *to) {
    vm_ops_sweep(b, request, to);
}

static void (*const handlers[REQUEST_COUNT_])(struct broker *b, struct request *request, const struct reply_to *to) = {
    [REQUEST_HELLO] = on_hello,
    [REQUEST_VM_START] = vm_ops_start,
    [REQUEST_VM_LOAD] = vm_ops_load,
    [REQUEST_VM_BIND] = vm_ops_bind,
    [REQUEST_VM_SNAPSHOT] = vm_ops_snapshot,
    [REQUEST_VM_STOP] = on_vm_stop,
    [REQUEST_VM_LIST] = on_vm_list,
    [REQUEST_SNAPSHOT_SEAL] = vm_ops_seal,
    [REQUEST_SNAPSHOT_COPY] = store_ops_copy,
    [REQUEST_SNAPSHOT_STAT] = on_snapshot_stat,
    [REQUEST_SNAPSHOT_LIST] = on_snapshot_list,
    [REQUEST_SNAPSHOT_REMOVE] = on_snapshot_remove,
    [REQUEST_TEMPLATE_LIST] = on_template_list,
    [REQUEST_TEMPLATE_REMOVE] = on_template_remove,
    [REQUEST_ENGINE_LIST] = on_engine_list,
    [REQUEST_ENGINE_REMOVE] = on_engine_remove,
    [REQUEST_STAT] = on_stat,
    [REQUEST_SWEEP] = on_sweep,
};

void broker_on_request(void *ctx, struct request *request, const struct reply_to *to) {
    struct broker *b = ctx;
    log_event(LOG_L_DEBUG, "request", "request", request_type_name(request->type), NULL);
    handlers[request->type](b, request, to);
}
