/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what the host's QEMU consists of: program, interpreter, libraries, modules and firmware, each opened and hashed. */
#include "base/cleanup.h"
#include "base/text.h"
#include "broker/engine.h"
#include "host/loader.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

struct source {
    struct engine *engine;
    char interpreter[LOADER_PATH_SIZE];
    char prefix[PATH_MAX]; /* what QEMU takes for /usr: the directory above that of its program */
    uid_t uid;
};

/* Takes fd over. What is there already came first in the loader's order. */
static int add_fd(struct engine *e, const char *path, int fd, bool executable, struct sp_error *err) {
    _cleanup_close_ int owned = fd;
    struct engine_file *file = &e->files[e->n];
    struct stat st;
    int r;

    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->files[i].path, path) == 0)
            return 0;
    if (e->n == ENGINE_FILES_MAX)
        return sp_error_set(err, SP_E_TOO_LARGE, "the VMM has more than %d files", ENGINE_FILES_MAX);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return sp_error_set(err, SP_E_INVALID, "%s is no file", path);
    *file = (struct engine_file){.size = (uint64_t)st.st_size, .executable = executable, .fd = -1};
    if (!text_copy(file->path, sizeof(file->path), path))
        return sp_error_set(err, SP_E_TOO_LARGE, "the path %.80s… is too long", path);
    r = sha256_fd_hex(fd, file->sha256, err);
    if (r < 0)
        return r;
    file->fd = TAKE_FD(owned);
    e->n++;
    return 0;
}

static int add(struct engine *e, const char *path, const char *host_path, bool executable, struct sp_error *err) {
    int fd = open(host_path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    return fd < 0 ? sp_error_errno(err, errno, "open", "%s", host_path) : add_fd(e, path, fd, executable, err);
}

static int add_library(void *ctx, const char *name, const char *path, struct sp_error *err) {
    const struct source *s = ctx;
    char target[ENGINE_PATH_SIZE];

    (void)text_printf(target, sizeof(target), "usr/lib/%s", name);
    return add(s->engine, target, path, false, err);
}

/* The program and everything it is linked with. */
static int add_program(struct source *s, const char *path, const char *name, struct sp_error *err) {
    struct engine *e = s->engine;
    int r;

    (void)text_printf(e->qemu, sizeof(e->qemu), "/usr/bin/%s", name);
    r = add(e, e->qemu + 1, path, true, err);
    if (r == 0)
        r = loader_interpreter(e->files[0].fd, s->interpreter, err);
    if (r < 0 || !s->interpreter[0])
        return r;
    /* Both directories are mounted into the VMM's root; nothing else is. */
    if (!text_starts_with(s->interpreter, "/lib64/") && !text_starts_with(s->interpreter, "/usr/"))
        return sp_error_set(err, SP_E_UNSUPPORTED, "its interpreter is %.80s", s->interpreter);
    r = add(e, s->interpreter + 1, s->interpreter, true, err);
    return r < 0 ? r : loader_list(s->interpreter, path, s->uid, add_library, s, err);
}

/* Files QEMU looks for beside its program, as its own build has them: some versions lack some. */
static int add_beside(struct source *s, const char *below, bool is_module, struct sp_error *err) {
    char path[PATH_MAX], target[ENGINE_PATH_SIZE];
    int r;

    if (!text_printf(path, sizeof(path), "%s/%s", s->prefix, below) || access(path, F_OK) < 0)
        return 0;
    (void)text_printf(target, sizeof(target), "usr/%s", below);
    r = add(s->engine, target, path, false, err);
    return r < 0 || !is_module || !s->interpreter[0] ? r
                                                     : loader_list(s->interpreter, path, s->uid, add_library, s, err);
}

static int add_data(struct source *s, struct sp_error *err) {
    static const char *const modules[] = {"lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so",
                                          "lib64/qemu/accel-tcg-x86_64.so", "lib/qemu/accel-tcg-x86_64.so"};
    static const char *const firmware[] = {"qboot.rom",         "bios-microvm.bin", "pvh.bin",
                                           "linuxboot_dma.bin", "linuxboot.bin",    "kvmvapic.bin"};
    char below[64];
    int r = 0;

    for (size_t i = 0; i < ARRAY_SIZE(modules) && r == 0; i++)
        r = add_beside(s, modules[i], true, err);
    for (size_t i = 0; i < ARRAY_SIZE(firmware) && r == 0; i++) {
        (void)text_printf(below, sizeof(below), "share/qemu/%s", firmware[i]);
        r = add_beside(s, below, false, err);
    }
    return r;
}

static int add_preload(struct engine *e, int preload, struct sp_error *err) {
    int fd = fcntl(preload, F_DUPFD_CLOEXEC, 0);
    return fd < 0 ? sp_error_errno(err, errno, "fcntl", "preload") : add_fd(e, ENGINE_PRELOAD, fd, true, err);
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const struct engine_file *)a)->path, ((const struct engine_file *)b)->path);
}

static int gather(struct source *s, const char *qemu, int preload, struct sp_error *err) {
    char program[PATH_MAX], *name;
    int r;

    if (!realpath(qemu, program)) /* as QEMU itself finds out where it is */
        return sp_error_errno(err, errno, "realpath", "%s", qemu);
    name = strrchr(program, '/') + 1;
    (void)text_printf(s->prefix, sizeof(s->prefix), "%.*s..", (int)(name - program), program);
    r = add_program(s, program, name, err);
    if (r == 0)
        r = add_data(s, err);
    return r < 0 ? r : add_preload(s->engine, preload, err);
}

int engine_source(struct engine *ret, const char *qemu, int preload, uid_t uid, struct sp_error *err) {
    struct engine e = {.files = calloc(ENGINE_FILES_MAX, sizeof(*e.files))};
    struct source s = {.engine = &e, .uid = uid};
    int r;

    if (!e.files)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    r = gather(&s, qemu, preload, err);
    if (r < 0) {
        engine_done(&e);
        return sp_error_wrap(err, "VMM %s", qemu);
    }
    qsort(e.files, e.n, sizeof(*e.files), by_path);
    engine_digest(&e, e.digest);
    *ret = e;
    return 0;
}
