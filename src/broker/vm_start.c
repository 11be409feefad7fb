/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of vm_start, in order, each with a fault point of its name. */
#include "broker/vm_start.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/vm_child.h"
#include "broker/vm_files.h"
#include "broker/vm_log.h"
#include "host/jail_root.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define MIB (1024ull * 1024ull)
#define MEMORY_OVERHEAD_MIB 384 /* VMM and space-vm beside the guest's memory */
#define CPU_OVERHEAD_PERCENT 50
#define PIDS_MAX 256
#define LISTEN_BACKLOG 64

#define BUNDLE_PATH_SIZE (SETTINGS_PATH_MAX + SHA256_HEX_SIZE + 48)

enum mount { MOUNT_KERNEL, MOUNT_INITRD, MOUNT_PRELOAD, MOUNT_COUNT_ };

struct work {
    const struct vm_start *start;
    struct vm_record *record;
    int dir;     /* sandboxes/<id> */
    int run_dir; /* run/vm/<id> */
    int null, log, disk, memory, devices, kernel, initrd, control, guest, config;
    int mounts[MOUNT_COUNT_]; /* of the files the VMM sees, attached in its root only */
    int bundle;               /* of its engine */
    char qemu[ENGINE_PATH_SIZE], usr[BUNDLE_PATH_SIZE], lib64[BUNDLE_PATH_SIZE];
    uint64_t disk_size;
    struct cgroup_entry cgroup;
    struct vm_child child;
};

static void work_done(struct work *w) {
    int *const fds[] = {&w->dir,    &w->run_dir, &w->null,    &w->log,   &w->disk,   &w->memory, &w->devices,
                        &w->kernel, &w->initrd,  &w->control, &w->guest, &w->config, &w->bundle};
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        *fds[i] = close_fd(*fds[i]);
    for (size_t i = 0; i < MOUNT_COUNT_; i++)
        w->mounts[i] = close_fd(w->mounts[i]);
    cgroup_entry_close(&w->cgroup);
}

/* A kernel boots in it; whatever else there is has its kernel in RAM. */
static bool is_boot(const struct work *w) {
    return w->record->mode == MODE_TEMPLATE_BOOT || w->record->mode == MODE_BOOT;
}

static bool is_blank(const struct work *w) {
    return w->record->mode == MODE_BLANK;
}

/* --- files --------------------------------------------------------------------------------------------------------- */

/* Refused before anything is made when the snapshot it starts from is not what it was. */
static int check_source(struct work *w, struct sp_error *err) {
    const struct vm_record *rec = w->record;
    return !rec->snapshot[0] ? 0
                             : vm_files_check(w->start->layout, rec->snapshot, rec->template,
                                              rec->mode == MODE_BOOT ? CONTENT_DISK : CONTENT_FULL, err);
}

static void take_engine(struct work *w, const char *qemu, const char *version) {
    const char *store = w->start->layout->store_path, *digest = w->record->engine;

    (void)text_copy(w->qemu, sizeof(w->qemu), qemu);
    (void)text_copy(w->record->qemu_version, sizeof(w->record->qemu_version), version);
    (void)text_printf(w->usr, sizeof(w->usr), "%s/engines/%s/usr", store, digest);
    (void)text_printf(w->lib64, sizeof(w->lib64), "%s/engines/%s/lib64", store, digest);
}

/* What it is restored by is what its snapshot was taken with. The host's own is put into the store when it is not there. */
static int check_engine(struct work *w, struct sp_error *err) {
    _cleanup_engine_ struct engine e = {0};
    const struct vm_start *start = w->start;
    const struct vm_record *rec = w->record;
    bool is_own = strcmp(rec->engine, start->engine->digest) == 0;
    int r = is_own ? engine_ensure(start->layout, start->engine, err) : 0;

    if (r == 0)
        r = engine_open(start->layout, rec->engine, rec->qemu_version, &e, &w->bundle, err);
    if (r == 0 && !is_own)
        r = engine_check(&e, w->bundle, true, err);
    if (r == 0)
        take_engine(w, e.qemu, e.version);
    return r;
}

static int open_engine(struct work *w, struct sp_error *err) {
    const struct engine_entry *known = w->start->known;

    if (!known || engine_find(w->start->layout, known->digest, known->version, &w->bundle, NULL) < 0)
        return check_engine(w, err);
    take_engine(w, known->qemu, known->version);
    return 0;
}

