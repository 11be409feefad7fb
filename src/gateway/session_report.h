/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells control that a session's process started or ended, behind the stream's back: in order per session, again until
 * control took it, at most once at a time however many readers saw it.
 */
#pragma once
#include "base/random.h"
#include "io/internal_client.h"

struct session_reports;

struct session_exit {
    uint64_t exit_code, signal; /* signal 0: exited with exit_code */
    const char *reason;
};

struct session_reports *session_reports_new(struct loop *l, struct internal_client *control); /* aborts on no memory */
struct session_reports *session_reports_free(
    struct session_reports *r); /* drops what waits; NULL is fine; returns NULL */
void session_report_started(struct session_reports *r, const char *session_id, uint64_t pid);
void session_report_exited(struct session_reports *r, const char *session_id, uint64_t pid,
                           const struct session_exit *exit);
/* Reports not yet taken. */
size_t session_reports_waiting(const struct session_reports *r);
uint64_t session_reports_dropped(const struct session_reports *r);
