/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of vm_load and vm_bind, in order, each with a fault point of its name. */
#include "broker/vm_load.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/vm_files.h"
#include "broker/vm_talk.h"
#include <errno.h>
#include <fcntl.h>

#define TAKEN_MS 15000 /* until space-vm has the descriptors */

struct work {
    const struct vm_load *load;
    struct vm_record *record;
    struct vm_talk *talk;
    int dir, disk, memory, devices;
};

static int open_vm_dir(const struct layout *layout, const char *id, int *ret_fd, struct sp_error *err) {
    *ret_fd = openat(layout->sandboxes, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *ret_fd >= 0 ? 0 : sp_error_errno(err, errno, "open", "directory of %s", id);
}

static int check_source(struct work *w, struct sp_error *err) {
    return vm_files_check(w->load->layout, w->record->snapshot, w->record->template, CONTENT_FULL, err);
}

static int spoil(struct work *w, struct sp_error *err) {
    int r = open_vm_dir(w->load->layout, w->record->id, &w->dir, err);
    w->record->spoiled = true;
    return r < 0 ? r : vm_record_write(w->dir, w->record, err);
}

static int clone_disk(struct work *w, struct sp_error *err) {
    uint64_t size;
    return vm_files_disk(w->load->layout, w->dir, w->record, &w->disk, &size, err);
}

static int open_state(struct work *w, struct sp_error *err) {
    int r = vm_files_open(w->load->layout, w->record->snapshot, LAYOUT_MEMORY, O_RDONLY, &w->memory, err);
    return r < 0 ? r : vm_files_open(w->load->layout, w->record->snapshot, LAYOUT_DEVICES, O_RDONLY, &w->devices, err);
}

static int hand_over(struct work *w, struct sp_error *err) {
    const int fds[] = {w->memory, w->disk, w->devices};
    json_t *config = json_deep_copy(w->load->config), *fields;

    w->talk = vm_talk_open(w->load->layout, w->record->id, err);
    fields = json_pack("{s:o, s:b, s:s}", "config", config, "warm", !w->load->bind[0], "snapshot", w->record->snapshot);
    if (!w->talk || !fields) {
        json_decref(fields);
        return w->talk ? sp_error_set(err, SP_E_INTERNAL, "cannot encode the configuration") : -(int)SP_E_VMM;
    }
    if (w->load->bind[0])
        (void)json_object_set_new(fields, "id", json_string(w->load->bind));
    return vm_talk_send(w->talk, "load", true, fields, fds, ARRAY_SIZE(fds), err);
}

static int wait_taken(struct work *w, struct sp_error *err) {
    return vm_talk_wait(w->talk, NULL, deadline_in_ms(TAKEN_MS), NULL, err);
}

static int confirm(struct work *w, struct sp_error *err) {
    w->record->mode = MODE_CLONE;
    w->record->spoiled = false;
    return vm_record_write(w->dir, w->record, err);
}

static const struct step {
    const char *fault;
    int (*run)(struct work *w, struct sp_error *err);
} steps[] = {
    {"load.source", check_source}, {"load.record", spoil},     {"load.disk", clone_disk}, {"load.state", open_state},
    {"load.send", hand_over},      {"load.taken", wait_taken}, {"load.confirm", confirm},
};

int vm_load(const struct vm_load *load, struct vm_record *record, json_t **ret_times, struct sp_error *err) {
    struct work w = {.load = load, .record = record, .dir = -1, .disk = -1, .memory = -1, .devices = -1};
    json_t *times = json_object();
    int r = 0;

    for (size_t i = 0; i < ARRAY_SIZE(steps) && r == 0; i++) {
        uint64_t begin = clock_monotonic_ns();
        r = fault_point(steps[i].fault, err);
        if (r == 0)
            r = steps[i].run(&w, err);
        (void)json_object_set_new(times, steps[i].fault + strlen("load."),
                                  json_integer((json_int_t)((clock_monotonic_ns() - begin) / 1000)));
    }
    w.talk = vm_talk_close(w.talk);
    (void)close_fd(w.dir);
    (void)close_fd(w.disk);
    (void)close_fd(w.memory);
    (void)close_fd(w.devices);
    if (r < 0)
        json_decref(times);
    else
        *ret_times = times;
    return r;
}

/* --- binding ------------------------------------------------------------------------------------------------------- */

static int rename_new(int parent, const char *from, const char *to, struct sp_error *err) {
    if (renameat2(parent, from, parent, to, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EEXIST ? sp_error_set(err, SP_E_CONFLICT, "files of %s are still there", to)
                           : sp_error_errno(err, errno, "rename", "%s to %s", from, to);
}

int vm_bind(const struct layout *layout, struct vm_record *record, const char *sandbox, struct sp_error *err) {
    const struct vm_record spare = *record;
    _cleanup_close_ int dir = -1;
    bool moved = false;
    int r = open_vm_dir(layout, spare.id, &dir, err);

    if (r == 0 && faccessat(layout->sandboxes, sandbox, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        r = sp_error_set(err, SP_E_CONFLICT, "files of %s are still there", sandbox);
    if (r == 0)
        r = fault_point("bind.record", err);
    if (r < 0)
        return r;
    (void)text_copy(record->id, sizeof(record->id), sandbox);
    r = vm_record_write(dir, record, err);
    if (r == 0)
        r = fault_point("bind.directory", err);
    if (r == 0) {
        r = rename_new(layout->sandboxes, spare.id, sandbox, err);
        moved = r == 0;
    }
    if (r == 0)
        r = fault_point("bind.sockets", err);
    if (r == 0)
        r = rename_new(layout->run_vm, spare.id, sandbox, err);
    if (r == 0)
        return 0;
    if (moved)
        (void)renameat(layout->sandboxes, sandbox, layout->sandboxes, spare.id);
    *record = spare;
    (void)vm_record_write(dir, record, NULL);
    return r;
}

int vm_bind_finish(const struct layout *layout, const struct vm_record *record, const char *name,
                   struct sp_error *err) {
    int r = 0;

    if (strcmp(record->id, name) != 0)
        r = rename_new(layout->sandboxes, name, record->id, err);
    if (r == 0 && strcmp(record->cgroup, record->id) != 0 &&
        faccessat(layout->run_vm, record->id, F_OK, AT_SYMLINK_NOFOLLOW) < 0 &&
        faccessat(layout->run_vm, record->cgroup, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        r = rename_new(layout->run_vm, record->cgroup, record->id, err);
    return r;
}
