/* SPDX-License-Identifier: Apache-2.0 */
/* What `exec --detach` leaves for `logs`: the session's address and attachment token, in a file only its owner reads, under
 * $XDG_STATE_HOME/space/sessions (~/.local/state/space/sessions). */
#pragma once
#include "cli/exec.h"

int session_file_write(const struct exec_session *session, struct sp_error *err);
int session_file_read(const char *session_id, struct exec_session *ret, struct sp_error *err);
