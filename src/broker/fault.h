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
 * SPACE_FAULT=@FILE is for tests of a running system. The file has FAULT_FILE_SIZE bytes and is mapped shared, so that
 * jailed children see it too. It begins with the same text, padded with zeros; the fault that is met first empties it (its
 * first byte becomes 0), so it happens once and the test sees that it was reached. From FAULT_LOG_AT on, every point that
 * is passed is noted: bytes noted so far as a native 64 bit number, then the names, a newline behind each.
 */
#pragma once
#include "base/error.h"

#define FAULT_FILE_SIZE 65536
#define FAULT_LOG_AT 512

/* Call in the broker's own process, before it forks. Bad syntax is an error. */
int fault_setup(const char *spec, struct sp_error *err);
/* 0, or a failure that the step has to return. */
int fault_point(const char *point, struct sp_error *err);
