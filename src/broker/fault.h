/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault points for tests: places where the broker can be made to fail, stall or die. They are compiled in always, so
 * that what is tested is what is shipped, and do nothing unless the broker was started with --enable-faults and
 * SPACE_FAULT=point:action[,point:action...] is in its environment. Actions:
 *   error, enospc        the step fails
 *   kill                 SIGKILL to the process that runs the step
 *   kill_broker          SIGKILL to the broker itself; in jobs only, a jailed child has no way to reach it
 *   sleep=MS             stall
 */
#pragma once
#include "base/error.h"

/* Call in the broker's own process, before it forks. Bad syntax is an error. */
int fault_setup(const char *spec, struct sp_error *err);
/* 0, or a failure that the step has to return. */
int fault_point(const char *point, struct sp_error *err);
