/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that takes time, done in a forked child of the broker so that the poll loop goes on: starting a VM, ending one,
 * hashing a snapshot. The broker has one thread, so the child may do anything the parent could; it gets a private copy
 * of every table and gives back one JSON object. It dies with the broker (PR_SET_PDEATHSIG), and it holds the broker's
 * lock until it is dead, so a new broker never works beside a job of the old one.
 */
#pragma once
#include "base/error.h"
#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

struct jobs;

struct job_spec {
    const char *name; /* static; for the log */
    uint64_t timeout_ms;
    void *arg;
    /* In the child. *ret_result: an object, or left NULL. */
    int (*work)(void *arg, json_t **ret_result, struct sp_error *err);
    /* In the broker, from the loop. error is NULL on success. Called exactly once for every job that was added,
     * except when jobs_free() comes first. */
    void (*done)(void *arg, const json_t *result, const struct sp_error *error);
};

struct jobs *jobs_new(int reactor);
/* Kills what runs, forgets what waits. */
struct jobs *jobs_free(struct jobs *jobs);
/* Starts it, or queues it behind the ones that run. SP_E_UNAVAILABLE when the queue is full. */
int jobs_add(struct jobs *jobs, const struct job_spec *spec, struct sp_error *err);
/* The job with this arg has at most so much time from now on; one that has not begun is not begun any more (SP_E_CONFLICT). */
void jobs_hurry(struct jobs *jobs, const void *arg, uint64_t ms);
/* Call when SIGCHLD says so, with a pid that was reaped: true when it was a job. */
bool jobs_note_exit(struct jobs *jobs, pid_t pid, int status);
/* Kills what is over its time. Returns the milliseconds until the next one is, at most 60000. */
uint64_t jobs_check_deadlines(struct jobs *jobs);
unsigned jobs_running(const struct jobs *jobs);
