/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at snapshots: manifest, sizes, hashes, removal. Sealing is snapshot_seal.c. */
#include "broker/snapshot.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/snapshot_files.h"
#include "host/piece_hash.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define TEMP_SUFFIX ".tmp"

const char *const snapshot_files[SNAPSHOT_FILES] = {LAYOUT_MEMORY, LAYOUT_DEVICES, LAYOUT_DISK};

void snapshot_temp_name(char dst[SNAPSHOT_TEMP_SIZE], const char *key, const char *boot_id) {
    (void)text_printf(dst, SNAPSHOT_TEMP_SIZE, "%s.%s" TEMP_SUFFIX, key, boot_id);
}

const char *snapshot_temp_boot(const char *name, char dst[ID_SIZE]) {
    const char *id = strchr(name, '.'), *end = id ? strchr(++id, '.') : NULL;
    size_t len = end ? (size_t)(end - id) : 0;

    if (!end || strcmp(end, TEMP_SUFFIX) != 0 || len >= ID_SIZE)
        return NULL;
    memcpy(dst, id, len);
    dst[len] = '\0';
    return request_id_is_valid(dst) ? dst : NULL;
}

static int open_snapshot(const struct layout *layout, const char *key, int *ret_dir, struct sp_error *err) {
    _cleanup_close_ int dir = openat(layout->snapshots, key, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "open", "snapshot %s", key);
    if (dir < 0 || faccessat(dir, LAYOUT_MANIFEST, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "there is no snapshot %s", key);
    *ret_dir = TAKE_FD(dir);
    return 0;
}

bool snapshot_exists(const struct layout *layout, const char *key) {
    _cleanup_close_ int dir = -1;
    return open_snapshot(layout, key, &dir, NULL) == 0;
}

static int read_manifest(int dir, const char *key, json_t **ret, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    _cleanup_json_ json_t *obj = NULL;
    const char *named;
    uint64_t format;
    size_t len;
    int r = file_read(dir, LAYOUT_MANIFEST, SNAPSHOT_MANIFEST_MAX, &text, &len, err);

    if (r == 0)
        r = json_parse(text, len, SNAPSHOT_MANIFEST_MAX, &obj, err);
    if (r == 0)
        r = json_get_u64(obj, "", "format", SNAPSHOT_FORMAT, SNAPSHOT_FORMAT, &format, err);
    if (r == 0)
        r = json_get_string(obj, "", "key", BROKER_KEY_SIZE - 1, BROKER_KEY_SIZE - 1, &named, err);
    if (r == 0 && strcmp(named, key) != 0)
        r = sp_error_set(err, SP_E_CORRUPT, "its manifest is that of %s", named);
    if (r == 0)
        *ret = TAKE_PTR(obj);
    return r;
}

static int check_file(int dir, const json_t *files, const char *name, bool hash, struct sp_error *err) {
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    char have[SHA256_HEX_SIZE];
    const char *want = "";
    json_t *row = NULL;
    struct stat st;
    uint64_t size;
    int r;

    if (fd < 0 || fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "open", "%s", name);
    r = json_get_opt_object(files, "files", name, &row, err);
    if (r < 0 || !row)
        return r < 0 ? r : sp_error_set(err, SP_E_CORRUPT, "the manifest does not know %s", name);
    r = json_get_u64(row, name, "size", 0, INT64_MAX, &size, err);
    if (r == 0)
        r = json_get_string(row, name, "sha256_pieces", SHA256_HEX_SIZE - 1, SHA256_HEX_SIZE - 1, &want, err);
    if (r < 0)
        return r;
    if (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & 0222) || (uint64_t)st.st_size != size)
        return sp_error_set(err, SP_E_CORRUPT, "%s has another size, owner or mode than it was sealed with", name);
    if (!hash)
        return 0;
    r = piece_hash_fd(fd, have, err);
    if (r == 0 && strcmp(have, want) != 0)
        r = sp_error_set(err, SP_E_CORRUPT, "%s has another hash than it was sealed with", name);
    return r;
}

static int check_content(int dir, const char *key, enum snapshot_depth depth, struct sp_error *err) {
    _cleanup_json_ json_t *manifest = NULL;
    json_t *files = NULL;
    int r = read_manifest(dir, key, &manifest, err);

    if (r == 0)
        r = json_get_opt_object(manifest, "", "files", &files, err);
    if (r == 0 && !files)
        r = sp_error_set(err, SP_E_CORRUPT, "the manifest lists no files");
    for (size_t i = 0; i < SNAPSHOT_FILES && r == 0; i++) {
        bool small = strcmp(snapshot_files[i], LAYOUT_DEVICES) == 0;
        r = check_file(dir, files, snapshot_files[i], small || depth == SNAPSHOT_FULL, err);
    }
    return r;
}

int snapshot_check(const struct layout *layout, const char *key, enum snapshot_depth depth, struct sp_error *err) {
    _cleanup_close_ int dir = -1;
    struct sp_error why = {0};
    int r = open_snapshot(layout, key, &dir, err);

    if (r < 0)
        return r;
    r = check_content(dir, key, depth, &why);
    if (r == 0)
        return 0;
    /* The host's refusal is not the snapshot's fault; everything else is. */
    if (why.code == SP_E_IO && why.err_no != 0) {
        if (err)
            *err = why;
        return r;
    }
    return sp_error_set(err, SP_E_CORRUPT, "snapshot %s is broken: %s", key, why.text);
}

int snapshot_template(const struct layout *layout, const char *key, char dst[SHA256_HEX_SIZE], struct sp_error *err) {
    _cleanup_close_ int dir = -1;
    _cleanup_json_ json_t *manifest = NULL;
    const char *digest;
    int r = open_snapshot(layout, key, &dir, err);

    if (r == 0)
        r = read_manifest(dir, key, &manifest, err);
    if (r == 0)
        r = json_get_string(manifest, "", "template", SHA256_HEX_SIZE - 1, SHA256_HEX_SIZE - 1, &digest, err);
    if (r == 0)
        (void)text_copy(dst, SHA256_HEX_SIZE, digest);
    return r;
}

int snapshot_remove(const struct layout *layout, const char *key, struct sp_error *err) {
    _cleanup_close_ int dir = openat(layout->snapshots, key, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return errno == ENOENT ? 0 : sp_error_errno(err, errno, "open", "snapshot %s", key);
    if (unlinkat(dir, LAYOUT_MANIFEST, 0) < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "unlink", "manifest of snapshot %s", key);
    return dir_remove_tree(layout->snapshots, key, err);
}
