/* SPDX-License-Identifier: Apache-2.0 */
/* initdb, one role that is no superuser, one database. The server itself is run by the supervisor. */
#include "cli/up/database.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "cli/up/layout.h"
#include "io/spawn.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <string.h>
#include <sys/stat.h>

#define POSTGRES_DIR "/usr/lib/postgresql"
#define POSTGRES_OLDEST 15
#define INIT_TIMEOUT_MS 120000

int database_locate(struct database *db, struct sp_error *err) {
    _cleanup_closedir_ DIR *d = opendir(POSTGRES_DIR);
    const struct dirent *e;
    uint64_t best = 0, v;
    while (d && (e = readdir(d))) {
        char path[300];
        if (!text_to_u64(e->d_name, POSTGRES_OLDEST, 99, &v) || v <= best)
            continue;
        if (text_printf(path, sizeof path, POSTGRES_DIR "/%s/bin", e->d_name) && access(path, X_OK) == 0) {
            best = v;
            (void)text_copy(db->bin_dir, sizeof db->bin_dir, path);
        }
    }
    if (best == 0)
        return sp_error_set(
            err, SP_E_UNSUPPORTED,
            "no PostgreSQL %d or newer on this host: install the package postgresql, or name a server with "
            "SPACE_DATABASE_URL",
            POSTGRES_OLDEST);
    const struct passwd *pw = getpwnam("postgres");
    if (!pw)
        return sp_error_set(err, SP_E_UNSUPPORTED, "this host has no user `postgres`, which PostgreSQL runs as");
    db->uid = pw->pw_uid;
    db->gid = pw->pw_gid;
    return 0;
}

static int run_as_postgres(const struct database *db, const char *const *argv, const char *input,
                           struct sp_error *err) {
    static const char *const env[] = {"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", NULL};
    _cleanup_buf_ struct buf out = {0};
    struct spawn_options opt = {.argv = argv, .env = env, .cwd = "/", .set_ids = true, .uid = db->uid, .gid = db->gid};
    buf_init(&out, 65536);
    return spawn_run(&opt, input, input ? strlen(input) : 0, deadline_in_ms(INIT_TIMEOUT_MS), &out, NULL, err);
}

static int make_cluster(const struct database *db, const char *password, struct sp_error *err) {
    char initdb[300], postgres[300], sql[512];
    if (!text_printf(initdb, sizeof initdb, "%s/initdb", db->bin_dir) ||
        !text_printf(postgres, sizeof postgres, "%s/postgres", db->bin_dir) ||
        /* One statement a line: that is what single-user mode reads. The password is base64url, so it needs no quoting. */
        !text_printf(sql, sizeof sql, "CREATE ROLE space LOGIN PASSWORD '%s'\nCREATE DATABASE space OWNER space\n",
                     password))
        return sp_error_set(err, SP_E_INTERNAL, "path too long");
    const char *const single[] = {postgres, "--single", "-D", db->data_dir, "postgres", NULL};
    char pwfile[600];
    if (!text_printf(pwfile, sizeof pwfile, "%s.pw", db->data_dir))
        return sp_error_set(err, SP_E_INTERNAL, "path too long");
    const char *const init[] = {initdb,
                                "-D",
                                db->data_dir,
                                "-U",
                                "postgres",
                                "--auth-local=scram-sha-256",
                                "--auth-host=reject",
                                "--pwfile",
                                pwfile,
                                "-E",
                                "UTF8",
                                "--locale=C.UTF-8",
                                "--no-instructions",
                                NULL};
    /* initdb wants a superuser password for scram; it is the same secret, in a file only while initdb runs. */
    int r = file_replace(AT_FDCWD, pwfile, password, strlen(password), 0400, err);
    if (r == 0 && chown(pwfile, db->uid, db->gid) < 0)
        r = sp_error_errno(err, errno, "chown", "%s", pwfile);
    if (r == 0)
        r = run_as_postgres(db, init, NULL, err);
    (void)unlink(pwfile);
    return r < 0 ? r : run_as_postgres(db, single, sql, err);
}

/* The marker is written last: a cluster without it was interrupted and is made again. */
static int ensure_cluster(const struct database *db, const char *password, struct sp_error *err) {
    char marker[600];
    int r;
    if (!text_printf(marker, sizeof marker, "%s.made", db->data_dir))
        return sp_error_set(err, SP_E_INTERNAL, "path too long");
    if (access(marker, F_OK) == 0)
        return 0;
    if ((r = dir_remove_tree(AT_FDCWD, db->data_dir, err)) < 0 ||
        (r = dir_ensure(AT_FDCWD, db->data_dir, 0700, db->uid, db->gid, err)) < 0 ||
        (r = make_cluster(db, password, err)) < 0)
        return sp_error_wrap(err, "private database");
    return file_replace(AT_FDCWD, marker, "", 0, 0400, err);
}

int database_prepare(const struct settings *s, struct database *ret, struct sp_error *err) {
    struct database db = {0};
    char password[80];
    int r = database_locate(&db, err);
    if (r < 0 || (r = layout_secret(s, "etc/database_password", "spd", password, sizeof password, err)) < 0 ||
        (r = layout_path(s, "db", db.data_dir, sizeof db.data_dir, err)) < 0 ||
        (r = layout_path(s, "run/db", db.socket_dir, sizeof db.socket_dir, err)) < 0 ||
        (r = dir_ensure(AT_FDCWD, db.socket_dir, 0711, db.uid, db.gid, err)) < 0 ||
        (r = ensure_cluster(&db, password, err)) < 0)
        return r;
    if (!text_printf(db.url, sizeof db.url, "host=%s user=space password=%s dbname=space", db.socket_dir, password))
        return sp_error_field(err, SP_E_INVALID, "state_dir", "is too long");
    *ret = db;
    return 0;
}

int database_find(const struct settings *s, struct database *ret, bool *ret_private, struct sp_error *err) {
    char marker[600];
    struct database db = {0};
    int r = layout_path(s, "db.made", marker, sizeof marker, err);
    if (r < 0)
        return r;
    *ret_private = access(marker, F_OK) == 0;
    if (!*ret_private)
        return 0;
    if ((r = database_locate(&db, err)) == 0 && (r = layout_path(s, "db", db.data_dir, sizeof db.data_dir, err)) == 0)
        *ret = db;
    return r;
}
