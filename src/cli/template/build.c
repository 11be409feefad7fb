/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a template build, from the source to the sealed directory under its digest. */
#include "cli/template/build.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "cli/template/jail.h"
#include "cli/template/manifest.h"
#include "cli/template/oci.h"
#include "host/piece_hash.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#define BUILD_PREFIX ".build-"

static void report(const struct template_build *b, const char *step) {
    if (b->progress)
        b->progress(b->progress_user, step, 0, 0);
}

/* `.build-<pid>-…` of builds that are no longer running. */
static void remove_stale(const char *templates_dir) {
    _cleanup_closedir_ DIR *d = opendir(templates_dir);
    const struct dirent *e;
    while (d && (e = readdir(d))) {
        if (!text_starts_with(e->d_name, BUILD_PREFIX))
            continue;
        long pid = strtol(e->d_name + strlen(BUILD_PREFIX), NULL, 10);
        if (pid > 0 && (kill((pid_t)pid, 0) == 0 || errno != ESRCH))
            continue;
        struct sp_error ignored;
        (void)dir_remove_tree(dirfd(d), e->d_name, &ignored);
    }
}

static int prepare_paths(const struct template_build *b, struct build_paths *p, struct sp_error *err) {
    char templates[400];
    if (!text_printf(templates, sizeof templates, "%s/templates", b->store_dir) ||
        !text_printf(p->work, sizeof p->work, "%s/" BUILD_PREFIX "%d", templates, (int)getpid()) ||
        !text_printf(p->scratch, sizeof p->scratch, "%s/scratch.img", p->work) ||
        !text_printf(p->tree, sizeof p->tree, "%s/tree", p->work) ||
        !text_printf(p->image, sizeof p->image, "%s/disk.img", p->work))
        return sp_error_field(err, SP_E_INVALID, "state_dir", "is too long");
    int r = dir_ensure(AT_FDCWD, templates, 0755, 0, 0, err);
    if (r < 0)
        return sp_error_wrap(err, "the store is not there; run `space up` first");
    remove_stale(templates);
    if (mkdir(p->work, 0700) < 0)
        return sp_error_errno(err, errno, "mkdir", "%s", p->work);
    return 0;
}

/* The operator's file wins over what the image says; a directory or tar without one gets the defaults. */
static int choose_manifest(const struct template_build *b, const struct build_report *jailed, json_t **ret,
                           struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    size_t len;
    if (b->manifest_path) {
        int r = file_read(AT_FDCWD, b->manifest_path, TEMPLATE_MANIFEST_MAX, &text, &len, err);
        if (r == 0)
            r = template_manifest_parse(text, len, ret, err);
        return r < 0 ? sp_error_wrap(err, "%s", b->manifest_path) : 0;
    }
    if (b->kind == TEMPLATE_FROM_OCI)
        return oci_manifest(jailed->config, ret, err);
    *ret = template_manifest_default();
    return *ret ? 0 : sp_error_set(err, SP_E_INTERNAL, "out of memory");
}

static int make_disk(const struct template_build *b, const struct build_paths *p, struct build_report *jailed,
                     struct sp_error *err) {
    if (b->kind != TEMPLATE_FROM_DIR) {
        report(b, "unpack");
        return build_jail_run(b, p, jailed, err);
    }
    struct stat st;
    if (stat(b->source, &st) < 0)
        return sp_error_errno(err, errno, "open", "%s", b->source);
    if (!S_ISDIR(st.st_mode))
        return sp_error_field(err, SP_E_INVALID, "--from-dir", "%s is not a directory", b->source);
    report(b, "image");
    return build_make_image(b->source, p->image, b->disk_mib, err);
}

/* Moves the finished directory under its digest; another build of the same content may have been faster. */
static int seal(const struct template_build *b, const struct build_paths *p, struct template_result *res,
                const char *text, struct sp_error *err) {
    char ready[600], final[600];
    if (!text_printf(ready, sizeof ready, "%s/ready", p->work) ||
        !text_printf(final, sizeof final, "%s/templates/%s", b->store_dir, res->digest))
        return sp_error_set(err, SP_E_INVALID, "path too long");
    _cleanup_close_ int work = open(p->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (work < 0 || mkdir(ready, 0755) < 0 || renameat(work, "disk.img", work, "ready/disk.img") < 0)
        return sp_error_errno(err, errno, "move", "%s", p->image);
    int r = file_replace(work, "ready/manifest.json", text, strlen(text), 0444, err);
    if (r < 0)
        return r;
    if (rename(ready, final) == 0)
        return 0;
    if (errno != EEXIST && errno != ENOTEMPTY)
        return sp_error_errno(err, errno, "rename", "%s", final);
    res->existed = true;
    return 0;
}

static int build_into(const struct template_build *b, const struct build_paths *p, struct template_result *res,
                      struct sp_error *err) {
    _cleanup_free_ struct build_report *jailed = calloc(1, sizeof *jailed);
    _cleanup_json_ json_t *manifest = NULL;
    _cleanup_free_ char *text = NULL;
    char disk_hash[SHA256_HEX_SIZE];
    if (!jailed)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    int r = make_disk(b, p, jailed, err);
    if (r < 0 || (r = choose_manifest(b, jailed, &manifest, err)) < 0)
        return r;
    report(b, "hash");
    _cleanup_close_ int disk = open(p->image, O_RDONLY | O_CLOEXEC);
    if (disk < 0 || fchmod(disk, 0444) < 0 || fsync(disk) < 0)
        return sp_error_errno(err, errno, "fsync", "%s", p->image);
    if ((r = piece_hash_fd(disk, disk_hash, err)) < 0)
        return r;
    res->disk_bytes = b->disk_mib << 20;
    res->skipped = jailed->counts.skipped;
    if ((r = template_manifest_seal(manifest, res->disk_bytes, disk_hash, &text, res->digest, err)) < 0 ||
        (r = seal(b, p, res, text, err)) < 0)
        return r;
    res->manifest = TAKE_PTR(manifest);
    return 0;
}

int template_build_run(const struct template_build *b, struct template_result *ret, struct sp_error *err) {
    struct build_paths *p = calloc(1, sizeof *p);
    struct template_result res = {0};
    struct sp_error ignored;
    if (!p)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    int r = 0;
    if (geteuid() != 0)
        r = sp_error_set(err, SP_E_FORBIDDEN, "building a template needs root (it keeps the owners of files)");
    else if (b->disk_mib < TEMPLATE_DISK_MIB_MIN || b->disk_mib > TEMPLATE_DISK_MIB_MAX)
        r = sp_error_field(err, SP_E_INVALID, "--disk-mib", "must be %d to %d", TEMPLATE_DISK_MIB_MIN,
                           TEMPLATE_DISK_MIB_MAX);
    if (r == 0 && (r = prepare_paths(b, p, err)) == 0) {
        r = build_into(b, p, &res, err);
        (void)dir_remove_tree(AT_FDCWD, p->work, &ignored);
    }
    if (r == 0)
        *ret = res;
    else
        template_result_done(&res);
    free(p);
    return r;
}

void template_result_done(struct template_result *r) {
    json_decref(r->manifest);
    r->manifest = NULL;
}
