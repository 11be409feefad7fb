/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole reads and writes, small files, durable replacement, directories. Blocking code: EAGAIN can only come from a
 * socket timeout and is reported as a timeout. Trees are in tree.c, descriptor passing in fdpass.c.
 */
#include "base/fdio.h"
#include "base/cleanup.h"
#include "base/random.h"
#include "base/text.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#define READ_CHUNK 65536u

static int io_error(struct sp_error *err, const char *op, const char *what) {
    int e = errno == EAGAIN ? ETIMEDOUT : errno;
    return sp_error_errno(err, e, op, "%s", what);
}

int fd_write_all(int fd, const void *data, size_t len, struct sp_error *err) {
    const char *p = data;
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(err, "write", "cannot write to descriptor");
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int fd_read_exact(int fd, void *data, size_t len, struct sp_error *err) {
    char *p = data;
    while (len) {
        ssize_t n = read(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(err, "read", "cannot read from descriptor");
        if (n == 0)
            return sp_error_set(err, SP_E_PROTOCOL, "end of data with %zu bytes missing", len);
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int fd_set_nonblocking(int fd, bool on) {
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return -errno;
    flags = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
    return fcntl(fd, F_SETFL, flags) < 0 ? -errno : 0;
}

/* Reads to the end into b, whose maximum is one above what is allowed, so that one byte too many is seen. */
static int read_to_end(int fd, const char *path, struct buf *b, struct sp_error *err) {
    for (;;) {
        size_t room = b->max - b->len < READ_CHUNK ? b->max - b->len : READ_CHUNK;
        char *p = room ? buf_reserve(b, room) : NULL;
        ssize_t n;
        if (room == 0)
            return sp_error_set(err, SP_E_TOO_LARGE, "%s: more than %zu bytes", path, b->max - 1);
        if (!p)
            return sp_error_errno(err, ENOMEM, "read", "%s", path);
        n = read(fd, p, room);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(err, "read", path);
        if (n == 0)
            return 0;
        buf_commit(b, (size_t)n);
    }
}

int file_read(int dirfd, const char *path, size_t max, char **ret_data, size_t *ret_len, struct sp_error *err) {
    _cleanup_close_ int fd = -1;
    _cleanup_buf_ struct buf b = {0};
    size_t len;
    char *data;
    int r;

    assert(max < SIZE_MAX / 4);
    fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return sp_error_errno(err, errno, "open", "%s", path);
    buf_init(&b, max + 1);
    r = read_to_end(fd, path, &b, err);
    if (r < 0)
        return r;
    len = b.len;
    data = buf_steal(&b);
    if (!data)
        return sp_error_errno(err, ENOMEM, "read", "%s", path);
    *ret_data = data;
    if (ret_len)
        *ret_len = len;
    return 0;
}

/* Opens the directory that holds path and says where its last component starts. */
static int open_parent(int dirfd, const char *path, const char **ret_name, struct sp_error *err) {
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t len = slash ? (size_t)(slash - path) : 0;
    int fd;

    if (!*name || strlen(name) > NAME_MAX || len >= sizeof(parent))
        return sp_error_errno(err, EINVAL, "open", "%s: no file name", path);
    if (!slash)
        (void)text_copy(parent, sizeof(parent), ".");
    else if (len == 0)
        (void)text_copy(parent, sizeof(parent), "/");
    else {
        memcpy(parent, path, len);
        parent[len] = '\0';
    }
    fd = openat(dirfd, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return sp_error_errno(err, errno, "open", "%s", parent);
    *ret_name = name;
    return fd;
}

static int write_new_file(int dirfd, const char *name, const void *data, size_t len, mode_t mode,
                          struct sp_error *err) {
    _cleanup_close_ int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0700);
    int r;

    if (fd < 0)
        return sp_error_errno(err, errno, "create", "%s", name);
    r = fd_write_all(fd, data, len, err);
    if (r < 0)
        return r;
    if (fchmod(fd, mode) < 0)
        return sp_error_errno(err, errno, "chmod", "%s", name);
    if (fsync(fd) < 0)
        return sp_error_errno(err, errno, "fsync", "%s", name);
    return 0;
}

int file_replace(int dirfd, const char *path, const void *data, size_t len, mode_t mode, struct sp_error *err) {
    _cleanup_close_ int parent = -1;
    const char *name;
    char temp[ID_SIZE + 8], id[ID_SIZE];
    int r;

    parent = open_parent(dirfd, path, &name, err);
    if (parent < 0)
        return parent;
    id_generate(id, "tmp");
    (void)text_printf(temp, sizeof(temp), ".%s", id);
    r = write_new_file(parent, temp, data, len, mode, err);
    if (r == 0 && renameat(parent, temp, parent, name) < 0)
        r = sp_error_errno(err, errno, "rename", "%s", path);
    if (r < 0) {
        (void)unlinkat(parent, temp, 0);
        return err ? sp_error_wrap(err, "replace %s", path) : r;
    }
    if (fsync(parent) < 0)
        return sp_error_errno(err, errno, "fsync", "directory of %s", path);
    return 0;
}

/* fd is an O_PATH descriptor, on which fchmod does not work. */
static int fix_mode(int fd, const char *path, mode_t mode, struct sp_error *err) {
    _cleanup_close_ int real = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (real < 0 || fchmod(real, mode) < 0)
        return sp_error_errno(err, errno, "chmod", "%s", path);
    return 0;
}

int dir_ensure(int dirfd, const char *path, mode_t mode, uid_t uid, gid_t gid, struct sp_error *err) {
    _cleanup_close_ int fd = -1;
    struct stat st;
    bool chown_uid, chown_gid;

    if (mkdirat(dirfd, path, mode & 0700) < 0 && errno != EEXIST)
        return sp_error_errno(err, errno, "mkdir", "%s", path);
    fd = openat(dirfd, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "open", "%s", path);
    chown_uid = uid != (uid_t)-1 && uid != st.st_uid;
    chown_gid = gid != (gid_t)-1 && gid != st.st_gid;
    if ((chown_uid || chown_gid) && fchownat(fd, "", uid, gid, AT_EMPTY_PATH) < 0)
        return sp_error_errno(err, errno, "chown", "%s", path);
    if ((st.st_mode & 07777) != mode)
        return fix_mode(fd, path, mode, err);
    return 0;
}
