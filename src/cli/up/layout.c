/* SPDX-License-Identifier: Apache-2.0 */
/* Directories, secrets and configuration files of one machine's installation. Needs root. */
#include "cli/up/layout.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_SIZE 512

static const struct {
    const char *sub;
    mode_t mode;
    int uid; /* enum settings_uid, 0: root */
} directories[] = {
    {"", 0711, 0},
    {"store", 0711, 0},
    {"kernels", 0755, 0},
    {"etc", 0711, 0},
    {"etc/control", 0700, SETTINGS_UID_CONTROL},
    {"etc/node", 0700, SETTINGS_UID_NODE},
    {"etc/gateway", 0700, SETTINGS_UID_GATEWAY},
    {"log", 0755, 0},
    {"run", 0711, 0},
    {"run/vm", 0711, 0},
};

int layout_path(const struct settings *s, const char *sub, char *dst, size_t size, struct sp_error *err) {
    if (text_printf(dst, size, "%s%s%s", s->state_dir, *sub ? "/" : "", sub))
        return 0;
    return sp_error_field(err, SP_E_INVALID, "state_dir", "is too long");
}

int layout_ensure(const struct settings *s, struct sp_error *err) {
    char path[PATH_SIZE];
    for (size_t i = 0; i < ARRAY_SIZE(directories); i++) {
        uid_t uid = directories[i].uid ? (uid_t)(s->uid_base + (uint64_t)directories[i].uid) : 0;
        int r = layout_path(s, directories[i].sub, path, sizeof path, err);
        if (r == 0)
            r = dir_ensure(AT_FDCWD, path, directories[i].mode, uid, uid, err);
        if (r < 0)
            return sp_error_wrap(err, "state directory");
    }
    return 0;
}

static void make_secret(const char *prefix, char *dst, size_t size) {
    uint8_t raw[32];
    char text[48];
    random_bytes(raw, sizeof raw);
    size_t len = text_base64(text, raw, sizeof raw);
    for (size_t i = 0; i < len; i++)
        text[i] = text[i] == '+' ? '-' : text[i] == '/' ? '_' : text[i];
    while (len > 0 && text[len - 1] == '=')
        text[--len] = '\0';
    (void)text_printf(dst, size, "%s_%s", prefix, text);
    text_wipe(raw, sizeof raw);
}

int layout_secret(const struct settings *s, const char *sub, const char *prefix, char *dst, size_t size,
                  struct sp_error *err) {
    char path[PATH_SIZE], text[80];
    _cleanup_free_ char *old = NULL;
    size_t len;
    struct sp_error missing = {0};
    int r = layout_path(s, sub, path, sizeof path, err);
    if (r < 0)
        return r;
    if (file_read(AT_FDCWD, path, sizeof text - 1, &old, &len, &missing) == 0) {
        old[strcspn(old, "\n")] = '\0';
        if (!text_starts_with(old, prefix) || !text_copy(dst, size, old))
            return sp_error_set(err, SP_E_CORRUPT, "%s holds no %s_ token", path, prefix);
        return 0;
    }
    if (missing.code != SP_E_NOT_FOUND) {
        if (err)
            *err = missing;
        return -(int)missing.code;
    }
    make_secret(prefix, text, sizeof text);
    if ((r = file_replace(AT_FDCWD, path, text, strlen(text), 0400, err)) < 0)
        return r;
    return text_copy(dst, size, text) ? 0 : sp_error_set(err, SP_E_INTERNAL, "secret buffer too small");
}

int layout_give(const struct settings *s, const char *daemon, enum settings_uid uid, const char *name, const char *text,
                struct sp_error *err) {
    char sub[128], path[PATH_SIZE];
    uid_t owner = (uid_t)(s->uid_base + (uint64_t)uid);
    if (!text_printf(sub, sizeof sub, "etc/%s/%s", daemon, name))
        return sp_error_set(err, SP_E_INTERNAL, "name too long");
    int r = layout_path(s, sub, path, sizeof path, err);
    if (r < 0 || (r = file_replace(AT_FDCWD, path, text, strlen(text), 0400, err)) < 0)
        return r;
    if (chown(path, owner, owner) < 0)
        return sp_error_errno(err, errno, "chown", "%s", path);
    return 0;
}

int layout_write_config(const struct settings *s, const char *database_url, struct sp_error *err) {
    _cleanup_buf_ struct buf text = {0};
    char path[PATH_SIZE];
    struct settings shown = *s;
    buf_init(&text, 65536);
    shown.database_url[0] = '\0';
    int r = layout_path(s, "etc/space.conf", path, sizeof path, err);
    if (r < 0)
        return r;
    if (config_print_values(&shown, settings_rows, settings_rows_count, &text) < 0)
        return sp_error_set(err, SP_E_INTERNAL, "configuration too long");
    if ((r = file_replace(AT_FDCWD, path, text.data, text.len, 0444, err)) < 0)
        return r;
    if (!text_copy(shown.database_url, sizeof shown.database_url, database_url))
        return sp_error_field(err, SP_E_INVALID, "database_url", "is too long");
    buf_reset(&text);
    if (config_print_values(&shown, settings_rows, settings_rows_count, &text) < 0)
        return sp_error_set(err, SP_E_INTERNAL, "configuration too long");
    return layout_give(s, "control", SETTINGS_UID_CONTROL, "space.conf", text.data, err);
}

int layout_write_client(const struct settings *s, const char *admin_token, struct sp_error *err) {
    char path[PATH_SIZE], api[96];
    if (!text_printf(api, sizeof api, "http://%s", s->control_listen))
        return sp_error_field(err, SP_E_INVALID, "control_listen", "is too long");
    _cleanup_json_ json_t *j =
        json_pack("{s:s,s:s,s:s}", "api_url", api, "data_url", s->gateway_url, "token", admin_token);
    if (!j)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    int r = layout_path(s, "etc/client.json", path, sizeof path, err);
    if (r < 0)
        return r;
    _cleanup_free_ char *text = json_print(j);
    return file_replace(AT_FDCWD, path, text, strlen(text), 0400, err);
}