/* Owned by root: the VM reaches its files by descriptor, never through this directory. */
static int make_directory(struct work *w, struct sp_error *err) {
    int sandboxes = w->start->layout->sandboxes;

    if (mkdirat(sandboxes, w->record->id, 0700) < 0)
        return errno == EEXIST ? sp_error_set(err, SP_E_CONFLICT, "files of %s are still there", w->record->id)
                               : sp_error_errno(err, errno, "mkdir", "%s", w->record->id);
    w->dir = openat(sandboxes, w->record->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (w->dir < 0)
        return sp_error_errno(err, errno, "open", "%s", w->record->id);
    return vm_record_write(w->dir, w->record, err);
}

static int clone_disk(struct work *w, struct sp_error *err) {
    return is_blank(w) ? 0 : vm_files_disk(w->start->layout, w->dir, w->record, &w->disk, &w->disk_size, err);
}

/* Guest memory and device state: made empty for a boot (a sandbox's leaves no device state), the snapshot's own for a clone,
 * to come for a blank. */
static int open_state(struct work *w, struct sp_error *err) {
    const struct layout *layout = w->start->layout;
    const char *snapshot = w->record->snapshot;
    int r = 0;

    if (w->record->mode == MODE_CLONE) {
        r = vm_files_open(layout, snapshot, LAYOUT_MEMORY, O_RDONLY, &w->memory, err);
        return r < 0 ? r : vm_files_open(layout, snapshot, LAYOUT_DEVICES, O_RDONLY, &w->devices, err);
    }
    if (is_blank(w))
        return 0;
    if (w->record->mode == MODE_BOOT)
        return vm_files_empty_memory(w->dir, w->record, &w->memory, err);
    r = vm_files_create(w->dir, w->record, LAYOUT_MEMORY, O_RDWR, &w->memory, err);
    if (r == 0 && ftruncate(w->memory, (off_t)(w->record->memory_mib * MIB)) < 0)
        r = sp_error_errno(err, errno, "ftruncate", "memory of %s", w->record->id);
    return r < 0 ? r : vm_files_create(w->dir, w->record, LAYOUT_DEVICES, O_WRONLY, &w->devices, err);
}

static int open_boot_files(struct work *w, struct sp_error *err) {
    struct layout_boot_files files = {-1, -1};
    int r = 0;

    if (is_boot(w))
        r = layout_open_boot_files(w->start->layout, request_kernel_names[w->record->kernel], &files, err);
    if (r < 0)
        return r;
    w->kernel = files.kernel;
    w->initrd = files.initrd;
    w->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (w->null < 0)
        return sp_error_errno(err, errno, "open", "/dev/null");
    return vm_log_create(w->dir, &w->log, err);
}

/* --- sockets, limits, configuration ------------------------------------------------------------------------------------ */

/* root owns the socket, one group may connect to it. */
static int make_listener(const struct work *w, const char *name, int type, gid_t gid, int *ret_fd,
                         struct sp_error *err) {
    _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (fd < 0)
        return sp_error_errno(err, errno, "socket", "%s", name);
    /* By its full path, which fits (settings keep state_dir short) and is what tools like ss show. The umask leaves the
     * socket to root until chown. */
    if (!text_printf(address.sun_path, sizeof(address.sun_path), "%s/%s/%s", w->start->layout->run_vm_path,
                     w->record->id, name))
        return sp_error_set(err, SP_E_INTERNAL, "path of %s is too long", name);
    if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return sp_error_errno(err, errno, "bind", "%s of %s", name, w->record->id);
    if (fchownat(w->run_dir, name, 0, gid, AT_SYMLINK_NOFOLLOW) < 0 || fchmodat(w->run_dir, name, 0660, 0) < 0)
        return sp_error_errno(err, errno, "chown", "%s of %s", name, w->record->id);
    if (listen(fd, LISTEN_BACKLOG) < 0)
        return sp_error_errno(err, errno, "listen", "%s of %s", name, w->record->id);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int make_sockets(struct work *w, struct sp_error *err) {
    const gid_t base = (gid_t)w->start->settings->uid_base;
    int run_vm = w->start->layout->run_vm;
    int r = dir_ensure(run_vm, w->record->id, 0711, (uid_t)-1, (gid_t)-1, err);

    if (r < 0)
        return r;
    w->run_dir = openat(run_vm, w->record->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (w->run_dir < 0)
        return sp_error_errno(err, errno, "open", "run/vm/%s", w->record->id);
    r = make_listener(w, "control.sock", SOCK_SEQPACKET, base + SETTINGS_UID_NODE, &w->control, err);
    return r < 0 ? r : make_listener(w, "guest.sock", SOCK_STREAM, base + SETTINGS_UID_GATEWAY, &w->guest, err);
}

static int make_cgroup(struct work *w, struct sp_error *err) {
    const struct cgroup_limits limits = {
        .memory_bytes = (w->record->memory_mib + MEMORY_OVERHEAD_MIB) * MIB,
        .cpu_percent = w->record->vcpus * 100 + CPU_OVERHEAD_PERCENT,
        .pids = PIDS_MAX,
    };
    int r = cgroup_create(w->start->cgroups, w->record->cgroup, &limits, err);
    return r < 0 ? r : cgroup_entry_open(w->start->cgroups, w->record->cgroup, &w->cgroup, err);
}

static json_t *describe_fds(const struct work *w) {
    json_t *fds = json_pack("{s:i, s:i, s:i, s:i}", "control", VM_FD_CONTROL, "guest", VM_FD_GUEST, "stub", VM_FD_STUB,
                            "tap", VM_FD_TAP);
    json_t *files = json_pack("{s:i, s:i}", "memory", VM_FD_MEMORY, "disk", VM_FD_DISK);
    if (w->devices >= 0)
        (void)json_object_set_new(files, "devices", json_integer(VM_FD_DEVICES));
    if (!is_blank(w))
        (void)json_object_update(fds, files);
    json_decref(files);
    return fds;
}

static json_t *describe(const struct work *w) {
    const struct vm_record *rec = w->record;
    return json_pack("{s:{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:o}}", "broker", "id", rec->id, "mode",
                     request_mode_names[rec->mode], "kernel", request_kernel_names[rec->kernel], "accelerator",
                     request_accelerator_names[rec->accelerator], "vcpus", (json_int_t)rec->vcpus, "memory_mib",
                     (json_int_t)rec->memory_mib, "qemu", w->qemu, "qemu_version", rec->qemu_version, "vm_dir",
                     VM_CHILD_DIR, "fds", describe_fds(w));
}

static int write_config(struct work *w, struct sp_error *err) {
    _cleanup_json_ json_t *obj = describe(w);
    _cleanup_free_ char *text = NULL;
    json_t *config = json_deep_copy(w->start->config);
    int r;

    if (!obj || !config || json_object_set_new(obj, "config", config) < 0)
        return sp_error_set(err, SP_E_INTERNAL, "cannot encode the configuration of %s", w->record->id);
    text = json_print(obj);
    w->config = memfd_create("config", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (w->config < 0)
        return sp_error_errno(err, errno, "memfd_create", "configuration");
    r = fd_write_all(w->config, text, strlen(text), err);
    if (r < 0)
        return r;
    if (lseek(w->config, 0, SEEK_SET) < 0 ||
        fcntl(w->config, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return sp_error_errno(err, errno, "F_ADD_SEALS", "configuration");
    return 0;
}

/* What the VMM finds in its root; what it may write to comes by descriptor. */
static int make_mounts(struct work *w, struct sp_error *err) {
    _cleanup_close_ int preload = openat(w->bundle, ENGINE_PRELOAD, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    const struct {
        const char *what;
        int fd;
        bool executable;
    } files[MOUNT_COUNT_] = {
        [MOUNT_KERNEL] = {"kernel", w->kernel, false},
        [MOUNT_INITRD] = {"initrd", w->initrd, false},
        [MOUNT_PRELOAD] = {"preload", preload, .executable = true},
    };
    int r = preload < 0 ? sp_error_errno(err, errno, "open", "preload of engine %s", w->record->engine) : 0;
    for (size_t i = 0; i < MOUNT_COUNT_ && r == 0; i++)
        if (files[i].fd >= 0)
            r = jail_file_mount(files[i].fd, files[i].what, false, files[i].executable, &w->mounts[i], err);
    return r;
}

/* --- processes ----------------------------------------------------------------------------------------------------- */

static int fork_child(struct work *w, struct sp_error *err) {
    const struct layout *layout = w->start->layout;
    const struct vm_child_plan plan = {
        .record = w->record,
        .cgroup = &w->cgroup,
        .filter = w->start->filter,
        .scratch = layout->run_vm_path,
        .log_level = w->start->settings->log_level,
        .pass_sanitizer_options = w->start->test_mode,
        .disk_size = w->disk_size,
        .null = w->null,
        .log = w->log,
        .control = w->control,
        .guest = w->guest,
        .memory = w->memory,
        .disk = w->disk,
        .devices = w->devices,
        .config = w->config,
        .program = layout->vm_program,
        .program_static = layout->vm_program_static,
        .kernel = w->mounts[MOUNT_KERNEL],
        .initrd = w->mounts[MOUNT_INITRD],
        .preload = w->mounts[MOUNT_PRELOAD],
        .usr = w->usr,
        .lib64 = w->lib64,
    };
    return vm_child_fork(&plan, &w->child, err);
}

static int wait_ready(struct work *w, struct sp_error *err) {
    int r = vm_child_wait_ready(&w->child, deadline_in_ms(VM_START_TIMEOUT_MS), err);
    if (r == 0)
        r = process_ref_get(w->child.pid, &w->record->process, err);
    w->record->vmm_pid = w->child.vmm_pid;
    return r;
}

/* Before space-vm runs: a broker that starts anew must find every process that can be alive. */
static int write_record(struct work *w, struct sp_error *err) {
    return vm_record_write(w->dir, w->record, err);
}

static int release(struct work *w, struct sp_error *err) {
    return vm_child_release(&w->child, deadline_in_ms(VM_START_TIMEOUT_MS), err);
}

static int confirm(struct work *w, struct sp_error *err) {
    w->record->started = true;
    return vm_record_write(w->dir, w->record, err);
}

static const struct step {
    const char *fault; /* "start.<name of the step>": the point before it */
    int (*run)(struct work *w, struct sp_error *err);
} steps[] = {
    {"start.source", check_source},  {"start.engine", open_engine}, {"start.directory", make_directory},
    {"start.disk", clone_disk},      {"start.state", open_state},   {"start.boot_files", open_boot_files},
    {"start.sockets", make_sockets}, {"start.cgroup", make_cgroup}, {"start.config", write_config},
    {"start.mounts", make_mounts},   {"start.fork", fork_child},    {"start.ready", wait_ready},
    {"start.record", write_record},  {"start.release", release},    {"start.confirm", confirm},
};

static json_t *describe_times(const uint64_t ns[ARRAY_SIZE(steps)]) {
    json_t *obj = json_object();
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        (void)json_object_set_new(obj, steps[i].fault + strlen("start."), json_integer((json_int_t)(ns[i] / 1000)));
    return obj;
}

int vm_start(const struct vm_start *start, struct vm_record *record, char ret_qemu[ENGINE_PATH_SIZE],
             json_t **ret_times, struct sp_error *err) {
    struct work w = {.start = start,
                     .record = record,
                     .dir = -1,
                     .run_dir = -1,
                     .null = -1,
                     .log = -1,
                     .disk = -1,
                     .memory = -1,
                     .devices = -1,
                     .kernel = -1,
                     .initrd = -1,
                     .control = -1,
                     .guest = -1,
                     .config = -1,
                     .bundle = -1,
                     .mounts = {-1, -1, -1},
                     .cgroup = {.clone_fd = -1, .task_fds = {-1, -1, -1}}};
    uint64_t ns[ARRAY_SIZE(steps)] = {0};
    int r = 0;

    vm_child_init(&w.child);
    for (size_t i = 0; i < ARRAY_SIZE(steps) && r == 0; i++) {
        uint64_t begin = clock_monotonic_ns();
        r = fault_point(steps[i].fault, err);
        if (r == 0)
            r = steps[i].run(&w, err);
        ns[i] = clock_monotonic_ns() - begin;
    }
    if (r < 0) {
        vm_child_kill(&w.child);
    } else {
        vm_child_leave(&w.child);
        *ret_times = describe_times(ns);
        (void)text_copy(ret_qemu, ENGINE_PATH_SIZE, w.qemu);
    }
    work_done(&w);
    return r;
}
