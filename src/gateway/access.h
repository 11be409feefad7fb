/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may do what on a session: the attachment token of a request, looked up at control by its SHA-256. The token itself
 * goes nowhere and is kept nowhere.
 */
#pragma once
#include "gateway/gateway.h"
#include "gateway/problem.h"

struct access;

/* Checks x's session id and token. 1: *ret_grant is the answer out of the cache (only unless `fresh`), a new reference;
 * 0: control was asked, done(ctx, grant, NULL) or done(ctx, NULL, problem) comes from the loop, the grant borrowed;
 * negative: *ret_problem says why not. */
int access_start(struct gateway *g, struct exchange *x, bool fresh,
                 void (*done)(void *ctx, struct grant *grant, const struct problem *problem), void *ctx,
                 struct access **ret, struct grant **ret_grant, struct problem *ret_problem);
/* NULL is fine; returns NULL. */
struct access *access_cancel(struct access *a);
