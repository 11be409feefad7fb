/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault points for tests: places where the broker can be made to fail, stall or die. They are compiled in always, so
 * that what is tested is what is shipped, and do nothing unless the broker was started with --enable-faults and
 * SPACE_FAULT=point:action[,point:action...] is in its environment. Actions:
 *   error, enospc        the step fails
 *   kill                 SIGKILL to the process that runs the step
 *   kill_broker          SIGKILL to the broker itself; in jobs only, a jailed child has no way to reach it
 *   sleep=MS             stall
 *
 * SPACE_FAULT=@FILE takes the same text from a file of at least FAULT_FILE_SIZE bytes, padded with zeros, which is mapped
 * shared: a test arms a running broker by writing it, jailed children see it too, and the fault that is met first empties
 * it (its first byte becomes 0), so that it happens once and the test sees that it was reached.
 */
#pragma once
#include "base/error.h"

#define FAULT_FILE_SIZE 512

/* Call in the broker's own process, before it forks. Bad syntax is an error. */
int fault_setup(const char *spec, struct sp_error *err);
/* 0, or a failure that the step has to return. */
int fault_point(const char *point, struct sp_error *err);
