/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns what a stopped template boot left behind into a snapshot nobody can write to. The files move into a directory
 * named after snapshot and boot, so that an interrupted seal is taken up again and two boots never mix; there they get
 * their owner and mode, are hashed and synced; the manifest is written; then the directory gets the snapshot's name.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/snapshot.h"
#include "broker/snapshot_files.h"
#include "host/piece_hash.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define DEVICES_MAX (64ll * 1024 * 1024)

/* From the boot's directory, or already moved by an earlier attempt. */
static int move_file(int boot_dir, int temp_dir, const char *name, struct sp_error *err) {
    if (boot_dir >= 0 && renameat(boot_dir, name, temp_dir, name) == 0)
        return 0;
    if (boot_dir >= 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "rename", "%s of the boot", name);
    if (faccessat(temp_dir, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return sp_error_set(err, SP_E_CONFLICT, "the boot has left no %s", name);
    return 0;
}

static int check_shape(int fd, const struct snapshot_seal *seal, const char *name, struct sp_error *err) {
    const off_t memory = (off_t)seal->record->memory_mib * 1024 * 1024;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "fstat", "%s", name);
    if (!S_ISREG(st.st_mode) || st.st_nlink != 1)
        return sp_error_set(err, SP_E_CORRUPT, "%s of the boot is no file of its own", name);
    if (strcmp(name, LAYOUT_MEMORY) == 0 && st.st_size != memory)
        return sp_error_set(err, SP_E_CORRUPT, "memory of the boot has a wrong size");
    if (strcmp(name, LAYOUT_DEVICES) == 0 && (st.st_size == 0 || st.st_size > DEVICES_MAX))
        return sp_error_set(err, SP_E_CORRUPT, "the boot has left %s device state", st.st_size ? "too much" : "no");
    return 0;
}

static int seal_file(const struct snapshot_seal *seal, int dir, const char *name, json_t *files, struct sp_error *err) {
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    char hash[SHA256_HEX_SIZE];
    struct stat st;
    json_t *row;
    int r;

    if (fd < 0)
        return sp_error_errno(err, errno, "open", "%s of the boot", name);
    r = check_shape(fd, seal, name, err);
    if (r < 0)
        return r;
    if (fchown(fd, 0, 0) < 0 || fchmod(fd, 0444) < 0)
        return sp_error_errno(err, errno, "chown", "%s", name);
    /* The kernel grants a read lease only while nobody has the file open for writing: no descriptor is left anywhere. */
    if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
        return errno == EAGAIN ? sp_error_set(err, SP_E_CONFLICT, "%s is still open for writing", name)
                               : sp_error_errno(err, errno, "F_SETLEASE", "%s", name);
    (void)fcntl(fd, F_SETLEASE, F_UNLCK);
    if (fsync(fd) < 0)
        return sp_error_errno(err, errno, "fsync", "%s", name);
    r = piece_hash_fd(fd, hash, err);
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "fstat", "%s", name);
    row = json_pack("{s:I, s:s}", "size", (json_int_t)st.st_size, "sha256_pieces", hash);
    if (!row || json_object_set_new(files, name, row) < 0)
        return sp_error_set(err, SP_E_INTERNAL, "cannot encode the manifest");
    return 0;
}

static int write_manifest(const struct snapshot_seal *seal, int dir, json_t *files, struct sp_error *err) {
    const struct vm_record *rec = seal->record;
    _cleanup_json_ json_t *manifest =
        json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:O}", "format", SNAPSHOT_FORMAT, "key", seal->key, "template",
                  rec->template, "kernel", request_kernel_names[rec->kernel], "vcpus", (json_int_t)rec->vcpus,
                  "memory_mib", (json_int_t)rec->memory_mib, "created_realtime_ns", (json_int_t)clock_realtime_ns(),
                  "files", files);
    _cleanup_free_ char *text = NULL;
    json_t *node = json_deep_copy(seal->node_manifest);

    if (!manifest || !node || json_object_set_new(manifest, "node", node) < 0)
        return sp_error_set(err, SP_E_INTERNAL, "cannot encode the manifest");
    text = json_print(manifest);
    return file_replace(dir, LAYOUT_MANIFEST, text, strlen(text), 0444, err);
}

static int seal_in(const struct snapshot_seal *seal, int boot_dir, int temp_dir, struct sp_error *err) {
    _cleanup_json_ json_t *files = json_object();
    int r = 0;

    for (size_t i = 0; i < SNAPSHOT_FILES && r == 0; i++) {
        r = move_file(boot_dir, temp_dir, snapshot_files[i], err);
        if (r == 0)
            r = fault_point("seal.move", err);
    }
    for (size_t i = 0; i < SNAPSHOT_FILES && r == 0; i++)
        r = seal_file(seal, temp_dir, snapshot_files[i], files, err);
    if (r == 0)
        r = fault_point("seal.manifest", err);
    return r < 0 ? r : write_manifest(seal, temp_dir, files, err);
}

/* A directory without manifest under the snapshot's name is what a cut-off removal left. */
static int publish(const struct snapshot_seal *seal, const char *temp, struct sp_error *err) {
    int snapshots = seal->layout->snapshots;
    int r = fault_point("seal.publish", err);

    if (r == 0)
        r = dir_remove_tree(snapshots, seal->key, err);
    if (r < 0)
        return r;
    if (renameat(snapshots, temp, snapshots, seal->key) < 0)
        return sp_error_errno(err, errno, "rename", "snapshot %s", seal->key);
    if (fsync(snapshots) < 0)
        return sp_error_errno(err, errno, "fsync", "snapshots");
    return 0;
}

int snapshot_seal(const struct snapshot_seal *seal, struct sp_error *err) {
    const struct layout *layout = seal->layout;
    _cleanup_close_ int boot_dir = -1, temp_dir = -1;
    char temp[SNAPSHOT_TEMP_SIZE];
    int r;

    if (snapshot_exists(layout, seal->key))
        return 0;
    snapshot_temp_name(temp, seal->key, seal->record->id);
    boot_dir = openat(layout->sandboxes, seal->record->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (boot_dir < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "open", "directory of %s", seal->record->id);
    r = dir_ensure(layout->snapshots, temp, 0711, (uid_t)-1, (gid_t)-1, err);
    if (r < 0)
        return r;
    temp_dir = openat(layout->snapshots, temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (temp_dir < 0)
        return sp_error_errno(err, errno, "open", "%s", temp);
    r = seal_in(seal, boot_dir, temp_dir, err);
    return r < 0 ? r : publish(seal, temp, err);
}
