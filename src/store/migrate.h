/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schema migrations: ordered SQL files, embedded at build time with their checksums, each applied once in a transaction of
 * its own under an advisory lock, so that any number of replicas may start at once.
 */
#pragma once
#include "store/store.h"

struct migration {
    int version;          /* 1, 2, … without gaps */
    const char *name;     /* file name */
    const char *checksum; /* SHA-256 of the file, hex */
    const char *sql;
};
extern const struct migration store_migrations[]; /* generated */
extern const size_t store_migrations_count;

/* Brings the schema up to date. SP_E_CONFLICT: the database was migrated by a newer version, or a migration that was applied
 * has been edited since. *ret_applied: how many were run now. */
int store_migrate(struct store *s, unsigned *ret_applied, struct sp_error *err);
/* 0 when the schema is exactly this version's. */
int store_schema_check(struct store *s, struct sp_error *err);
