/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds a root from items and pivots into it. Sources are cloned as detached mounts (open_tree), get their flags there
 * (mount_setattr) and only then appear, so that there is no moment in which a bind is writable. The root is attached
 * over a scratch directory because older kernels attach nothing below a detached mount.
 */
#include "host/jail_root.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#define FLAGS_ALWAYS MOUNT_ATTR_NOSUID

/* The flags are these whatever the mount was cloned from: the store's own is noexec, and bundles of programs lie in it. */
static int set_flags(int fd, uint64_t flags, const char *what, struct sp_error *err) {
    struct mount_attr attr = {.attr_set = flags, .attr_clr = flags & MOUNT_ATTR_NOEXEC ? 0 : MOUNT_ATTR_NOEXEC};
    if (mount_setattr(fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
        return sp_error_errno(err, errno, "mount_setattr", "%s", what);
    return 0;
}

static int attach(int mount_fd, int root, const char *path, struct sp_error *err) {
    if (move_mount(mount_fd, "", root, path, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return sp_error_errno(err, errno, "move_mount", "%s", path);
    return 0;
}

/* A new file system of its own, detached. `options`: key, value pairs, NULL-ended; an empty value is a flag. */
static int new_file_system(const char *type, const char *const *options, unsigned flags, int *ret_fd,
                           struct sp_error *err) {
    _cleanup_close_ int context = fsopen(type, FSOPEN_CLOEXEC), fd = -1;

    if (context < 0)
        return sp_error_errno(err, errno, "fsopen", "%s", type);
    for (; *options; options += 2)
        if (fsconfig(context, FSCONFIG_SET_STRING, options[0], options[1], 0) < 0)
            return sp_error_errno(err, errno, "fsconfig", "%s %s=%s", type, options[0], options[1]);
    if (fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return sp_error_errno(err, errno, "fsconfig", "%s", type);
    fd = fsmount(context, FSMOUNT_CLOEXEC, flags);
    if (fd < 0)
        return sp_error_errno(err, errno, "fsmount", "%s", type);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int make_dir(int root, const char *path, struct sp_error *err) {
    if (mkdirat(root, path, 0755) < 0 && errno != EEXIST)
        return sp_error_errno(err, errno, "mkdir", "%s", path);
    return 0;
}

static int add_dir(int root, const struct jail_item *item, struct sp_error *err) {
    return make_dir(root, item->path, err);
}

static int add_bind_dir(int root, const struct jail_item *item, struct sp_error *err) {
    _cleanup_close_ int fd = open_tree(AT_FDCWD, item->source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    int r;

    if (fd < 0)
        return sp_error_errno(err, errno, "open_tree", "%s", item->source);
    r = set_flags(fd, FLAGS_ALWAYS | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY, item->path, err);
    if (r == 0)
        r = make_dir(root, item->path, err);
    return r < 0 ? r : attach(fd, root, item->path, err);
}

int jail_file_mount(int fd, const char *what, bool writable, bool executable, int *ret_fd, struct sp_error *err) {
    const uint64_t flags =
        FLAGS_ALWAYS | MOUNT_ATTR_NODEV | (writable ? 0 : MOUNT_ATTR_RDONLY) | (executable ? 0 : MOUNT_ATTR_NOEXEC);
    _cleanup_close_ int mount_fd = open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    int r;

    if (mount_fd < 0)
        return sp_error_errno(err, errno, "open_tree", "%s", what);
    r = set_flags(mount_fd, flags, what, err);
    if (r == 0)
        *ret_fd = TAKE_FD(mount_fd);
    return r;
}

static int add_file(int root, const struct jail_item *item, struct sp_error *err) {
    _cleanup_close_ int target = openat(root, item->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0);
    if (target < 0)
        return sp_error_errno(err, errno, "create", "%s", item->path);
    return attach(item->mount_fd, root, item->path, err);
}

static int add_link_or_dir(int root, const struct jail_item *item, struct sp_error *err) {
    char target[PATH_MAX];
    ssize_t n = readlink(item->source, target, sizeof(target) - 1);

    if (n < 0 && errno == ENOENT)
        return 0;
    if (n < 0)
        return add_bind_dir(root, item, err);
    target[n] = '\0';
    if (symlinkat(target, root, item->path) < 0)
        return sp_error_errno(err, errno, "symlink", "%s", item->path);
    return 0;
}

static int add_dev(int root, const struct jail_item *item, struct sp_error *err) {
    static const char *const options[] = {"size", "16k", "nr_inodes", "8", "mode", "0755", NULL};
    _cleanup_close_ int fd = -1;
    int r = new_file_system("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, &fd, err);

    if (r == 0)
        r = make_dir(root, item->path, err);
    return r < 0 ? r : attach(fd, root, item->path, err);
}

static int add_device(int root, const struct jail_item *item, struct sp_error *err) {
    if (mknodat(root, item->path, S_IFCHR | item->mode, item->device) < 0 ||
        fchownat(root, item->path, item->owner, item->owner, AT_SYMLINK_NOFOLLOW) < 0)
        return sp_error_errno(err, errno, "mknod", "%s", item->path);
    return 0;
}

static int add_proc(int root, const struct jail_item *item, struct sp_error *err) {
    static const char *const options[] = {"subset", "pid", "hidepid", "invisible", NULL};
    _cleanup_close_ int fd = -1;
    int r = new_file_system("proc", options,
                            MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_RDONLY, &fd, err);

    if (r == 0)
        r = make_dir(root, item->path, err);
    return r < 0 ? r : attach(fd, root, item->path, err);
}

static int (*const add_item[])(int root, const struct jail_item *item, struct sp_error *err) = {
    [JAIL_DIR] = add_dir,       [JAIL_BIND_DIR] = add_bind_dir,
    [JAIL_FILE] = add_file,     [JAIL_LINK_OR_DIR] = add_link_or_dir,
    [JAIL_DEVICE] = add_device, [JAIL_DEV] = add_dev,
    [JAIL_PROC] = add_proc,
};

/* The old root lands under the new one and is detached from there: pivot_root(2), "new_root and put_old may be the same". */
static int pivot(int root, struct sp_error *err) {
    if (fchdir(root) < 0)
        return sp_error_errno(err, errno, "fchdir", "new root");
    if (syscall(SYS_pivot_root, ".", ".") < 0)
        return sp_error_errno(err, errno, "pivot_root", "new root");
    if (umount2(".", MNT_DETACH) < 0)
        return sp_error_errno(err, errno, "umount", "old root");
    if (chdir("/") < 0)
        return sp_error_errno(err, errno, "chdir", "/");
    return 0;
}

static int seal(const struct jail_item *items, size_t n, int root, struct sp_error *err) {
    for (size_t i = 0; i < n; i++) {
        struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY};
        if (items[i].kind == JAIL_DEV && mount_setattr(root, items[i].path, 0, &attr, sizeof(attr)) < 0)
            return sp_error_errno(err, errno, "mount_setattr", "%s", items[i].path);
    }
    return set_flags(root, FLAGS_ALWAYS | MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC, "/", err);
}

int jail_root_enter(const struct jail_item *items, size_t n, const char *scratch, struct sp_error *err) {
    static const char *const options[] = {"size", "64k", "nr_inodes", "64", "mode", "0755", NULL};
    _cleanup_close_ int root = -1;
    mode_t mask;
    int r;

    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return sp_error_errno(err, errno, "mount", "making / private");
    r = new_file_system("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, &root, err);
    if (r == 0)
        r = attach(root, AT_FDCWD, scratch, err);
    mask = umask(0); /* the modes here are meant as they stand */
    for (size_t i = 0; i < n && r == 0; i++)
        r = add_item[items[i].kind](root, &items[i], err);
    (void)umask(mask);
    if (r == 0)
        r = seal(items, n, root, err);
    return r < 0 ? r : pivot(root, err);
}
