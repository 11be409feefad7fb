/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, mounts and opens the directories and programs the broker works with. Runs once at start. */
#include "broker/layout.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "host/loader.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

void layout_init(struct layout *layout) {
    *layout = (struct layout){.store = -1,
                              .templates = -1,
                              .snapshots = -1,
                              .sandboxes = -1,
                              .engines = -1,
                              .run = -1,
                              .run_vm = -1,
                              .log = -1,
                              .vm_program = -1,
                              .preload = -1};
}

void layout_close(struct layout *layout) {
    int *const fds[] = {&layout->store, &layout->templates, &layout->snapshots, &layout->sandboxes,  &layout->engines,
                        &layout->run,   &layout->run_vm,    &layout->log,       &layout->vm_program, &layout->preload};
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        *fds[i] = close_fd(*fds[i]);
}

void layout_name(struct layout *layout, const struct settings *settings) {
    (void)text_printf(layout->store_path, sizeof(layout->store_path), "%s/store", settings->state_dir);
    (void)text_printf(layout->image_path, sizeof(layout->image_path), "%s/store.img", settings->state_dir);
    (void)text_printf(layout->run_path, sizeof(layout->run_path), "%s/run", settings->state_dir);
    (void)text_printf(layout->run_vm_path, sizeof(layout->run_vm_path), "%s/run/vm", settings->state_dir);
    layout->kernel_dir = settings->kernel_dir;
}

struct store_fs layout_store_fs(const struct layout *layout, const struct settings *settings) {
    return (
        struct store_fs){.dir = layout->store_path, .image = layout->image_path, .size_mib = settings->store_size_mib};
}

static int open_dir(int base, const char *name, mode_t mode, int *ret_fd, struct sp_error *err) {
    int fd, r = dir_ensure(base, name, mode, (uid_t)-1, (gid_t)-1, err);
    if (r < 0)
        return r;
    fd = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return sp_error_errno(err, errno, "open", "%s", name);
    *ret_fd = fd;
    return 0;
}

/* Owner root and these modes: other programs may look names up here, only the broker may make them. */
static int open_store_dirs(struct layout *layout, struct sp_error *err) {
    int r = 0;
    layout->store = open(layout->store_path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (layout->store < 0 || fchmod(layout->store, 0711) < 0)
        return sp_error_errno(err, errno, "open", "%s", layout->store_path);
    r = open_dir(layout->store, "templates", 0755, &layout->templates, err);
    if (r == 0)
        r = open_dir(layout->store, "snapshots", 0711, &layout->snapshots, err);
    if (r == 0)
        r = open_dir(layout->store, "sandboxes", 0711, &layout->sandboxes, err);
    if (r == 0)
        r = open_dir(layout->store, "engines", 0711, &layout->engines, err);
    return r;
}

int layout_open_run(struct layout *layout, const struct settings *settings, struct sp_error *err) {
    const char *state_dir = settings->state_dir;
    _cleanup_close_ int state = -1, store = -1;
    int r = dir_ensure(AT_FDCWD, state_dir, 0755, (uid_t)-1, (gid_t)-1, err);

    if (r < 0)
        return r;
    state = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state < 0)
        return sp_error_errno(err, errno, "open", "%s", state_dir);
    r = open_dir(state, "store", 0711, &store, err);
    if (r == 0)
        r = open_dir(state, "run", 0755, &layout->run, err);
    if (r == 0)
        r = open_dir(layout->run, "vm", 0711, &layout->run_vm, err);
    if (r == 0)
        r = open_dir(state, "log", 0755, &layout->log, err);
    return r;
}

/* `given`, or `name` in the directory of this program, in ../<folder> of it (a build tree), or in libexec. */
static int open_program(const char *given, const char *folder, const char *name, int *ret_fd, struct sp_error *err) {
    char self[PATH_MAX], path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash = NULL;
    int fd = -1;

    if (n > 0) {
        self[n] = '\0';
        slash = strrchr(self, '/');
    }
    if (slash)
        *slash = '\0';
    if (given)
        fd = open(given, O_RDONLY | O_CLOEXEC);
    else if (slash) {
        if (text_printf(path, sizeof(path), "%s/%s", self, name))
            fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && text_printf(path, sizeof(path), "%s/../%s/%s", self, folder, name))
            fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && text_printf(path, sizeof(path), "%s/%s", SPACE_LIBEXECDIR, name))
            fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0)
        return sp_error_errno(err, errno, "open", "program %s", given ? given : name);
    *ret_fd = fd;
    return 0;
}

/* Anything unclear counts as dynamic, which only costs mounts. */
static bool program_is_static(int fd) {
    char interpreter[LOADER_PATH_SIZE];
    return loader_interpreter(fd, interpreter, NULL) == 0 && !interpreter[0];
}

int layout_open(struct layout *layout, const struct settings *settings, const struct layout_programs *programs,
                enum store_fs_kind *ret_kind, struct sp_error *err) {
    struct store_fs fs;
    int r;

    fs = layout_store_fs(layout, settings);
    r = store_fs_open(&fs, ret_kind, err);
    if (r == 0)
        r = open_store_dirs(layout, err);
    if (r == 0)
        r = open_program(programs->vm, "vm", "space-vm", &layout->vm_program, err);
    if (r == 0)
        r = open_program(programs->preload, "vmm", "space-vmm-preload.so", &layout->preload, err);
    if (r == 0)
        layout->vm_program_static = program_is_static(layout->vm_program);
    return r;
}

static int open_readable(int dir, const char *profile, const char *const *names, int *ret_fd, struct sp_error *err) {
    struct stat st;
    for (; *names; names++) {
        _cleanup_close_ int fd = openat(dir, *names, O_PATH | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT && names[1])
            continue;
        if (fd < 0 || fstat(fd, &st) < 0)
            return sp_error_errno(err, errno, "open", "kernel file %s/%s", profile, *names);
        if (!S_ISREG(st.st_mode) || !(st.st_mode & S_IROTH))
            return sp_error_set(err, SP_E_INTERNAL, "kernel file %s/%s must be a file everybody may read", profile,
                                *names);
        *ret_fd = TAKE_FD(fd);
        return 0;
    }
    return sp_error_set(err, SP_E_NOT_FOUND, "kernel profile %s is not there", profile);
}

int layout_open_boot_files(const struct layout *layout, const char *profile, struct layout_boot_files *ret,
                           struct sp_error *err) {
    static const char *const kernels[] = {"vmlinux", "vmlinuz", NULL}, *const initrds[] = {"initrd.cpio", NULL};
    _cleanup_close_ int dir = -1, kernel = -1, initrd = -1;
    char path[SETTINGS_PATH_MAX + 16];
    int r;

    (void)text_printf(path, sizeof(path), "%s/%s", layout->kernel_dir, profile);
    dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return sp_error_errno(err, errno, "open", "kernel profile %s", profile);
    r = open_readable(dir, profile, kernels, &kernel, err);
    if (r == 0)
        r = open_readable(dir, profile, initrds, &initrd, err);
    if (r < 0)
        return r;
    ret->kernel = TAKE_FD(kernel);
    ret->initrd = TAKE_FD(initrd);
    return 0;
}
