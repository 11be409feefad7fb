/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The private PostgreSQL cluster of one machine: <state_dir>/db, reached through a unix socket in <state_dir>/run/db only, with a
 * password that only the control plane holds. Not used when database_url names a server.
 */
#pragma once
#include "base/error.h"
#include "model/settings.h"
#include <stdbool.h>
#include <sys/types.h>

struct database {
    char bin_dir[256]; /* of the newest PostgreSQL ≥ 15 on this host */
    char data_dir[512];
    char socket_dir[512];
    char url[512]; /* for space-control */
    uid_t uid;     /* the host's postgres user, which PostgreSQL insists on */
    gid_t gid;
};

/* Finds PostgreSQL and makes the cluster on the first call (a few seconds). A half-made one is made again. */
int database_prepare(const struct settings *s, struct database *ret, struct sp_error *err);
/* For stopping: whether a private cluster is there, and where; makes nothing. */
int database_find(const struct settings *s, struct database *ret, bool *ret_private, struct sp_error *err);
/* Fills bin_dir, uid and gid only. */
int database_locate(struct database *ret, struct sp_error *err);
