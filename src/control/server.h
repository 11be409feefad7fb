/* SPDX-License-Identifier: Apache-2.0 */
/* The running service: loop, workers, listeners of HTTP, threads; from start to a graceful end. */
#pragma once
#include "control/control.h"

/* Serves until SIGTERM or SIGINT. c holds settings, database_url, bootstrap_token and secrets. */
int server_run(struct control *c, struct sp_error *err);
