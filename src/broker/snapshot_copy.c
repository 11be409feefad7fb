/* SPDX-License-Identifier: Apache-2.0 */
/* Reflinks file by file, then the manifest with the new name; and FIEMAP's word on what is shared. */
#include "broker/snapshot_copy.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/snapshot_files.h"
#include "host/reflink.h"
#include "host/sync_files.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define COPIED 5 /* files beside the manifest */
static const char *const copied[COPIED] = {LAYOUT_MEMORY, LAYOUT_DEVICES, LAYOUT_DISK,
                                           LAYOUT_MEMORY SNAPSHOT_PIECES_SUFFIX, LAYOUT_DISK SNAPSHOT_PIECES_SUFFIX};

static void temp_name(char dst[SNAPSHOT_TEMP_SIZE], const char *to) {
    (void)text_printf(dst, SNAPSHOT_TEMP_SIZE, "%s.copy.tmp", to);
}

static int copy_file(int from, int to, const char *name, int *ret_fd, struct sp_error *err) {
    _cleanup_close_ int source = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_close_ int fd = -1;
    int r;

    if (source < 0)
        return sp_error_errno(err, errno, "open", "%s", name);
    fd = openat(to, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (fd < 0 || fchmod(fd, 0444) < 0)
        return sp_error_errno(err, errno, "create", "%s", name);
    r = reflink_clone(fd, source, name, err);
    if (r == 0)
        *ret_fd = TAKE_FD(fd);
    return r;
}

static int copy_manifest(const struct snapshot_copy *copy, int from, int to, int *ret_fd, struct sp_error *err) {
    _cleanup_json_ json_t *manifest = NULL;
    _cleanup_free_ char *text = NULL;
    int r = snapshot_read_manifest(from, copy->from, &manifest, err);

    if (r < 0)
        return r;
    (void)json_object_set_new(manifest, "key", json_string(copy->to));
    (void)json_object_set_new(manifest, "base", json_string(copy->from));
    if (copy->node_manifest)
        (void)json_object_set_new(manifest, "node", json_deep_copy(copy->node_manifest));
    text = json_print(manifest);
    *ret_fd = openat(to, LAYOUT_MANIFEST, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (*ret_fd < 0 || fchmod(*ret_fd, 0444) < 0)
        return sp_error_errno(err, errno, "create", LAYOUT_MANIFEST);
    return fd_write_all(*ret_fd, text, strlen(text), err);
}

static int sync_all(const int *fds, size_t n, struct sp_error *err) {
    int there[COPIED + 2];
    size_t n_there = 0;

    for (size_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            there[n_there++] = fds[i];
    return sync_files(there, n_there, err);
}

static int fill(const struct snapshot_copy *copy, int from, int to, struct sp_error *err) {
    enum request_content content = CONTENT_FULL;
    int fds[COPIED + 2], r = snapshot_content(copy->layout, copy->from, &content, err);

    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        fds[i] = -1;
    for (size_t i = 0; i < COPIED && r == 0; i++) {
        if (!snapshot_holds(content, copied[i]))
            continue;
        r = fault_point("copy.file", err);
        if (r == 0)
            r = copy_file(from, to, copied[i], &fds[i], err);
    }
    if (r == 0)
        r = fault_point("copy.manifest", err);
    if (r == 0)
        r = copy_manifest(copy, from, to, &fds[COPIED], err);
    if (r == 0) {
        fds[COPIED + 1] = fcntl(to, F_DUPFD_CLOEXEC, 0);
        r = sync_all(fds, ARRAY_SIZE(fds), err);
    }
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        (void)close_fd(fds[i]);
    return r;
}

int snapshot_copy(const struct snapshot_copy *copy, struct sp_error *err) {
    const struct layout *layout = copy->layout;
    _cleanup_close_ int from = -1, to = -1;
    char temp[SNAPSHOT_TEMP_SIZE];
    int r = fault_point("copy.begin", err);

    temp_name(temp, copy->to);
    if (r == 0)
        r = snapshot_check(layout, copy->from, SNAPSHOT_QUICK, err);
    if (r == 0)
        r = snapshot_open(layout, copy->from, &from, err);
    if (r == 0)
        r = dir_remove_tree(layout->snapshots, temp, err);
    if (r == 0 && mkdirat(layout->snapshots, temp, 0711) < 0)
        r = sp_error_errno(err, errno, "mkdir", "%s", temp);
    if (r < 0)
        return r;
    to = openat(layout->snapshots, temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (to < 0 || fchmod(to, 0711) < 0)
        r = sp_error_errno(err, errno, "open", "%s", temp);
    if (r == 0)
        r = fill(copy, from, to, err);
    if (r == 0)
        r = fault_point("copy.publish", err);
    if (r == 0)
        r = snapshot_publish(layout, temp, copy->to, err);
    if (r < 0)
        (void)dir_remove_tree(layout->snapshots, temp, NULL);
    return r;
}

int snapshot_copy_undo(const struct layout *layout, const char *to, struct sp_error *err) {
    char temp[SNAPSHOT_TEMP_SIZE];
    temp_name(temp, to);
    return dir_remove_tree(layout->snapshots, temp, err);
}

/* --- sizes ---------------------------------------------------------------------------------------------------------- */

static int add_file(int dir, const char *name, uint64_t *own, struct snapshot_size *size, uint64_t *ret_extents,
                    struct sp_error *err) {
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_extents_ struct extents extents = {0};
    struct stat st;
    uint64_t bytes, exclusive;
    int r;

    if (fd < 0 || fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "open", "%s", name);
    bytes = exclusive = (uint64_t)st.st_blocks * 512;
    r = extents_read(fd, false, &extents, err);
    if (r < 0 && r != -SP_E_UNSUPPORTED)
        return r;
    if (r == 0) {
        bytes = extents_bytes(&extents);
        exclusive = extents_exclusive(&extents);
    }
    if (own)
        *own = (uint64_t)st.st_blocks * 512;
    if (ret_extents)
        *ret_extents = extents.n;
    size->exclusive_bytes += exclusive;
    size->shared_bytes += bytes - exclusive;
    return 0;
}

int snapshot_size(const struct layout *layout, const char *key, struct snapshot_size *ret, struct sp_error *err) {
    enum request_content content = CONTENT_FULL;
    _cleanup_close_ int dir = -1;
    int r = snapshot_open(layout, key, &dir, err);

    *ret = (struct snapshot_size){0};
    if (r == 0)
        r = snapshot_content(layout, key, &content, err);
    for (size_t i = 0; i < COPIED && r == 0; i++) {
        bool is_memory = strcmp(copied[i], LAYOUT_MEMORY) == 0, is_disk = strcmp(copied[i], LAYOUT_DISK) == 0;
        uint64_t *own = is_memory ? &ret->memory_bytes : is_disk ? &ret->disk_bytes : NULL;
        if (snapshot_holds(content, copied[i]))
            r = add_file(dir, copied[i], own, ret, is_memory ? &ret->extents : NULL, err);
    }
    return r;
}
