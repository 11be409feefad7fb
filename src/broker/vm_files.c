/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and making what a VM runs on. */
#include "broker/vm_files.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "broker/snapshot.h"
#include "host/reflink.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

int vm_files_check(const struct layout *layout, const char *snapshot, const char *template,
                   enum request_content content, struct sp_error *err) {
    enum request_content holds = CONTENT_FULL;
    char have[SHA256_HEX_SIZE];
    int r = snapshot_check(layout, snapshot, SNAPSHOT_QUICK, err);

    if (r == 0)
        r = snapshot_template(layout, snapshot, have, err);
    if (r == 0 && strcmp(have, template) != 0)
        r = sp_error_field(err, SP_E_INVALID, "template", "snapshot %s is of template %s", snapshot, have);
    if (r == 0)
        r = snapshot_content(layout, snapshot, &holds, err);
    if (r == 0 && holds != content)
        r = sp_error_field(err, SP_E_INVALID, "snapshot",
                           holds == CONTENT_DISK ? "snapshot %s holds the disk alone: it can only be booted"
                                                 : "snapshot %s holds memory: it is not booted",
                           snapshot);
    return r;
}

int vm_files_open(const struct layout *layout, const char *snapshot, const char *name, int flags, int *ret_fd,
                  struct sp_error *err) {
    char path[BROKER_KEY_SIZE + 32];
    int fd;
    (void)text_printf(path, sizeof(path), "%s/%s", snapshot, name);
    fd = openat(layout->snapshots, path, flags | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return sp_error_errno(err, errno, "open", "%s of snapshot %s", name, snapshot);
    *ret_fd = fd;
    return 0;
}

int vm_files_create(int dir, const struct vm_record *record, const char *name, int flags, int *ret_fd,
                    struct sp_error *err) {
    _cleanup_close_ int fd = openat(dir, name, flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return sp_error_errno(err, errno, "create", "%s of %s", name, record->id);
    if (fchown(fd, record->uid, record->uid) < 0)
        return sp_error_errno(err, errno, "chown", "%s of %s", name, record->id);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int vm_files_empty_memory(int dir, const struct vm_record *record, int *ret_fd, struct sp_error *err) {
    _cleanup_close_ int fd = openat(dir, LAYOUT_MEMORY, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (fd < 0 || fchmod(fd, 0444) < 0 || ftruncate(fd, (off_t)record->memory_mib * 1024 * 1024) < 0)
        return sp_error_errno(err, errno, "create", "memory of %s", record->id);
    *ret_fd = openat(dir, LAYOUT_MEMORY, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return *ret_fd >= 0 ? 0 : sp_error_errno(err, errno, "open", "memory of %s", record->id);
}

static int open_source(const struct layout *layout, const struct vm_record *record, int *ret_fd, struct sp_error *err) {
    bool boot = !record->snapshot[0];
    const char *parent = boot ? record->template : record->snapshot;
    _cleanup_close_ int dir =
        openat(boot ? layout->templates : layout->snapshots, parent, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_close_ int fd = dir < 0 ? -1 : openat(dir, LAYOUT_DISK, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd < 0)
        return errno == ENOENT ? sp_error_field(err, SP_E_NOT_FOUND, boot ? "template" : "snapshot",
                                                "there is no %s %s", boot ? "template" : "snapshot", parent)
                               : sp_error_errno(err, errno, "open", "disk image of %s", parent);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return sp_error_set(err, SP_E_CORRUPT, "the disk image of %s is no file", parent);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int vm_files_disk(const struct layout *layout, int dir, const struct vm_record *record, int *ret_fd, uint64_t *ret_size,
                  struct sp_error *err) {
    _cleanup_close_ int source = -1, disk = -1;
    struct stat st;
    int r = open_source(layout, record, &source, err);

    if (r == 0)
        r = vm_files_create(dir, record, LAYOUT_DISK, O_RDWR, &disk, err);
    if (r == 0)
        r = reflink_clone(disk, source, "disk image", err);
    if (r < 0)
        return r;
    if (fstat(disk, &st) < 0)
        return sp_error_errno(err, errno, "fstat", "disk image");
    *ret_size = (uint64_t)st.st_size;
    *ret_fd = TAKE_FD(disk);
    return 0;
}
