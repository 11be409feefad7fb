/* SPDX-License-Identifier: Apache-2.0 */
/* space-control: arguments and what they name; the service itself is server.c. */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/log.h"
#include "base/text.h"
#include "control/keeper.h"
#include "control/server.h"
#include "model/ids.h"
#include "store/store.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define USAGE                                                                                                          \
    "space-control: management API, internal API and reconciler\n\n"                                                   \
    "  --bootstrap-token-file FILE  tenant 'default' gets the admin token in FILE (made by space up)\n"                \
    "  --migrate-only               bring the schema up to date, bootstrap, and exit"
#define FILE_MAX 4096

struct arguments {
    const char *bootstrap_file;
    bool migrate_only;
};

/* Takes what is not a setting out of argv. */
static int take_arguments(int *argc, char **argv, struct arguments *ret, struct sp_error *err) {
    static const char flag[] = "--bootstrap-token-file";
    int n = 1;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--migrate-only") == 0)
            ret->migrate_only = true;
        else if (strcmp(argv[i], flag) == 0 && i + 1 < *argc)
            ret->bootstrap_file = argv[++i];
        else if (strcmp(argv[i], flag) == 0)
            return sp_error_field(err, SP_E_INVALID, "bootstrap-token-file", "%s needs a file", flag);
        else if (text_starts_with(argv[i], "--bootstrap-token-file="))
            ret->bootstrap_file = argv[i] + sizeof(flag);
        else
            argv[n++] = argv[i];
    }
    argv[n] = NULL;
    *argc = n;
    return 0;
}

static int read_line(const char *path, char *dst, size_t size, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r = file_read(AT_FDCWD, path, FILE_MAX, &text, &len, err);
    if (r < 0)
        return r;
    text[strcspn(text, "\r\n")] = '\0';
    r = text_copy(dst, size, text) ? 0 : sp_error_set(err, SP_E_INVALID, "%s: the line is too long", path);
    text_wipe(text, len);
    return r;
}

static int load_bootstrap(struct control *c, const char *file, struct sp_error *err) {
    int r = read_line(file, c->bootstrap_token, sizeof(c->bootstrap_token), err);
    if (r == 0 && token_kind_of(c->bootstrap_token) != TOKEN_MANAGEMENT)
        return sp_error_set(err, SP_E_INVALID, "%s: holds no management token (spm_ and 43 characters)", file);
    return r;
}

/* The setting, else what `space up` wrote for its private cluster. */
static int load_database_url(struct control *c, struct sp_error *err) {
    char path[512];
    if (c->settings.database_url[0])
        return text_copy(c->database_url, sizeof(c->database_url), c->settings.database_url)
                   ? 0
                   : sp_error_field(err, SP_E_INVALID, "database_url", "database_url is too long");
    if (!text_printf(path, sizeof(path), "%s/etc/database_url", c->settings.state_dir))
        return sp_error_field(err, SP_E_INVALID, "state_dir", "state_dir is too long");
    return read_line(path, c->database_url, sizeof(c->database_url), err);
}

static int load(struct control *c, int argc, char **argv, struct arguments *a, struct sp_error *err) {
    enum log_level level = LOG_L_INFO;
    int next = 0;
    int r = take_arguments(&argc, argv, a, err);
    if (r == 0)
        r = settings_load(&c->settings, argc, argv, USAGE, &next, err);
    if (r == 0 && next < argc)
        r = sp_error_set(err, SP_E_INVALID, "%s: no argument is expected", argv[next]);
    if (r < 0)
        return r;
    (void)log_level_from_name(c->settings.log_level, &level);
    log_set_level(level);
    if (a->bootstrap_file)
        r = load_bootstrap(c, a->bootstrap_file, err);
    if (r == 0)
        r = load_database_url(c, err);
    return r;
}

static int migrate_only(struct control *c, struct sp_error *err) {
    struct store *db = NULL;
    int r = store_new(c->database_url, 60000, &db, err);
    if (r == 0)
        r = keeper_prepare(db, c->bootstrap_token, err);
    (void)store_free(db);
    return r;
}

static int fail(const struct sp_error *err) {
    log_error(LOG_L_ERROR, "control_failed", err, NULL);
    return sp_code_exit_status(err->code);
}

int main(int argc, char **argv) {
    static struct control c; /* large, and handed to every thread */
    struct arguments a = {0};
    struct sp_error err = {0};
    int r;
    log_init("space-control", LOG_L_INFO);
    const char *test_clock = getenv("SPACE_TEST_CLOCK");
    c.has_test_clock = test_clock && strcmp(test_clock, "1") == 0;
    r = load(&c, argc, argv, &a, &err);
    if (r == 0 && a.migrate_only)
        return migrate_only(&c, &err) == 0 ? 0 : fail(&err);
    if (r == 0)
        r = secrets_load(&c.secrets, c.settings.internal_token_file, &err);
    if (r == 0)
        r = server_run(&c, &err);
    secrets_done(&c.secrets);
    text_wipe(c.bootstrap_token, sizeof(c.bootstrap_token));
    return r == 0 ? 0 : fail(&err);
}
