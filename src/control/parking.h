/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where requests wait without costing a thread: operations being waited for, nodes' polls for their desired state. Woken by
 * notifications, looked at again now and then (so that a lost notification only delays), answered at their deadline.
 * Loop thread only. What is parked is bounded by the servers' connections.
 */
#pragma once
#include "control/request.h"

void parking_init(struct parking *p, struct control *c);
/* The request has an answer that is not settled; it is looked at once more if what it waits for changed since
 * rq->news_seq. */
void parking_add(struct request *rq);
/* A worker looked at it again. */
void parking_refreshed(struct request *rq);
/* Something happened to what `kind` and `key` name: a transaction of this process was committed, on connection pid; or the
 * database says so. */
void parking_tell(struct parking *p, char kind, const char *key, int pid);
void parking_heard(struct parking *p, char kind, const char *key, int pid);
/* Everything: after a connection for notifications was lost and found again. */
void parking_wake_all(struct parking *p);
/* Answers all with what they have. */
void parking_close(struct parking *p);
void parking_done(struct parking *p);
