/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that hears PostgreSQL's notifications on a connection of its own and hands them on: operations and nodes to the
 * parking place (on the loop), reconcile to the keeper. */
#pragma once
#include "control/control.h"

int listener_start(struct control *c, struct sp_error *err);
/* Ends and joins the thread. NULL is fine; returns NULL. */
struct listener *listener_stop(struct listener *l);
