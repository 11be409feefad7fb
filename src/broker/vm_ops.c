/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a VM in the broker: each function here either answers at once or starts a job whose end (…_done) goes on.
 * A job's `work` half runs in the child, on its copy of everything; the `done` half alone changes the table.
 */
#include "broker/vm_ops.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/engine_ops.h"
#include "broker/snapshot.h"
#include "broker/store_ops.h"
#include "broker/vm_remove.h"
#include "broker/vm_start.h"

#define BOOTS_EXTRA 16 /* template boots beside the sandboxes the node may have */
#define START_TIMEOUT_MS (3 * VM_START_TIMEOUT_MS)
#define REMOVE_TIMEOUT_MS 60000 /* files of a large disk; processes have VM_REMOVE_DEATH_MS of it */
#define SEAL_DEATH_MS 5000      /* for a saved boot to end */
#define SEAL_TIMEOUT_MS 600000
#define HURRY_MS 3000 /* what a snapshot or a load still has when the VM is to be stopped */

static void begin_removal(struct vm *vm);
static void tell_waiters(struct vm *vm, bool existed, const struct sp_error *error);

/* --- start --------------------------------------------------------------------------------------------------------- */

static int start_work(void *arg, json_t **ret_result, struct sp_error *err) {
    struct vm *vm = arg;
    struct broker *b = vm->broker;
    const struct vm_start start = {.layout = &b->layout,
                                   .settings = &b->settings,
                                   .cgroups = b->cgroups,
                                   .filter = &b->filter,
                                   .test_mode = b->test_mode,
                                   .config = vm->config,
                                   .engine = &b->engine,
                                   .known = engine_ops_known(b, vm->record.engine)};
    char qemu[ENGINE_PATH_SIZE] = "";
    json_t *times = NULL;
    int r = vm_start(&start, &vm->record, qemu, &times, err);
    if (r == 0)
        *ret_result =
            json_pack("{s:o, s:I, s:I, s:I, s:s, s:s}", "timings_us", times, "pid", (json_int_t)vm->record.process.pid,
                      "start_time", (json_int_t)vm->record.process.start_time, "vmm_pid",
                      (json_int_t)vm->record.vmm_pid, "qemu_version", vm->record.qemu_version, "qemu", qemu);
    return r;
}

static void start_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct vm *vm = arg;
    struct broker *b = vm->broker;

    json_decref(vm->config);
    vm->config = NULL;
    if (error) {
        vm->failure = *error;
        begin_removal(vm);
        return;
    }
    vm->record.process.pid = (pid_t)json_integer_value(json_object_get(result, "pid"));
    vm->record.process.start_time = (uint64_t)json_integer_value(json_object_get(result, "start_time"));
    vm->record.vmm_pid = (pid_t)json_integer_value(json_object_get(result, "vmm_pid"));
    vm->record.started = true;
    vm->phase = VM_KEPT;
    (void)text_copy(vm->record.qemu_version, sizeof(vm->record.qemu_version),
                    json_string_value(json_object_get(result, "qemu_version")));
    engine_ops_checked(b, &vm->record, json_string_value(json_object_get(result, "qemu")));
    vm_follow(vm, b->reactor);
    log_event(LOG_L_INFO, "vm_started", "sandbox_id", vm->record.id, "mode", request_mode_names[vm->record.mode], NULL);
    server_reply(b->server, &vm->starter,
                 json_pack("{s:I, s:I, s:I, s:I, s:O}", "pid", (json_int_t)vm->record.process.pid, "start_time",
                           (json_int_t)vm->record.process.start_time, "vmm_pid", (json_int_t)vm->record.vmm_pid, "uid",
                           (json_int_t)vm->record.uid, "timings_us", json_object_get(result, "timings_us")));
    vm->starter = (struct reply_to){0};
    if (vm->waiters)
        begin_removal(vm);
}

/* Nothing of it exists yet: answered and forgotten, no removal needed. */
static void refuse_start(struct vm *vm, const struct sp_error *error) {
    struct broker *b = vm->broker;
    server_fail(b->server, &vm->starter, error);
    tell_waiters(vm, true, NULL);
    vm_table_drop(&b->vms, vm);
}

static void launch_start(struct vm *vm) {
    const struct job_spec spec = {
        .name = "vm_start", .timeout_ms = START_TIMEOUT_MS, .arg = vm, .work = start_work, .done = start_done};
    struct sp_error err = {0};

    vm->phase = VM_STARTING;
    if (jobs_add(vm->broker->jobs, &spec, &err) < 0)
        refuse_start(vm, &err);
}

