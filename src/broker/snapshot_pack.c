/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memory file that is the child of many others lies in very many extents, and everything done with it gets slower: it is
 * written anew, the same bytes in one go. The name goes over to the new file in one step; whoever has the old one open is
 * not disturbed.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/snapshot_copy.h"
#include "broker/snapshot_files.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define CHUNK (1024u * 1024u)
#define SMALL_HOLE (64 * 1024) /* written as zeros: an extent saved is worth more */
#define NEW_NAME LAYOUT_MEMORY ".new"

/* Not copy_file_range(): it would share the old extents. */
static int copy_range(int from, int to, off_t at, off_t end, char *chunk, struct sp_error *err) {
    while (at < end) {
        size_t want = end - at < (off_t)CHUNK ? (size_t)(end - at) : CHUNK;
        ssize_t n = pread(from, chunk, want, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return sp_error_errno(err, n < 0 ? errno : EIO, "pread", LAYOUT_MEMORY);
        if (pwrite(to, chunk, (size_t)n, at) != n)
            return sp_error_errno(err, errno ? errno : EIO, "pwrite", NEW_NAME);
        at += n;
    }
    return 0;
}

/* Where the data that begins at `at` ends, small holes included. */
static off_t data_end(int fd, off_t at, off_t size) {
    for (;;) {
        off_t end = lseek(fd, at, SEEK_HOLE), next = end < 0 ? -1 : lseek(fd, end, SEEK_DATA);
        if (end < 0)
            return size;
        if (next < 0 || next - end > SMALL_HOLE)
            return end;
        at = next;
    }
}

static int copy_data(int from, int to, struct sp_error *err) {
    _cleanup_free_ char *chunk = malloc(CHUNK);
    struct stat st;
    off_t at = 0;
    int r = 0;

    if (!chunk)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    if (fstat(from, &st) < 0 || ftruncate(to, st.st_size) < 0)
        return sp_error_errno(err, errno, "ftruncate", NEW_NAME);
    while (r == 0 && (at = lseek(from, at, SEEK_DATA)) >= 0) {
        off_t end = data_end(from, at, st.st_size);
        r = copy_range(from, to, at, end, chunk, err);
        at = end;
    }
    return r;
}

int snapshot_pack(const struct layout *layout, const char *key, struct sp_error *err) {
    _cleanup_close_ int dir = -1, from = -1, to = -1;
    char link[64];
    int r = snapshot_open(layout, key, &dir, err);

    if (r < 0)
        return r;
    from = openat(dir, LAYOUT_MEMORY, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    to = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); /* nothing is left of it when this is cut off */
    if (from < 0 || to < 0)
        return sp_error_errno(err, errno, "open", "memory of snapshot %s", key);
    r = copy_data(from, to, err);
    if (r == 0)
        r = fault_point("pack.copied", err);
    if (r == 0 && (fchmod(to, 0444) < 0 || fsync(to) < 0))
        r = sp_error_errno(err, errno, "fsync", NEW_NAME);
    if (r < 0)
        return r;
    (void)text_printf(link, sizeof(link), "/proc/self/fd/%d", to);
    if (unlinkat(dir, NEW_NAME, 0) < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "unlink", NEW_NAME);
    if (linkat(AT_FDCWD, link, dir, NEW_NAME, AT_SYMLINK_FOLLOW) < 0 ||
        renameat(dir, NEW_NAME, dir, LAYOUT_MEMORY) < 0 || fsync(dir) < 0)
        return sp_error_errno(err, errno, "rename", "memory of snapshot %s", key);
    return 0;
}
