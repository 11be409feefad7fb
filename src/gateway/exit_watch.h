/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of commands nobody is attached to: a session whose last reader left is asked after from time to time (LIST, one
 * question a sandbox), so that control learns when its command ended. Forgotten with this program: a reader that comes
 * back brings the session here again.
 */
#pragma once
#include "base/random.h"
#include "gateway/session_report.h"

struct exit_watch;
struct exit_watch *exit_watch_new(struct loop *l, const char *state_dir,
                                  struct session_reports *reports); /* aborts on no memory */
struct exit_watch *exit_watch_free(struct exit_watch *w);           /* NULL is fine; returns NULL */
/* Fine when it is watched already. Over EXIT_WATCH_MAX sessions in all the call does nothing. */
#define EXIT_WATCH_MAX 16384u
void exit_watch_add(struct exit_watch *w, const char *sandbox_id, const char *session_id, const char *process_id);
size_t exit_watch_sessions(const struct exit_watch *w);
