/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the daemons of one machine running: starts what is not, adopts what is (it may itself have been killed), restarts with
 * a growing pause what ends, and on SIGTERM stops them in reverse order. One a state directory, by a lock. VMs are not its
 * children: they outlive it and the daemons.
 */
#pragma once
#include "base/error.h"
#include "cli/up/service.h"

/* Runs until SIGTERM or SIGINT; then everything is stopped. */
int supervisor_run(const struct settings *s, const struct service *services, size_t n, struct sp_error *err);
/* Starts supervisor_run in a process of its own, detached. Fine when one is running already: *ret_started is false. */
int supervisor_spawn(const struct settings *s, const struct service *services, size_t n, bool *ret_started,
                     struct sp_error *err);
/* Asks the running one to stop and waits; then stops daemons left over from a killed one. */
int supervisor_stop(const struct settings *s, const struct service *services, size_t n, struct sp_error *err);
