/* SPDX-License-Identifier: Apache-2.0 */
/* Applies the embedded migrations and checks what was applied before. */
#include "store/migrate.h"
#include "store/pg.h"
#include <string.h>

#define MIGRATION_LOCK "7203650" /* an arbitrary number that is ours */

static int check_applied(const struct store_result *res, struct sp_error *err) {
    for (int i = 0; i < pg_rows(res); i++) {
        int64_t version = pg_get_int(res, i, 0);
        if (version < 1 || version > (int64_t)store_migrations_count)
            return sp_error_set(err, SP_E_CONFLICT, "the database has schema version %lld, this program knows %zu",
                                (long long)version, store_migrations_count);
        if (strcmp(pg_get_text(res, i, 1), store_migrations[version - 1].checksum) != 0)
            return sp_error_set(err, SP_E_CONFLICT, "migration %s is not the one that was applied",
                                store_migrations[version - 1].name);
    }
    return 0;
}

static int load_applied(struct store *s, int *ret_n, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    int r = pg_run(s, "SELECT version, checksum FROM schema_migrations ORDER BY version", NULL, &res, err);
    if (r == 0)
        r = check_applied(res, err);
    if (r < 0)
        return r;
    *ret_n = pg_rows(res);
    return 0;
}

static int apply(struct store *s, void *ctx, struct sp_error *err) {
    const struct migration *m = ctx;
    struct pg_args a = {0};
    int r = pg_script(s, m->sql, err);
    if (r < 0)
        return sp_error_wrap(err, "%s", m->name);
    pg_int(&a, m->version);
    pg_text(&a, m->name);
    pg_text(&a, m->checksum);
    return pg_run(s, "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)", &a, NULL, err);
}

static int migrate_locked(struct store *s, unsigned *ret_applied, struct sp_error *err) {
    int have = 0;
    int r = pg_script(s,
                      "CREATE TABLE IF NOT EXISTS schema_migrations (version integer PRIMARY KEY, name text NOT NULL, "
                      "checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
                      err);
    if (r == 0)
        r = load_applied(s, &have, err);
    for (size_t i = (size_t)have; r == 0 && i < store_migrations_count; i++) {
        struct migration m = store_migrations[i];
        r = store_transaction(s, false, apply, &m, err);
        if (r == 0)
            (*ret_applied)++;
    }
    return r;
}

int store_migrate(struct store *s, unsigned *ret_applied, struct sp_error *err) {
    *ret_applied = 0;
    int r = pg_script(s, "SET lock_timeout = 0; SELECT pg_advisory_lock(" MIGRATION_LOCK ")", err);
    if (r == 0)
        r = migrate_locked(s, ret_applied, err);
    store_disconnect(s); /* lets go of the lock */
    return r;
}

int store_schema_check(struct store *s, struct sp_error *err) {
    int have = 0;
    int r = load_applied(s, &have, err);
    if (r < 0)
        return r;
    if (have != (int)store_migrations_count)
        return sp_error_set(err, SP_E_UNAVAILABLE, "the schema is at version %d of %zu", have, store_migrations_count);
    return 0;
}
