/* SPDX-License-Identifier: Apache-2.0 */
/* Bundles that are in the store: their manifest, checking, removal. */
#include "broker/engine.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/request.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define MANIFEST_MAX 131072
#define FORMAT 1

void engine_done(struct engine *engine) {
    for (size_t i = 0; i < engine->n; i++)
        (void)close_fd(engine->files[i].fd);
    free(engine->files);
    *engine = (struct engine){0};
}

bool engine_digest_is_valid(const char *text) {
    return request_hex_is_valid(text, SHA256_HEX_SIZE - 1);
}

void engine_digest(const struct engine *engine, char dst[SHA256_HEX_SIZE]) {
    _cleanup_buf_ struct buf text = {0};

    buf_init(&text, ENGINE_FILES_MAX * sizeof(struct engine_file));
    for (size_t i = 0; i < engine->n; i++)
        (void)buf_printf(&text, "%s  %s\n", engine->files[i].sha256, engine->files[i].path);
    sha256_memory_hex(text.data, text.len, dst);
}

/* --- manifest ------------------------------------------------------------------------------------------------------ */

/* Relative, and nothing in it that leads elsewhere. */
static bool path_is_plain(const char *path) {
    return path[0] != '/' && !strstr(path, "..") && !strstr(path, "//");
}

static int read_file_row(const char *path, const json_t *row, struct engine_file *file, struct sp_error *err) {
    const char *hash;
    int r = json_get_u64(row, path, "size", 0, INT64_MAX, &file->size, err);

    file->fd = -1;
    if (r == 0)
        r = json_get_string(row, path, "sha256", SHA256_HEX_SIZE - 1, SHA256_HEX_SIZE - 1, &hash, err);
    if (r == 0)
        r = json_get_opt_bool(row, path, "executable", false, &file->executable, err);
    if (r == 0 && (!path_is_plain(path) || !text_copy(file->path, sizeof(file->path), path)))
        r = sp_error_set(err, SP_E_CORRUPT, "a file's path is none");
    if (r == 0)
        (void)text_copy(file->sha256, sizeof(file->sha256), hash);
    return r;
}

static int read_files(const json_t *obj, struct engine *e, struct sp_error *err) {
    json_t *files = NULL, *row;
    const char *path;
    int r = json_get_opt_object(obj, "", "files", &files, err);

    if (r < 0)
        return r;
    if (!files || json_object_size(files) > ENGINE_FILES_MAX)
        return sp_error_set(err, SP_E_CORRUPT, "its manifest lists no files");
    e->files = calloc(ENGINE_FILES_MAX, sizeof(*e->files));
    if (!e->files)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    json_object_foreach (files, path, row) { /* in the order in which they were written */
        r = read_file_row(path, row, &e->files[e->n], err);
        if (r < 0)
            return r;
        e->n++;
    }
    return 0;
}

static int read_manifest(int dir, const char *digest, struct engine *e, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    _cleanup_json_ json_t *obj = NULL;
    const char *qemu = "", *version = "";
    uint64_t format;
    size_t len;
    int r = file_read(dir, LAYOUT_MANIFEST, MANIFEST_MAX, &text, &len, err);

    if (r == 0)
        r = json_parse(text, len, MANIFEST_MAX, &obj, err);
    if (r == 0)
        r = json_get_u64(obj, "", "format", FORMAT, FORMAT, &format, err);
    if (r == 0)
        r = json_get_string(obj, "", "qemu", 2, sizeof(e->qemu) - 1, &qemu, err);
    if (r == 0)
        r = json_get_string(obj, "", "qemu_version", 1, sizeof(e->version) - 1, &version, err);
    if (r == 0)
        r = read_files(obj, e, err);
    if (r < 0)
        return r;
    (void)text_copy(e->qemu, sizeof(e->qemu), qemu);
    (void)text_copy(e->version, sizeof(e->version), version);
    engine_digest(e, e->digest);
    return strcmp(e->digest, digest) == 0 ? 0
                                          : sp_error_set(err, SP_E_CORRUPT, "its manifest is that of another engine");
}

static int missing(const char *digest, const char *version, struct sp_error *err) {
    return sp_error_field(err, SP_E_NOT_FOUND, ENGINE_MISSING, "the engine %s%s%s is not in the store", digest,
                          version[0] ? " of QEMU " : "", version);
}

