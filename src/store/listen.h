/* SPDX-License-Identifier: Apache-2.0 */
/* LISTEN on a connection of its own. A notification may be lost with the connection: it only ever saves waiting. */
#pragma once
#include "store/store.h"

enum note_kind { NOTE_NODE = 'n', NOTE_OPERATION = 'o', NOTE_RECONCILE = 'r' };

int store_listen(struct store *s, struct sp_error *err);
/* Waits for notifications, for wake_fd to become readable, or timeout_ms. fn is called for each, with the number of the
 * connection that said it; *ret_n is how many came. SP_E_UNAVAILABLE when the connection broke: connect and store_listen()
 * again. */
int store_wait_notes(struct store *s, int wake_fd, int timeout_ms,
                     void (*fn)(void *ctx, char kind, const char *id, int pid), void *ctx, unsigned *ret_n,
                     struct sp_error *err);
