/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemons of one machine as a table: how each is started, as whom, and where its pid file and log are. A pid file holds
 * "<pid> <start time>", so a recycled pid is never taken for ours.
 */
#pragma once
#include "base/error.h"
#include "cli/up/database.h"
#include "io/spawn.h"
#include "model/settings.h"
#include <stdbool.h>

#define SERVICES_MAX 8
#define SERVICE_ARGS_MAX 24

struct service {
    const char *name;
    char program[512];
    char text[SERVICE_ARGS_MAX][600]; /* storage of argv */
    const char *argv[SERVICE_ARGS_MAX + 1];
    uid_t uid;
    gid_t gid;
    bool root;       /* keeps uid 0: the broker */
    int stop_signal; /* SIGTERM; PostgreSQL: SIGINT (fast shutdown) */
    uint64_t stop_grace_ms;
    char pid_file[512], log_file[512];
};

/* In start order; *ret_n entries. database NULL: a server elsewhere. */
int services_build(const struct settings *s, const struct database *database, struct service ret[SERVICES_MAX],
                   size_t *ret_n, struct sp_error *err);
/* The running process of a service from its pid file: 1 and *ret (pidfd open), 0 when it is not running, negative on error. */
int service_find(const struct service *sv, struct child *ret, struct sp_error *err);
/* Starts it in a session of its own with its log as stdout and stderr (an over-long log is moved to .1 first), writes the
 * pid file. */
int service_start(const struct service *sv, struct child *ret, struct sp_error *err);
/* Directory of our own programs: beside the CLI in an installation (../libexec/space). */
int services_libexec(char *dst, size_t size, struct sp_error *err);
