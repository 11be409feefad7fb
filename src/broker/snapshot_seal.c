/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns what a stopped template boot left behind into a snapshot nobody can write to. The files move into a directory
 * named after snapshot and boot, so that an interrupted seal is taken up again and two boots never mix; there they get
 * their owner and mode, are hashed and synced; the manifest is written; then the directory gets the snapshot's name.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/snapshot.h"
#include "broker/snapshot_files.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

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
    if (strcmp(name, LAYOUT_DEVICES) == 0 && (st.st_size == 0 || st.st_size > SNAPSHOT_DEVICES_MAX))
        return sp_error_set(err, SP_E_CORRUPT, "the boot has left %s device state", st.st_size ? "too much" : "no");
    return 0;
}

static int seal_file(const struct snapshot_seal *seal, int dir, const char *name, json_t *files, struct sp_error *err) {
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    _cleanup_piece_digests_ struct piece_digests digests = {0};
    char hash[SHA256_HEX_SIZE];
    int r;

    if (fd < 0)
        return sp_error_errno(err, errno, "open", "%s of the boot", name);
    r = check_shape(fd, seal, name, err);
    if (r < 0)
        return r;
    r = snapshot_file_own(fd, name, err);
    if (r == 0 && fsync(fd) < 0)
        r = sp_error_errno(err, errno, "fsync", "%s", name);
    if (r == 0)
        r = piece_digests_fd(fd, &digests, err);
    if (r < 0)
        return r;
    piece_digests_hex(&digests, hash);
    if (strcmp(name, LAYOUT_DEVICES) != 0)
        r = snapshot_pieces_write(dir, name, &digests, NULL, err);
    return r < 0 ? r : snapshot_file_row(files, fd, name, hash, err);
}

static int write_manifest(const struct snapshot_seal *seal, int dir, json_t *files, struct sp_error *err) {
    const struct snapshot_manifest manifest = {.key = seal->key,
                                               .record = seal->record,
                                               .files = files,
                                               .node = seal->node_manifest};
    _cleanup_free_ char *text = snapshot_manifest_print(&manifest, err);

    return text ? file_replace(dir, LAYOUT_MANIFEST, text, strlen(text), 0444, err) : -(int)SP_E_INTERNAL;
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
    if (r == 0)
        r = fault_point("seal.publish", err);
    return r < 0 ? r : snapshot_publish(layout, temp, seal->key, err);
}
