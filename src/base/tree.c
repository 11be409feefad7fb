/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removal of a directory tree that someone else may have shaped. Links are removed, never followed; a mount point
 * stops the removal there (openat2 RESOLVE_NO_XDEV); depth costs no more than DEPTH_MAX descriptors, because deeper
 * directories are moved up to the top and removed from there. What can be removed is; the first error is reported.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/random.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define DEPTH_MAX 48
#define PASSES_MAX 4 /* over a directory that stays non-empty although every entry was removed: someone writes to it */
#define RESOLVE_NO_XDEV_ 0x01u
#define RESOLVE_NO_SYMLINKS_ 0x04u
#define RESOLVE_BENEATH_ 0x08u

struct removal {
    int top;    /* where directories deeper than DEPTH_MAX are moved */
    bool moved; /* some were: another pass over the top is due */
    int result; /* 0 or the first failure */
    struct sp_error *err;
};

static int open_below(int dirfd, const char *path, unsigned resolve) {
    /* struct open_how; musl has no header for it. */
    struct {
        uint64_t flags, mode, resolve;
    } how = {O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, resolve};
    return (int)syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
}

static void note_errno(struct removal *rm, int err_no, const char *op, const char *name) {
    if (rm->result == 0)
        rm->result = sp_error_errno(rm->err, err_no, op, "%s", name);
}

static void remove_children(struct removal *rm, int dirfd, unsigned depth);

static void move_to_top(struct removal *rm, int dirfd, const char *name) {
    char id[ID_SIZE];
    id_generate(id, "del");
    if (renameat(dirfd, name, rm->top, id) < 0)
        note_errno(rm, errno, "rename", name);
    else
        rm->moved = true;
}

// NOLINTNEXTLINE(misc-no-recursion): bounded by DEPTH_MAX
static void remove_entry(struct removal *rm, int dirfd, const char *name, unsigned depth) {
    _cleanup_close_ int fd = -1;

    if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
        return;
    if (errno != EISDIR && errno != EPERM) {
        note_errno(rm, errno, "unlink", name);
        return;
    }
    if (unlinkat(dirfd, name, AT_REMOVEDIR) == 0)
        return;
    if (errno != ENOTEMPTY && errno != EEXIST) {
        note_errno(rm, errno, "rmdir", name);
        return;
    }
    if (depth >= DEPTH_MAX) {
        move_to_top(rm, dirfd, name);
        return;
    }
    fd = open_below(dirfd, name, RESOLVE_NO_XDEV_ | RESOLVE_NO_SYMLINKS_ | RESOLVE_BENEATH_);
    if (fd < 0) {
        note_errno(rm, errno, "open", name);
        return;
    }
    for (int pass = 0; pass < PASSES_MAX; pass++) {
        int before = rm->result;
        remove_children(rm, fd, depth + 1);
        if (unlinkat(dirfd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
            return;
        if (rm->result < 0 || before < 0)
            break;
    }
    note_errno(rm, errno, "rmdir", name);
}

// NOLINTNEXTLINE(misc-no-recursion): bounded by DEPTH_MAX
static void remove_children(struct removal *rm, int dirfd, unsigned depth) {
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* own position, the caller's is kept */

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        note_errno(rm, errno, "opendir", ".");
        (void)close_fd(fd);
        return;
    }
    while ((errno = 0, entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            remove_entry(rm, dirfd, entry->d_name, depth);
    if (errno)
        note_errno(rm, errno, "readdir", ".");
}

int dir_remove_tree(int dirfd, const char *path, struct sp_error *err) {
    _cleanup_close_ int top = -1;
    struct removal rm = {.err = err};
    struct stat st;

    if (fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : sp_error_errno(err, errno, "stat", "%s", path);
    if (!S_ISDIR(st.st_mode)) {
        if (unlinkat(dirfd, path, 0) < 0 && errno != ENOENT)
            return sp_error_errno(err, errno, "unlink", "%s", path);
        return 0;
    }
    top = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (top < 0)
        return sp_error_errno(err, errno, "open", "%s", path);
    rm.top = top;
    for (int pass = 0; pass < PASSES_MAX;) {
        rm.moved = false;
        remove_children(&rm, top, 0);
        if (rm.result < 0)
            break;
        if (rm.moved)
            continue; /* every pass of this kind takes DEPTH_MAX levels away */
        if (unlinkat(dirfd, path, AT_REMOVEDIR) == 0 || errno == ENOENT)
            return 0;
        if (errno != ENOTEMPTY && errno != EEXIST)
            break;
        pass++;
    }
    note_errno(&rm, errno, "rmdir", path);
    return err ? sp_error_wrap(err, "remove %s", path) : rm.result;
}
