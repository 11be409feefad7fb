/* SPDX-License-Identifier: Apache-2.0 */
/* FICLONE with errors that say what is wrong with the file system. Does not create or own files. */
#include "host/reflink.h"
#include "base/cleanup.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

int reflink_clone(int dst_fd, int src_fd, const char *what, struct sp_error *err) {
    if (ioctl(dst_fd, FICLONE, src_fd) == 0)
        return 0;
    switch (errno) {
    case EOPNOTSUPP:
    case ENOTTY:
    case EINVAL:
        return sp_error_set(err, SP_E_UNSUPPORTED, "%s: the file system has no reflink copies", what);
    case EXDEV:
        return sp_error_set(err, SP_E_UNSUPPORTED, "%s: source and copy are on different file systems", what);
    default:
        return sp_error_errno(err, errno, "FICLONE", "%s", what);
    }
}

bool reflink_is_supported(int dirfd) {
    static const char block[4096] = "space";
    _cleanup_close_ int src = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    _cleanup_close_ int dst = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (src < 0 || dst < 0 || write(src, block, sizeof(block)) != (ssize_t)sizeof(block))
        return false;
    return reflink_clone(dst, src, "probe", NULL) == 0;
}
