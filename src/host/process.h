/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process is meant, over restarts of ours and reuse of pids: a pid names one process only together with its
 * start time and the boot it ran in. Nothing here signals a process without having matched all three through a pidfd.
 */
#pragma once
#include "base/clock.h"
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process_ref {
    pid_t pid;
    uint64_t start_time; /* field 22 of /proc/PID/stat: clock ticks since boot */
};

#define PROCESS_BOOT_ID_SIZE 37
int process_boot_id(char dst[PROCESS_BOOT_ID_SIZE], struct sp_error *err);
/* Fills the start time of a running process. SP_E_NOT_FOUND when there is none. */
int process_ref_get(pid_t pid, struct process_ref *ret, struct sp_error *err);
/* A pidfd of exactly this process. SP_E_NOT_FOUND: it is gone, a zombie, or the pid is another process now. */
int process_open(const struct process_ref *ref, int *ret_pidfd, struct sp_error *err);
/* SIGKILL; a process that is already dead is fine. */
int process_kill(int pidfd, struct sp_error *err);
bool process_is_dead(int pidfd); /* a zombie is dead */
/* SP_E_TIMEOUT when it is still alive at the deadline. */
int process_wait_dead(int pidfd, struct deadline deadline, struct sp_error *err);
