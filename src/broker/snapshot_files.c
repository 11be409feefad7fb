/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that sealing, taking and copying a snapshot have in common. */
#include "broker/snapshot_files.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define PIECES_NAME_SIZE 64

int snapshot_file_own(int fd, const char *name, struct sp_error *err) {
    if (fchown(fd, 0, 0) < 0 || fchmod(fd, 0444) < 0)
        return sp_error_errno(err, errno, "chown", "%s", name);
    /* The kernel grants a read lease only while nobody has the file open for writing: no descriptor is left anywhere. */
    if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
        return errno == EAGAIN ? sp_error_set(err, SP_E_CONFLICT, "%s is still open for writing", name)
                               : sp_error_errno(err, errno, "F_SETLEASE", "%s", name);
    (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    return 0;
}

int snapshot_file_row(json_t *files, int fd, const char *name, const char *hash, struct sp_error *err) {
    struct stat st;
    json_t *row;

    if (fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "fstat", "%s", name);
    row = json_pack("{s:I, s:s}", "size", (json_int_t)st.st_size, "sha256_pieces", hash);
    if (!row || json_object_set_new(files, name, row) < 0)
        return sp_error_set(err, SP_E_INTERNAL, "cannot encode the manifest");
    return 0;
}

int snapshot_pieces_write(int dir, const char *name, const struct piece_digests *digests, int *ret_fd,
                          struct sp_error *err) {
    _cleanup_close_ int fd = -1;
    char path[PIECES_NAME_SIZE];
    int r;

    (void)text_printf(path, sizeof(path), "%s" SNAPSHOT_PIECES_SUFFIX, name);
    if (unlinkat(dir, path, 0) < 0 && errno != ENOENT) /* of an attempt that was cut off */
        return sp_error_errno(err, errno, "unlink", "%s", path);
    fd = openat(dir, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (fd < 0 || fchmod(fd, 0444) < 0)
        return sp_error_errno(err, errno, "create", "%s", path);
    r = fd_write_all(fd, digests->rows, digests->n * sizeof(*digests->rows), err);
    if (r == 0 && !ret_fd && fsync(fd) < 0)
        r = sp_error_errno(err, errno, "fsync", "%s", path);
    if (r == 0 && ret_fd)
        *ret_fd = TAKE_FD(fd);
    return r;
}

int snapshot_pieces_read(int dir, const char *name, const char *hash, struct piece_digests *ret, struct sp_error *err) {
    _cleanup_piece_digests_ struct piece_digests digests = {0};
    _cleanup_close_ int fd = -1;
    char path[PIECES_NAME_SIZE], have[SHA256_HEX_SIZE];
    struct stat st;
    int r;

    (void)text_printf(path, sizeof(path), "%s" SNAPSHOT_PIECES_SUFFIX, name);
    fd = openat(dir, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return sp_error_set(err, SP_E_CORRUPT, "%s is missing", path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "open", "%s", path);
    digests.n = (size_t)st.st_size / sizeof(*digests.rows);
    digests.rows = calloc(digests.n + 1, sizeof(*digests.rows));
    if (!digests.rows)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    r = fd_read_exact(fd, digests.rows, digests.n * sizeof(*digests.rows), err);
    if (r < 0)
        return r;
    piece_digests_hex(&digests, have);
    if ((size_t)st.st_size % sizeof(*digests.rows) || strcmp(have, hash) != 0)
        return sp_error_set(err, SP_E_CORRUPT, "%s is not what it was made with", path);
    *ret = digests;
    digests = (struct piece_digests){0};
    return 0;
}

char *snapshot_manifest_print(const struct snapshot_manifest *m, struct sp_error *err) {
    const struct vm_record *rec = m->record;
    _cleanup_json_ json_t *obj = json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:O}", "format", SNAPSHOT_FORMAT,
                                           "key", m->key, "content", request_content_names[m->content], "template",
                                           rec->template, "kernel", request_kernel_names[rec->kernel], "vcpus",
                                           (json_int_t)rec->vcpus, "memory_mib", (json_int_t)rec->memory_mib,
                                           "created_realtime_ns", (json_int_t)clock_realtime_ns(), "files", m->files);
    json_t *node = json_deep_copy(m->node);

    if (obj && m->base)
        (void)json_object_set_new(obj, "base", json_string(m->base));
    if (obj && rec->engine[0] &&
        m->content == CONTENT_FULL) { /* what holds a disk alone is booted by whatever there is */
        (void)json_object_set_new(obj, "engine", json_string(rec->engine));
        (void)json_object_set_new(obj, "qemu_version", json_string(rec->qemu_version));
    }
    if (!obj || !node || json_object_set_new(obj, "node", node) < 0) {
        (void)sp_error_set(err, SP_E_INTERNAL, "cannot encode the manifest");
        return NULL;
    }
    return json_print(obj);
}

int snapshot_publish(const struct layout *layout, const char *temp, const char *key, struct sp_error *err) {
    int snapshots = layout->snapshots;
    int r = snapshot_exists(layout, key) ? sp_error_set(err, SP_E_CONFLICT, "there is a snapshot %s", key)
                                         : dir_remove_tree(snapshots, key, err);

    if (r < 0)
        return r;
    if (renameat2(snapshots, temp, snapshots, key, RENAME_NOREPLACE) < 0)
        return sp_error_errno(err, errno, "rename", "snapshot %s", key);
    if (fsync(snapshots) < 0)
        return sp_error_errno(err, errno, "fsync", "snapshots");
    return 0;
}
