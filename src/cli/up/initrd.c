/* SPDX-License-Identifier: Apache-2.0 */
/* Makes initrd.cpio beside each kernel. */
#include "cli/up/initrd.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "wire/cpio.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define INITRD_MAX (64u << 20)
#define MODULES_MAX 64

static const struct { const char *profile, *kernel; } profiles[] = {{"lean", "vmlinux"}, {"stock", "vmlinuz"}};

static int append(void *arg, const void *data, size_t len) {
    return buf_append(arg, data, len);
}

static int add_file(struct cpio *c, int dir, const char *path, const char *name, uint32_t mode, struct sp_error *err) {
    _cleanup_free_ char *data = NULL;
    size_t len;
    int r = file_read(dir, path, INITRD_MAX, &data, &len, err);
    if (r < 0)
        return r;
    if (cpio_file(c, name, mode, len) < 0 || cpio_data(c, data, len) < 0)
        return sp_error_set(err, SP_E_TOO_LARGE, "%s does not fit into an initramfs of %u MiB", path, INITRD_MAX >> 20);
    return 0;
}

/* modules.order.txt names them in load order; a profile without it has everything built in. */
static int add_modules(struct cpio *c, int profile_dir, struct sp_error *err) {
    _cleanup_free_ char *order = NULL;
    size_t len, n = 0;
    struct sp_error missing = {0};
    if (file_read(profile_dir, "modules.order.txt", 65536, &order, &len, &missing) < 0)
        return missing.code == SP_E_NOT_FOUND ? 0 : sp_error_set(err, missing.code, "%s", missing.text);
    int r = add_file(c, profile_dir, "modules.order.txt", "modules/modules.order.txt", 0444, err);
    for (char *line = order; r == 0 && *line; n++) {
        size_t end = strcspn(line, "\n");
        bool last = line[end] == '\0';
        char path[300], name[300];
        line[end] = '\0';
        if (n == MODULES_MAX)
            return sp_error_set(err, SP_E_CORRUPT, "modules.order.txt names more than %d modules", MODULES_MAX);
        if (*line && (strchr(line, '/') || !text_printf(path, sizeof path, "modules/%s", line) ||
                      !text_printf(name, sizeof name, "modules/%s", line)))
            return sp_error_set(err, SP_E_CORRUPT, "modules.order.txt holds a bad name");
        if (*line)
            r = add_file(c, profile_dir, path, name, 0444, err);
        line += end + !last;
    }
    return r;
}

static int build(const char *agent_path, int profile_dir, struct buf *out, struct sp_error *err) {
    struct cpio c;
    cpio_init(&c, append, out);
    if (cpio_guest_skeleton(&c) < 0)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    int r = add_file(&c, AT_FDCWD, agent_path, "init", 0755, err);
    if (r == 0)
        r = add_modules(&c, profile_dir, err);
    if (r == 0 && cpio_finish(&c) < 0)
        r = sp_error_set(err, SP_E_TOO_LARGE, "the initramfs is over %u MiB", INITRD_MAX >> 20);
    return r;
}

static bool is_same(int profile_dir, const struct buf *wanted) {
    _cleanup_free_ char *now = NULL;
    size_t len;
    struct sp_error ignored;
    return file_read(profile_dir, "initrd.cpio", INITRD_MAX, &now, &len, &ignored) == 0 && len == wanted->len &&
           memcmp(now, wanted->data, len) == 0;
}

static int prepare_profile(int profile_dir, const char *agent_path, struct sp_error *err) {
    _cleanup_buf_ struct buf out = {0};
    buf_init(&out, INITRD_MAX);
    int r = build(agent_path, profile_dir, &out, err);
    if (r < 0 || is_same(profile_dir, &out))
        return r;
    return file_replace(profile_dir, "initrd.cpio", out.data, out.len, 0444, err);
}

int initrd_prepare(const struct settings *s, const char *agent_path, unsigned *ret_profiles, struct sp_error *err) {
    unsigned found = 0;
    for (size_t i = 0; i < ARRAY_SIZE(profiles); i++) {
        char path[SETTINGS_PATH_MAX + 16];
        if (!text_printf(path, sizeof path, "%s/%s", s->kernel_dir, profiles[i].profile))
            return sp_error_field(err, SP_E_INVALID, "kernel_dir", "is too long");
        _cleanup_close_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0 || faccessat(dir, profiles[i].kernel, R_OK, 0) < 0)
            continue;
        int r = prepare_profile(dir, agent_path, err);
        if (r < 0)
            return sp_error_wrap(err, "initramfs of the %s kernel", profiles[i].profile);
        found++;
    }
    if (found == 0)
        return sp_error_set(
            err, SP_E_UNSUPPORTED,
            "no guest kernel in %s: `./do kernel stock` fetches Debian's, `./do kernel lean` builds the small one",
            s->kernel_dir);
    *ret_profiles = found;
    return 0;
}