int vm_ops_source(struct broker *b, const char *key, struct snapshot_entry **ret, struct sp_error *err) {
    struct snapshot_entry *snapshot = store_ops_snapshot(b, key);
    if (!snapshot)
        return sp_error_field(err, SP_E_NOT_FOUND, "snapshot", "there is no snapshot %s", key);
    if (snapshot->trust == TRUST_REMOVING)
        return sp_error_set(err, SP_E_CONFLICT, "snapshot %s is being removed", key);
    if (snapshot->trust == TRUST_BROKEN) {
        *err = snapshot->why;
        return -(int)err->code;
    }
    *ret = snapshot;
    return 0;
}

static int check_start(struct broker *b, const struct request *request, struct vm_record *record,
                       struct snapshot_entry **ret_snapshot, struct sp_error *err) {
    const uid_t base = (uid_t)b->settings.uid_base;
    const struct vm *other = vm_table_find(&b->vms, request->id);

    if (other)
        return sp_error_set(err, SP_E_CONFLICT, "%s exists (%s)", request->id, vm_phase_name(other->phase));
    if (request->template[0] && strcmp(b->removing_template, request->template) == 0)
        return sp_error_set(err, SP_E_CONFLICT, "template %s is being removed", request->template);
    if (request->accelerator == ACCELERATOR_KVM && !b->has_kvm)
        return sp_error_set(err, SP_E_UNSUPPORTED, "this host has no /dev/kvm");
    if (request->mode == MODE_BLANK ? b->vms.n_spares >= b->settings.max_sandboxes + BOOTS_EXTRA
                                    : b->vms.n - b->vms.n_spares >= b->settings.max_sandboxes + BOOTS_EXTRA)
        return sp_error_set(err, SP_E_NO_CAPACITY, "%zu VMs are here already", b->vms.n);
    if (request->snapshot[0]) {
        int r = vm_ops_source(b, request->snapshot, ret_snapshot, err);
        if (r < 0)
            return r;
    }
    if (engine_ops_choose(b, *ret_snapshot, record, err) < 0)
        return -(int)err->code;
    record->uid = vm_table_free_uid(&b->vms, base + SETTINGS_UID_VM_FIRST, base + SETTINGS_UID_VM_LAST);
    return record->uid ? 0 : sp_error_set(err, SP_E_NO_CAPACITY, "no user id is free");
}

void vm_ops_start(struct broker *b, struct request *request, const struct reply_to *to) {
    struct snapshot_entry *snapshot = NULL;
    struct sp_error err = {0};
    struct vm_record record = {0};
    struct vm *vm;

    if (check_start(b, request, &record, &snapshot, &err) < 0) {
        server_fail(b->server, to, &err);
        return;
    }
    vm = vm_table_add(&b->vms, b, request->id);
    vm->record.mode = (enum request_mode)request->mode;
    vm->record.kernel = (enum request_kernel)request->kernel;
    vm->record.accelerator = (enum request_accelerator)request->accelerator;
    vm->record.vcpus = (unsigned)request->vcpus;
    vm->record.memory_mib = (unsigned)request->memory_mib;
    vm->record.uid = record.uid;
    memcpy(vm->record.engine, record.engine, sizeof(vm->record.engine));
    memcpy(vm->record.qemu_version, record.qemu_version, sizeof(vm->record.qemu_version));
    vm->record.created_ns = clock_realtime_ns();
    memcpy(vm->record.template, request->template, sizeof(vm->record.template));
    memcpy(vm->record.snapshot, request->snapshot, sizeof(vm->record.snapshot));
    memcpy(vm->record.base, request->snapshot, sizeof(vm->record.base));
    memcpy(vm->record.cgroup, request->id, sizeof(vm->record.cgroup));
    memcpy(vm->record.boot_id, b->boot_id, sizeof(vm->record.boot_id));
    vm->starter = *to;
    vm->config = TAKE_PTR(request->config);
    if (!snapshot || snapshot->trust == TRUST_GOOD) {
        launch_start(vm);
        return;
    }
    vm->phase = VM_CHECKING;
    store_ops_check(b, snapshot);
}