/* The host's refusal is not the bundle's fault; everything else is. */
static int broken(const char *digest, const char *version, const struct sp_error *why, struct sp_error *err) {
    if (why->code == SP_E_IO || why->code == SP_E_NO_SPACE) {
        if (err)
            *err = *why;
        return -(int)why->code;
    }
    return sp_error_field(err, SP_E_CORRUPT, ENGINE_BROKEN, "the engine %s%s%s is broken: %.100s", digest,
                          version[0] ? " of QEMU " : "", version, why->text);
}

int engine_find(const struct layout *layout, const char *digest, const char *version, int *ret_dir,
                struct sp_error *err) {
    _cleanup_close_ int dir = openat(layout->engines, digest, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (dir < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "open", "engine %s", digest);
    if (dir < 0 || faccessat(dir, LAYOUT_MANIFEST, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return missing(digest, version, err);
    *ret_dir = TAKE_FD(dir);
    return 0;
}

int engine_open(const struct layout *layout, const char *digest, const char *version, struct engine *ret, int *ret_dir,
                struct sp_error *err) {
    _cleanup_engine_ struct engine e = {0};
    _cleanup_close_ int dir = -1;
    struct sp_error why = {0};
    int r = engine_find(layout, digest, version, &dir, err);

    if (r < 0)
        return r;
    if (read_manifest(dir, digest, &e, &why) < 0)
        return broken(digest, version, &why, err);
    *ret = e;
    *ret_dir = TAKE_FD(dir);
    e = (struct engine){0};
    return 0;
}

/* --- checking ------------------------------------------------------------------------------------------------------ */

static int check_file(const struct engine_file *file, int dir, bool hash, struct sp_error *err) {
    _cleanup_close_ int fd = -1;
    char have[SHA256_HEX_SIZE];
    struct stat st;
    int r;

    if (fstatat(dir, file->path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? sp_error_set(err, SP_E_CORRUPT, "%s is missing", file->path)
                               : sp_error_errno(err, errno, "stat", "%s", file->path);
    if (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & 0222) || (uint64_t)st.st_size != file->size)
        return sp_error_set(err, SP_E_CORRUPT, "%s has another size, owner or mode", file->path);
    if (!hash)
        return 0;
    fd = openat(dir, file->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return sp_error_errno(err, errno, "open", "%s", file->path);
    r = sha256_fd_hex(fd, have, err);
    if (r == 0 && strcmp(have, file->sha256) != 0)
        r = sp_error_set(err, SP_E_CORRUPT, "%s has another hash", file->path);
    return r;
}

int engine_check(const struct engine *engine, int dir, bool hash, struct sp_error *err) {
    struct sp_error why = {0};
    int r = 0;

    for (size_t i = 0; i < engine->n && r == 0; i++)
        r = check_file(&engine->files[i], dir, hash, &why);
    return r < 0 ? broken(engine->digest, engine->version, &why, err) : 0;
}

/* --- removal ------------------------------------------------------------------------------------------------------- */

int engine_remove(const struct layout *layout, const char *digest, struct sp_error *err) {
    char manifest[SHA256_HEX_SIZE + 32];
    int r;

    (void)text_printf(manifest, sizeof(manifest), "%s/" LAYOUT_MANIFEST, digest);
    if (unlinkat(layout->engines, manifest, 0) < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "unlink", "manifest of engine %s", digest);
    r = fault_point("engine.remove", err);
    return r < 0 ? r : dir_remove_tree(layout->engines, digest, err);
}

static bool is_leftover(const struct layout *layout, const char *name) {
    char manifest[SHA256_HEX_SIZE + 32];
    const char *dot = strchr(name, '.');

    if (dot && strcmp(dot, ENGINE_TEMP_SUFFIX) == 0)
        return true;
    return engine_digest_is_valid(name) && text_printf(manifest, sizeof(manifest), "%s/" LAYOUT_MANIFEST, name) &&
           faccessat(layout->engines, manifest, F_OK, AT_SYMLINK_NOFOLLOW) < 0;
}

int engine_remove_temps(const struct layout *layout, struct sp_error *err) {
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int r = 0, fd = openat(layout->engines, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)close_fd(fd);
        return sp_error_errno(err, errno, "opendir", "engines");
    }
    while (r == 0 && (entry = readdir(dir)))
        if (is_leftover(layout, entry->d_name))
            r = dir_remove_tree(layout->engines, entry->d_name, err);
    return r;
}
