/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at snapshots: manifest, sizes, hashes, removal. Sealing is snapshot_seal.c. */
#include "broker/snapshot.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/snapshot_files.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define TEMP_SUFFIX ".tmp"

const char *const snapshot_files[SNAPSHOT_FILES] = {LAYOUT_MEMORY, LAYOUT_DEVICES, LAYOUT_DISK};

void snapshot_temp_name(char dst[SNAPSHOT_TEMP_SIZE], const char *key, const char *vm_id) {
    (void)text_printf(dst, SNAPSHOT_TEMP_SIZE, "%s.%s" TEMP_SUFFIX, key, vm_id);
}

const char *snapshot_temp_vm(const char *name, char dst[ID_SIZE]) {
    const char *id = strchr(name, '.'), *end = id ? strchr(++id, '.') : NULL;
    size_t len = end ? (size_t)(end - id) : 0;

    if (!end || strcmp(end, TEMP_SUFFIX) != 0 || len >= ID_SIZE)
        return NULL;
    memcpy(dst, id, len);
    dst[len] = '\0';
    return request_id_is_valid(dst) ? dst : NULL;
}

int snapshot_open(const struct layout *layout, const char *key, int *ret_dir, struct sp_error *err) {
    _cleanup_close_ int dir = openat(layout->snapshots, key, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "open", "snapshot %s", key);
    if (dir < 0 || faccessat(dir, LAYOUT_MANIFEST, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return sp_error_field(err, SP_E_NOT_FOUND, "snapshot", "there is no snapshot %s", key);
    *ret_dir = TAKE_FD(dir);
    return 0;
}

bool snapshot_exists(const struct layout *layout, const char *key) {
    _cleanup_close_ int dir = -1;
    return snapshot_open(layout, key, &dir, NULL) == 0;
}

int snapshot_read_manifest(int dir, const char *key, json_t **ret, struct sp_error *err) {
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
        r = json_get_string(obj, "", "key", 1, BROKER_KEY_SIZE - 1, &named, err);
    if (r == 0 && strcmp(named, key) != 0)
        r = sp_error_set(err, SP_E_CORRUPT, "its manifest is that of %s", named);
    if (r == 0)
        *ret = TAKE_PTR(obj);
    return r;
}

int snapshot_manifest_content(const json_t *manifest, enum request_content *ret, struct sp_error *err) {
    const char *name;
    int r = json_get_opt_string(manifest, "", "content", 1, 16, request_content_names[CONTENT_FULL], &name, err);

    for (unsigned i = 0; r == 0 && request_content_names[i]; i++)
        if (strcmp(request_content_names[i], name) == 0) {
            *ret = (enum request_content)i;
            return 0;
        }
    return r < 0 ? r : sp_error_set(err, SP_E_CORRUPT, "the manifest has an unknown content");
}

static int manifest_of(const struct layout *layout, const char *key, json_t **ret, struct sp_error *err) {
    _cleanup_close_ int dir = -1;
    int r = snapshot_open(layout, key, &dir, err);
    return r < 0 ? r : snapshot_read_manifest(dir, key, ret, err);
}

int snapshot_content(const struct layout *layout, const char *key, enum request_content *ret, struct sp_error *err) {
    _cleanup_json_ json_t *manifest = NULL;
    int r = manifest_of(layout, key, &manifest, err);
    return r < 0 ? r : snapshot_manifest_content(manifest, ret, err);
}

bool snapshot_holds(enum request_content content, const char *name) {
    return content == CONTENT_FULL || strncmp(name, LAYOUT_DISK, strlen(LAYOUT_DISK)) == 0;
}

int snapshot_manifest_hash(const json_t *manifest, const char *name, char dst[SHA256_HEX_SIZE], struct sp_error *err) {
    json_t *files = NULL, *row = NULL;
    const char *hash;
    int r = json_get_opt_object(manifest, "", "files", &files, err);

    if (r == 0 && files)
        r = json_get_opt_object(files, "files", name, &row, err);
    if (r == 0 && !row)
        r = sp_error_set(err, SP_E_CORRUPT, "the manifest does not know %s", name);
    if (r == 0)
        r = json_get_string(row, name, "sha256_pieces", SHA256_HEX_SIZE - 1, SHA256_HEX_SIZE - 1, &hash, err);
    if (r == 0)
        (void)text_copy(dst, SHA256_HEX_SIZE, hash);
    return r;
}

static bool is_small(const char *name) {
    return strcmp(name, LAYOUT_DEVICES) == 0;
}

static int check_hash(int dir, int fd, const char *name, const char *want, struct sp_error *err) {
    _cleanup_piece_digests_ struct piece_digests digests = {0}, kept = {0};
    char have[SHA256_HEX_SIZE];
    int r = piece_digests_fd(fd, &digests, err);

    if (r < 0)
        return r;
    piece_digests_hex(&digests, have);
    if (strcmp(have, want) != 0)
        return sp_error_set(err, SP_E_CORRUPT, "%s has another hash than it was sealed with", name);
    return is_small(name) ? 0 : snapshot_pieces_read(dir, name, want, &kept, err);
}

static int check_file(int dir, const json_t *files, const char *name, bool hash, struct sp_error *err) {
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
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
    return hash ? check_hash(dir, fd, name, want, err) : 0;
}

static int check_content(int dir, const char *key, enum snapshot_depth depth, struct sp_error *err) {
    _cleanup_json_ json_t *manifest = NULL;
    enum request_content content = CONTENT_FULL;
    json_t *files = NULL;
    int r = snapshot_read_manifest(dir, key, &manifest, err);

    if (r == 0)
        r = snapshot_manifest_content(manifest, &content, err);
    if (r == 0)
        r = json_get_opt_object(manifest, "", "files", &files, err);
    if (r == 0 && !files)
        r = sp_error_set(err, SP_E_CORRUPT, "the manifest lists no files");
    for (size_t i = 0; i < SNAPSHOT_FILES && r == 0; i++)
        if (snapshot_holds(content, snapshot_files[i]))
            r = check_file(dir, files, snapshot_files[i], is_small(snapshot_files[i]) || depth == SNAPSHOT_FULL, err);
    return r;
}

int snapshot_check(const struct layout *layout, const char *key, enum snapshot_depth depth, struct sp_error *err) {
    _cleanup_close_ int dir = -1;
    struct sp_error why = {0};
    int r = snapshot_open(layout, key, &dir, err);

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
    _cleanup_json_ json_t *manifest = NULL;
    const char *digest;
    int r = manifest_of(layout, key, &manifest, err);

    if (r == 0)
        r = json_get_string(manifest, "", "template", SHA256_HEX_SIZE - 1, SHA256_HEX_SIZE - 1, &digest, err);
    if (r == 0)
        (void)text_copy(dst, SHA256_HEX_SIZE, digest);
    return r;
}

int snapshot_engine(const struct layout *layout, const char *key, char dst[SHA256_HEX_SIZE],
                    char version[RECORD_VERSION_SIZE], struct sp_error *err) {
    _cleanup_json_ json_t *manifest = NULL;
    const char *engine = "", *qemu_version = "";
    int r = manifest_of(layout, key, &manifest, err);

    if (r == 0)
        r = json_get_opt_string(manifest, "", "engine", SHA256_HEX_SIZE - 1, SHA256_HEX_SIZE - 1, "", &engine, err);
    if (r == 0)
        r = json_get_opt_string(manifest, "", "qemu_version", 1, RECORD_VERSION_SIZE - 1, "", &qemu_version, err);
    if (r == 0 && engine[0] && !request_hex_is_valid(engine, SHA256_HEX_SIZE - 1))
        r = sp_error_set(err, SP_E_CORRUPT, "it names an engine that is none");
    if (r < 0)
        return r;
    (void)text_copy(dst, SHA256_HEX_SIZE, engine);
    (void)text_copy(version, RECORD_VERSION_SIZE, qemu_version);
    return 0;
}

int snapshot_remove(const struct layout *layout, const char *key, struct sp_error *err) {
    _cleanup_close_ int dir = openat(layout->snapshots, key, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return errno == ENOENT ? 0 : sp_error_errno(err, errno, "open", "snapshot %s", key);
    if (unlinkat(dir, LAYOUT_MANIFEST, 0) < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "unlink", "manifest of snapshot %s", key);
    return dir_remove_tree(layout->snapshots, key, err);
}

int snapshot_remove_temps(const struct layout *layout, const char *id, struct sp_error *err) {
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    int r = 0, fd = openat(layout->snapshots, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)close_fd(fd);
        return sp_error_errno(err, errno, "opendir", "snapshots");
    }
    while (r == 0 && (entry = readdir(dir))) {
        const char *suffix = strrchr(entry->d_name, '.');
        char vm[ID_SIZE];
        bool temp = snapshot_temp_vm(entry->d_name, vm);

        if (id ? temp && strcmp(vm, id) == 0
               : suffix && strcmp(suffix, TEMP_SUFFIX) == 0 && !(temp && id_is_valid(vm, "tpb")))
            r = dir_remove_tree(layout->snapshots, entry->d_name, err);
    }
    return r;
}