static void go_on(struct vm *vm, const struct snapshot_entry *snapshot) {
    struct sp_error stopped;

    (void)sp_error_set(&stopped, SP_E_CONFLICT, "%s was stopped before it started", vm->record.id);
    if (vm->waiters || snapshot->trust != TRUST_GOOD)
        (vm->loading ? vm_ops_refuse_load : refuse_start)(vm, vm->waiters ? &stopped : &snapshot->why);
    else
        (vm->loading ? vm_ops_launch_load : launch_start)(vm);
}

void vm_ops_snapshot_checked(struct broker *b, const struct snapshot_entry *snapshot) {
    struct vm *next;
    for (struct vm *vm = b->vms.first; vm; vm = next) {
        next = vm->next;
        if (vm->phase == VM_CHECKING && strcmp(vm->record.snapshot, snapshot->key) == 0)
            go_on(vm, snapshot);
    }
}

/* --- removal ------------------------------------------------------------------------------------------------------- */

static int remove_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct vm *vm = arg;
    const struct vm_remove remove = {.layout = &vm->broker->layout,
                                     .cgroups = vm->broker->cgroups,
                                     .id = vm->record.id,
                                     .cgroup = vm->unknown ? NULL : vm->record.cgroup,
                                     .process = vm->record.process.pid > 0 ? &vm->record.process : NULL};
    bool existed = false;
    int r = vm_remove(&remove, &existed, err);
    if (r == 0)
        *ret_result = json_pack("{s:b}", "existed", existed || !vm->unknown);
    return r;
}

static void tell_waiters(struct vm *vm, bool existed, const struct sp_error *error) {
    struct vm_waiter *waiters = vm->waiters, *next;
    vm->waiters = NULL;
    for (; waiters; waiters = next) {
        next = waiters->next;
        if (waiters->removed)
            waiters->removed(waiters->ctx, vm->record.id, error);
        else if (error)
            server_fail(vm->broker->server, &waiters->to, error);
        else
            server_reply(vm->broker->server, &waiters->to, json_pack("{s:b}", "existed", existed));
        free(waiters);
    }
}

static void remove_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct vm *vm = arg;
    struct broker *b = vm->broker;

    if (error)
        log_error(LOG_L_ERROR, "vm_not_removed", error, "sandbox_id", vm->record.id, NULL);
    else
        log_event(LOG_L_INFO, "vm_removed", "sandbox_id", vm->record.id, NULL);
    tell_waiters(vm, json_is_true(json_object_get(result, "existed")), error);
    if (vm->failure.code != SP_OK) {
        server_fail(b->server, &vm->starter, &vm->failure);
        vm->starter = (struct reply_to){0};
        vm->failure = (struct sp_error){0};
    }
    if (error && !vm->unknown) { /* still there; a later vm_stop tries again */
        vm->phase = VM_KEPT;
        vm_follow(vm, b->reactor);
        return;
    }
    vm_table_drop(&b->vms, vm);
    store_ops_pack_next(b);
}

static void begin_removal(struct vm *vm) {
    const struct job_spec spec = {
        .name = "vm_remove", .timeout_ms = REMOVE_TIMEOUT_MS, .arg = vm, .work = remove_work, .done = remove_done};
    struct sp_error err = {0};

    vm->phase = VM_REMOVING;
    vm_unfollow(vm);
    if (jobs_add(vm->broker->jobs, &spec, &err) < 0)
        remove_done(vm, NULL, &err);
}

void vm_ops_settle(struct vm *vm) {
    if (vm->waiters)
        begin_removal(vm);
}

void vm_ops_remove(struct broker *b, const char *id, const struct vm_waiter *waiter) {
    struct vm *vm = vm_table_find(&b->vms, id);
    struct vm_waiter *w = malloc(sizeof(*w));

    if (!w)
        abort();
    if (!vm) {
        vm = vm_table_add(&b->vms, b, id);
        vm->unknown = true;
    }
    *w = *waiter;
    w->next = vm->waiters;
    vm->waiters = w;
    /* A job is at it in every other phase, and its end looks at the waiters. A removal waits for what may take long only so
     * much longer. */
    if (vm->phase == VM_KEPT)
        begin_removal(vm);
    else if (vm->phase == VM_SNAPSHOT || vm->phase == VM_LOADING)
        jobs_hurry(b->jobs, vm, HURRY_MS);
}

/* What was a spare of this id has become a sandbox's VM: it is not this id's to stop any more. */
void vm_ops_stop(struct broker *b, const char *id, const struct reply_to *to) {
    if (!vm_table_find(&b->vms, id) && vm_table_find_cgroup(&b->vms, id)) {
        server_reply(b->server, to, json_pack("{s:b}", "existed", false));
        return;
    }
    vm_ops_remove(b, id, &(struct vm_waiter){.to = *to});
}

