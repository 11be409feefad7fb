/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies the host's engine into the store: into a directory of another name, where every file is copied, compared with its hash
 * and written out; then the manifest, then the name. Jobs that want the same one wait for the first.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/engine.h"
#include "broker/fault.h"
#include "host/reflink.h"
#include "vmm/driver.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#define PROBE_MS 10000
#define DIR_MODE 0755

struct making {
    const struct layout *layout;
    const struct engine *source;
    char temp[SHA256_HEX_SIZE + 16], version[ENGINE_VERSION_SIZE];
    int dir;
};

/* --- files --------------------------------------------------------------------------------------------------------- */

/* Every directory above the file. */
static int make_parents(int dir, const char *path, struct sp_error *err) {
    char parent[ENGINE_PATH_SIZE];

    (void)text_copy(parent, sizeof(parent), path);
    for (char *slash = strchr(parent, '/'); slash; slash = strchr(slash + 1, '/')) {
        int r;
        *slash = '\0';
        r = dir_ensure(dir, parent, DIR_MODE, (uid_t)-1, (gid_t)-1, err);
        if (r < 0)
            return r;
        *slash = '/';
    }
    return 0;
}

static int copy_bytes(int from, int to, const struct engine_file *file, struct sp_error *err) {
    off_t at = 0;

    while ((uint64_t)at < file->size) {
        ssize_t n = sendfile(to, from, &at, file->size - (uint64_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return sp_error_errno(err, n < 0 ? errno : EIO, "sendfile", "%s", file->path);
    }
    return 0;
}

/* The same file of another bundle: libraries change less often than QEMU does. */
static int open_twin(const struct making *m, const struct engine_file *file) {
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int twin = -1, fd = openat(m->layout->engines, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        (void)close_fd(fd);
    while (dir && twin < 0 && (entry = readdir(dir))) {
        char path[SHA256_HEX_SIZE + ENGINE_PATH_SIZE], have[SHA256_HEX_SIZE];
        struct stat st;
        if (!engine_digest_is_valid(entry->d_name) ||
            !text_printf(path, sizeof(path), "%s/%s", entry->d_name, file->path))
            continue;
        twin = openat(m->layout->engines, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (twin >= 0 && (fstat(twin, &st) < 0 || (uint64_t)st.st_size != file->size ||
                          sha256_fd_hex(twin, have, NULL) < 0 || strcmp(have, file->sha256) != 0))
            twin = close_fd(twin);
    }
    return twin;
}

static int fill(const struct making *m, const struct engine_file *file, int to, struct sp_error *err) {
    _cleanup_close_ int twin = open_twin(m, file);

    if (twin >= 0 && reflink_clone(to, twin, file->path, NULL) == 0)
        return 0;
    return reflink_clone(to, file->fd, file->path, NULL) == 0 ? 0 : copy_bytes(file->fd, to, file, err);
}

static int copy_file(const struct making *m, const struct engine_file *file, struct sp_error *err) {
    _cleanup_close_ int to = -1;
    char have[SHA256_HEX_SIZE];
    int r = make_parents(m->dir, file->path, err);

    if (r < 0)
        return r;
    to = openat(m->dir, file->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        return sp_error_errno(err, errno, "create", "%s", file->path);
    r = fill(m, file, to, err);
    if (r == 0)
        r = sha256_fd_hex(to, have, err);
    if (r == 0 && strcmp(have, file->sha256) != 0)
        r = sp_error_set(err, SP_E_CONFLICT,
                         "%s was changed on this host since the broker was started; it has to be started anew",
                         file->path);
    if (r == 0 && fchmod(to, file->executable ? 0555 : 0444) < 0)
        r = sp_error_errno(err, errno, "chmod", "%s", file->path);
    return r;
}

/* --- steps --------------------------------------------------------------------------------------------------------- */

static int begin(struct making *m, struct sp_error *err) {
    int engines = m->layout->engines, r;

    (void)text_printf(m->temp, sizeof(m->temp), "%s" ENGINE_TEMP_SUFFIX, m->source->digest);
    r = dir_remove_tree(engines, m->temp, err);
    if (r == 0)
        r = dir_ensure(engines, m->temp, DIR_MODE, (uid_t)-1, (gid_t)-1, err);
    if (r < 0)
        return r;
    m->dir = openat(engines, m->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return m->dir < 0 ? sp_error_errno(err, errno, "open", "%s", m->temp) : 0;
}

static int copy_files(struct making *m, struct sp_error *err) {
    int r = 0;

    for (size_t i = 0; i < m->source->n && r == 0; i++)
        r = copy_file(m, &m->source->files[i], err);
    return r;
}

/* The program that was opened when the broker was started, whatever has that name now. */
static int ask_version(struct making *m, struct sp_error *err) {
    struct vmm_probe probe = {0};
    char path[64];
    int r = -1;

    for (size_t i = 0; i < m->source->n; i++)
        if (strcmp(m->source->files[i].path, m->source->qemu + 1) == 0) {
            (void)text_printf(path, sizeof(path), "/proc/self/fd/%d", m->source->files[i].fd);
            r = qemu_driver.probe(path, deadline_in_ms(PROBE_MS), &probe, err);
        }
    if (r == 0 && !text_copy(m->version, sizeof(m->version), probe.version))
        r = sp_error_set(err, SP_E_UNSUPPORTED, "QEMU's version is too long");
    return r;
}

/* Once for all of the files; what else of the store is dirty goes with them. */
static int write_out(struct making *m, struct sp_error *err) {
    return syncfs(m->dir) < 0 ? sp_error_errno(err, errno, "syncfs", "%s", m->temp) : 0;
}

static int write_manifest(struct making *m, struct sp_error *err) {
    _cleanup_json_ json_t *files = json_object(),
                          *obj = json_pack("{s:i, s:s, s:s, s:s, s:O}", "format", 1, "engine", m->source->digest,
                                           "qemu", m->source->qemu, "qemu_version", m->version, "files", files);
    _cleanup_free_ char *text = NULL;

    for (size_t i = 0; i < m->source->n; i++) {
        const struct engine_file *file = &m->source->files[i];
        (void)json_object_set_new(files, file->path,
                                  json_pack("{s:I, s:s, s:b}", "size", (json_int_t)file->size, "sha256", file->sha256,
                                            "executable", file->executable));
    }
    if (!obj || json_object_size(files) != m->source->n)
        return sp_error_set(err, SP_E_INTERNAL, "cannot encode the manifest");
    text = json_print(obj);
    return file_replace(m->dir, LAYOUT_MANIFEST, text, strlen(text), 0444, err);
}

static int publish(struct making *m, struct sp_error *err) {
    int engines = m->layout->engines;

    if (renameat2(engines, m->temp, engines, m->source->digest, RENAME_NOREPLACE) < 0)
        return sp_error_errno(err, errno, "rename", "engine %s", m->source->digest);
    return fsync(engines) < 0 ? sp_error_errno(err, errno, "fsync", "engines") : 0;
}

static const struct step {
    const char *fault; /* the point before it */
    int (*run)(struct making *m, struct sp_error *err);
} steps[] = {
    {"engine.begin", begin},    {"engine.copy", copy_files},         {"engine.version", ask_version},
    {"engine.sync", write_out}, {"engine.manifest", write_manifest}, {"engine.publish", publish},
};

static int make(const struct layout *layout, const struct engine *source, struct sp_error *err) {
    struct making m = {.layout = layout, .source = source, .dir = -1};
    int r = engine_remove(layout, source->digest, err); /* broken, or half removed */

    for (size_t i = 0; i < ARRAY_SIZE(steps) && r == 0; i++) {
        r = fault_point(steps[i].fault, err);
        if (r == 0)
            r = steps[i].run(&m, err);
    }
    m.dir = close_fd(m.dir);
    if (r < 0) {
        (void)dir_remove_tree(layout->engines, m.temp, NULL);
        return sp_error_wrap(err, "engine %.12s", source->digest);
    }
    log_event(LOG_L_INFO, "engine_made", "engine", source->digest, "qemu_version", m.version, NULL);
    return 0;
}

/* *ret: whether it is there and whole. What the host refuses is an error. */
static int look(const struct layout *layout, const struct engine *source, bool *ret, struct sp_error *err) {
    _cleanup_engine_ struct engine e = {0};
    _cleanup_close_ int dir = -1;
    struct sp_error why = {0};
    int r = engine_open(layout, source->digest, "", &e, &dir, &why);

    if (r == 0)
        r = engine_check(&e, dir, true, &why);
    *ret = r == 0;
    if (r == 0 || why.code == SP_E_NOT_FOUND)
        return 0;
    if (why.code != SP_E_CORRUPT) {
        if (err)
            *err = why;
        return r;
    }
    log_error(LOG_L_WARN, "engine_broken", &why, "engine", source->digest, NULL);
    return 0;
}

int engine_ensure(const struct layout *layout, const struct engine *source, struct sp_error *err) {
    _cleanup_close_ int lock = -1;
    bool good = false;
    int r = look(layout, source, &good, err);

    if (r < 0 || good)
        return r;
    /* A description of its own: the broker's is shared by all of its jobs, and so would be the lock. */
    lock = openat(layout->engines, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX) < 0)
        return sp_error_errno(err, errno, "flock", "engines");
    r = look(layout, source, &good, err); /* somebody may have made it meanwhile */
    return r < 0 || good ? r : make(layout, source, err);
}
