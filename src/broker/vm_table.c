/* SPDX-License-Identifier: Apache-2.0 */
/* Bookkeeping of VMs; see vm_table.h. Starts and removes nothing. */
#include "broker/vm_table.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/vm_load.h"
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

static const char *const phase_names[] = {
    [VM_CHECKING] = "checking", [VM_STARTING] = "starting", [VM_KEPT] = "kept",         [VM_SEALING] = "sealing",
    [VM_LOADING] = "loading",   [VM_SNAPSHOT] = "snapshot", [VM_REMOVING] = "removing",
};

const char *vm_phase_name(enum vm_phase phase) {
    return phase_names[phase];
}

struct vm *vm_table_find(const struct vm_table *table, const char *id) {
    for (struct vm *vm = table->first; vm; vm = vm->next)
        if (strcmp(vm->record.id, id) == 0)
            return vm;
    return NULL;
}

struct vm *vm_table_find_cgroup(const struct vm_table *table, const char *cgroup) {
    for (struct vm *vm = table->first; vm; vm = vm->next)
        if (strcmp(vm->record.cgroup, cgroup) == 0)
            return vm;
    return NULL;
}

static bool is_spare(const struct vm *vm) {
    return id_is_valid(vm->record.id, "spr");
}

static void insert(struct vm_table *table, struct vm *vm) {
    struct vm **at = &table->first;
    while (*at && strcmp((*at)->record.id, vm->record.id) < 0)
        at = &(*at)->next;
    vm->next = *at;
    *at = vm;
}

static void take_out(struct vm_table *table, const struct vm *vm) {
    struct vm **at = &table->first;
    while (*at != vm)
        at = &(*at)->next;
    *at = vm->next;
}

void vm_table_moved(struct vm_table *table, struct vm *vm) {
    take_out(table, vm);
    insert(table, vm);
    table->n_spares -= !is_spare(vm); /* a spare was bound */
}

struct vm *vm_table_add(struct vm_table *table, struct broker *broker, const char *id) {
    struct vm *vm = calloc(1, sizeof(*vm));
    if (!vm)
        abort();
    vm->broker = broker;
    vm->phase = VM_KEPT;
    vm->pidfd = -1;
    (void)text_copy(vm->record.id, sizeof(vm->record.id), id);
    insert(table, vm);
    table->n++;
    table->n_spares += is_spare(vm);
    return vm;
}

void vm_table_drop(struct vm_table *table, struct vm *vm) {
    take_out(table, vm);
    table->n--;
    table->n_spares -= is_spare(vm);
    assert(vm->pidfd < 0);
    while (vm->waiters) {
        struct vm_waiter *next = vm->waiters->next;
        free(vm->waiters);
        vm->waiters = next;
    }
    json_decref(vm->config);
    json_decref(vm->seal_manifest);
    free(vm);
}

void vm_table_clear(struct vm_table *table) {
    while (table->first) {
        table->first->pidfd = close_fd(table->first->pidfd);
        vm_table_drop(table, table->first);
    }
}

uid_t vm_table_free_uid(struct vm_table *table, uid_t first, uid_t last) {
    uid_t uid = table->last_uid;
    for (uid_t tried = 0; tried <= last - first; tried++) {
        bool used = false;
        uid = uid < first || uid >= last ? first : uid + 1;
        for (const struct vm *vm = table->first; vm && !used; vm = vm->next)
            used = vm->record.uid == uid;
        if (!used) {
            table->last_uid = uid;
            return uid;
        }
    }
    return 0;
}

bool vm_table_uses_snapshot(const struct vm_table *table, const char *key) {
    for (const struct vm *vm = table->first; vm; vm = vm->next)
        if (strcmp(vm->record.base, key) == 0 || strcmp(vm->seal_key, key) == 0 ||
            (vm->phase == VM_SNAPSHOT && strcmp(vm->record.disk_base, key) == 0))
            return true;
    return false;
}

bool vm_table_uses_template(const struct vm_table *table, const char *digest) {
    for (const struct vm *vm = table->first; vm; vm = vm->next)
        if (strcmp(vm->record.template, digest) == 0)
            return true;
    return false;
}

/* --- life and death ---------------------------------------------------------------------------------------------------- */

static void on_death(void *ctx, uint32_t events) {
    struct vm *vm = ctx;
    (void)events;
    log_event(LOG_L_INFO, "vm_ended", "sandbox_id", vm->record.id, NULL);
    vm_unfollow(vm);
}

void vm_follow(struct vm *vm, int reactor) {
    struct sp_error err = {0};

    if (process_open(&vm->record.process, &vm->pidfd, NULL) < 0)
        return;
    vm->reactor = reactor;
    vm->watch = (struct watch){.fd = vm->pidfd, .on_event = on_death, .ctx = vm};
    if (reactor_add(reactor, &vm->watch, EPOLLIN, &err) < 0)
        log_error(LOG_L_ERROR, "vm_not_followed", &err, "sandbox_id", vm->record.id, NULL);
}

void vm_unfollow(struct vm *vm) {
    if (vm->pidfd < 0)
        return;
    reactor_remove(vm->reactor, &vm->watch);
    vm->pidfd = close_fd(vm->pidfd);
}

/* --- after a restart ------------------------------------------------------------------------------------------------ */

static void load_one(struct vm_table *table, const struct vm_table_load *load, const char *id) {
    _cleanup_close_ int dir = openat(load->layout->sandboxes, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct vm_record record;
    struct sp_error err = {0};
    bool this_boot;
    struct vm *vm;

    if (dir < 0 || vm_record_read(dir, id, &record, &err) < 0) {
        log_error(LOG_L_WARN, "vm_record_unreadable", &err, "sandbox_id", id, NULL);
        return;
    }
    if (vm_table_find(table, record.id)) /* met under its old name, and again after the rename */
        return;
    if (vm_bind_finish(load->layout, &record, id, &err) < 0) {
        log_error(LOG_L_ERROR, "vm_not_bound", &err, "sandbox_id", record.id, "spare", record.cgroup, NULL);
        return;
    }
    vm = vm_table_add(table, load->broker, record.id);
    vm->record = record;
    this_boot = strcmp(record.boot_id, load->boot_id) == 0;
    if (this_boot)
        vm_follow(vm, load->reactor);
    if (vm->pidfd < 0 && !record.started) {
        log_event(LOG_L_WARN, "vm_start_was_cut_off", "sandbox_id", record.id, NULL);
        vm_table_drop(table, vm);
        return;
    }
    /* A pid of an earlier boot names some other process now. */
    if (!this_boot)
        vm->record.process = (struct process_ref){0};
    log_event(LOG_L_INFO, "vm_found", "sandbox_id", record.id, "alive", vm->pidfd >= 0 ? "true" : "false", NULL);
}

int vm_table_load(struct vm_table *table, const struct vm_table_load *load, struct sp_error *err) {
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    int fd = openat(load->layout->sandboxes, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)close_fd(fd);
        return sp_error_errno(err, errno, "opendir", "sandboxes");
    }
    while ((entry = readdir(dir)))
        if (request_id_is_valid(entry->d_name))
            load_one(table, load, entry->d_name);
    return 0;
}