/* --- seal ---------------------------------------------------------------------------------------------------------- */

/* A boot says `saved` a moment before it ends, and the node asks for the seal at once. */
static int wait_ended(const struct vm *vm, struct sp_error *err) {
    struct deadline deadline = deadline_in_ms(SEAL_DEATH_MS);
    bool empty = false;
    int r = 0;

    if (vm->pidfd >= 0 && process_wait_dead(vm->pidfd, deadline, NULL) < 0)
        return sp_error_set(err, SP_E_CONFLICT, "%s is still running", vm->record.id);
    while ((r = cgroup_is_empty(vm->broker->cgroups, vm->record.id, &empty, err)) == 0 && !empty) {
        if (deadline_passed(deadline))
            return sp_error_set(err, SP_E_CONFLICT, "%s still has processes", vm->record.id);
        (void)usleep(2000);
    }
    return r;
}

static int seal_work(void *arg, json_t **ret_result, struct sp_error *err) {
    const struct vm *vm = arg;
    const struct snapshot_seal seal = {.layout = &vm->broker->layout,
                                       .record = &vm->record,
                                       .key = vm->seal_key,
                                       .node_manifest = vm->seal_manifest};
    int r = wait_ended(vm, err);

    (void)ret_result;
    return r < 0 ? r : snapshot_seal(&seal, err);
}

static void seal_done(void *arg, const json_t *result, const struct sp_error *error) {
    struct vm *vm = arg;
    struct broker *b = vm->broker;

    (void)result;
    vm->phase = VM_KEPT;
    if (error) {
        server_fail(b->server, &vm->starter, error);
    } else {
        store_ops_sealed(b, vm->seal_key);
        log_event(LOG_L_INFO, "snapshot_sealed", "sandbox_id", vm->record.id, "snapshot", vm->seal_key, NULL);
        server_reply(b->server, &vm->starter, NULL);
    }
    vm->starter = (struct reply_to){0};
    vm->seal_key[0] = '\0';
    json_decref(vm->seal_manifest);
    vm->seal_manifest = NULL;
    if (vm->waiters)
        begin_removal(vm);
}

static int check_seal(struct broker *b, const struct vm *vm, const struct request *request, struct sp_error *err) {
    const struct snapshot_entry *snapshot = store_ops_snapshot(b, request->snapshot);

    if (vm->record.mode != MODE_TEMPLATE_BOOT || vm->unknown)
        return sp_error_set(err, SP_E_CONFLICT, "%s is no template boot", vm->record.id);
    if (vm->phase != VM_KEPT)
        return sp_error_set(err, SP_E_CONFLICT, "%s is %s", vm->record.id, vm_phase_name(vm->phase));
    if (snapshot && snapshot->trust == TRUST_REMOVING)
        return sp_error_set(err, SP_E_CONFLICT, "snapshot %s is being removed", request->snapshot);
    for (const struct vm *other = b->vms.first; other; other = other->next)
        if (strcmp(other->seal_key, request->snapshot) == 0)
            return sp_error_set(err, SP_E_CONFLICT, "snapshot %s is being sealed from %s", request->snapshot,
                                other->record.id);
    return 0;
}

void vm_ops_seal(struct broker *b, struct request *request, const struct reply_to *to) {
    struct vm *vm = vm_table_find(&b->vms, request->id);
    const struct job_spec spec = {
        .name = "snapshot_seal", .timeout_ms = SEAL_TIMEOUT_MS, .arg = vm, .work = seal_work, .done = seal_done};
    struct sp_error err = {0};

    if (!vm && store_ops_snapshot(b, request->snapshot)) { /* sealed before, and the boot is gone */
        server_reply(b->server, to, NULL);
        return;
    }
    if (!vm)
        (void)sp_error_field(&err, SP_E_NOT_FOUND, "id", "there is no VM %s", request->id);
    else
        (void)check_seal(b, vm, request, &err);
    if (vm && err.code == SP_OK) {
        vm->phase = VM_SEALING;
        vm->starter = *to;
        vm->seal_manifest = TAKE_PTR(request->manifest);
        memcpy(vm->seal_key, request->snapshot, sizeof(vm->seal_key));
        if (jobs_add(b->jobs, &spec, &err) < 0)
            seal_done(vm, NULL, &err);
        return;
    }
    server_fail(b->server, to, &err);
}
