/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes, attaches, mounts and unmounts the store. Blocking: mkfs takes a fraction of a second, once in a store's life.
 * Runs when the broker starts and as `space-broker --unmount`, never while requests are served.
 */
#include "host/store_fs.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "host/reflink.h"
#include "io/spawn.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define LOOP_TRIES 64 /* someone else may take the free device we were told of */
#define SECTOR 4096u
#define MKFS_TIMEOUT_MS 60000
#define MKFS_OUTPUT_MAX 16384
#define MKFS "/usr/sbin/mkfs.btrfs"
#define MKFS_OTHER "/sbin/mkfs.btrfs"

static int is_mount_point(const char *dir, bool *ret, struct sp_error *err) {
    struct statx stx;
    if (statx(AT_FDCWD, dir, AT_NO_AUTOMOUNT | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &stx) < 0)
        return sp_error_errno(err, errno, "statx", "%s", dir);
    *ret = (stx.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
    return 0;
}

static bool dir_has_reflink(const char *dir) {
    _cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 && reflink_is_supported(fd);
}

/* Its notes are kept for an error's text and otherwise dropped. */
static int run_mkfs(const char *image, struct sp_error *err) {
    const char *path = access(MKFS, X_OK) == 0 ? MKFS : MKFS_OTHER;
    const char *const argv[] = {path, "-q", "-m", "single", image, NULL}, *const env[] = {NULL};
    const struct spawn_options opt = {.argv = argv, .env = env};
    _cleanup_buf_ struct buf out = {0};

    buf_init(&out, MKFS_OUTPUT_MAX);
    return spawn_run(&opt, NULL, 0, deadline_in_ms(MKFS_TIMEOUT_MS), &out, NULL, err);
}

/* Under another name until it is whole, so that a half-made image is never mounted. */
static int make_image(const struct store_fs *fs, struct sp_error *err) {
    char temp[4096];
    _cleanup_close_ int fd = -1;
    int r;

    if (!text_printf(temp, sizeof(temp), "%s.new", fs->image))
        return sp_error_set(err, SP_E_INVALID, "path of the store's image is too long");
    fd = open(temp, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return sp_error_errno(err, errno, "create", "%s", temp);
    if (ftruncate(fd, (off_t)(fs->size_mib * 1024 * 1024)) < 0)
        return sp_error_errno(err, errno, "ftruncate", "%s to %llu MiB", temp, (unsigned long long)fs->size_mib);
    r = run_mkfs(temp, err);
    if (r < 0) {
        (void)unlink(temp);
        return r;
    }
    if (fsync(fd) < 0 || rename(temp, fs->image) < 0)
        return sp_error_errno(err, errno, "rename", "%s", fs->image);
    return 0;
}

/* 0 or -errno; -EBUSY: someone else was faster. */
static int configure_loop(int loop, int image) {
    /* Direct I/O keeps the page cache from holding the store twice; not every file system below can do it. */
    struct loop_config config = {
        .fd = (__u32)image,
        .block_size = SECTOR,
        .info = {.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO},
    };
    if (ioctl(loop, LOOP_CONFIGURE, &config) == 0)
        return 0;
    if (errno != EBUSY) {
        config.info.lo_flags = LO_FLAGS_AUTOCLEAR;
        if (ioctl(loop, LOOP_CONFIGURE, &config) == 0)
            return 0;
    }
    return -errno;
}

/* The loop device is open in *ret_fd, which keeps it until it is mounted: autoclear. */
static int attach_loop(const char *image_path, char path[32], int *ret_fd, struct sp_error *err) {
    _cleanup_close_ int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    _cleanup_close_ int image = open(image_path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);

    if (control < 0)
        return sp_error_errno(err, errno, "open", "/dev/loop-control");
    if (image < 0)
        return sp_error_errno(err, errno, "open", "%s", image_path);
    for (unsigned i = 0; i < LOOP_TRIES; i++) {
        _cleanup_close_ int loop = -1;
        int r, number = ioctl(control, LOOP_CTL_GET_FREE);
        if (number < 0)
            return sp_error_errno(err, errno, "LOOP_CTL_GET_FREE", "loop devices");
        (void)text_printf(path, 32, "/dev/loop%d", number);
        loop = open(path, O_RDWR | O_CLOEXEC);
        if (loop < 0)
            return sp_error_errno(err, errno, "open", "%s", path);
        r = configure_loop(loop, image);
        if (r == 0) {
            *ret_fd = TAKE_FD(loop);
            return 0;
        }
        if (r != -EBUSY)
            return sp_error_errno(err, -r, "LOOP_CONFIGURE", "%s on %s", image_path, path);
    }
    return sp_error_set(err, SP_E_UNAVAILABLE, "no free loop device after %d tries", LOOP_TRIES);
}

static int mount_image(const struct store_fs *fs, struct sp_error *err) {
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME;
    _cleanup_close_ int loop = -1;
    char path[32];
    int r = attach_loop(fs->image, path, &loop, err);

    if (r < 0)
        return r;
    if (mount(path, fs->dir, "btrfs", flags, "discard=async") < 0 && mount(path, fs->dir, "btrfs", flags, "") < 0)
        return sp_error_errno(err, errno, "mount", "%s on %s", path, fs->dir);
    return 0;
}

int store_fs_open(const struct store_fs *fs, enum store_fs_kind *ret_kind, struct sp_error *err) {
    bool mounted, have_image = access(fs->image, F_OK) == 0;
    int r = is_mount_point(fs->dir, &mounted, err);

    if (r < 0)
        return r;
    if (mounted || !have_image) {
        if (dir_has_reflink(fs->dir)) {
            *ret_kind = mounted && have_image ? STORE_FS_MOUNTED : STORE_FS_NATIVE;
            return 0;
        }
        if (mounted)
            return sp_error_set(err, SP_E_UNSUPPORTED, "what is mounted on %s has no reflink copies", fs->dir);
    }
    if (!have_image)
        r = make_image(fs, err);
    if (r == 0)
        r = mount_image(fs, err);
    if (r < 0)
        return r;
    if (!dir_has_reflink(fs->dir))
        return sp_error_set(err, SP_E_UNSUPPORTED, "the store on %s has no reflink copies", fs->dir);
    *ret_kind = STORE_FS_ATTACHED;
    return 0;
}

int store_fs_unmount(const struct store_fs *fs, struct sp_error *err) {
    bool mounted;
    int r = is_mount_point(fs->dir, &mounted, err);

    if (r == -SP_E_NOT_FOUND)
        return 0;
    if (r < 0 || !mounted || access(fs->image, F_OK) < 0)
        return r; /* native, or mounted by someone else: not ours to take away */
    if (umount2(fs->dir, UMOUNT_NOFOLLOW) < 0)
        return errno == EBUSY ? sp_error_set(err, SP_E_CONFLICT, "%s is in use", fs->dir)
                              : sp_error_errno(err, errno, "umount", "%s", fs->dir);
    return 0;
}
