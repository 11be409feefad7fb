/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the handlers of what nodes call. */
#pragma once
#include "control/request.h"
#include "store/nodes.h"

int internal_read_capacity(struct request *rq, const json_t *body, struct node_capacity *ret);
/* An optional array of snapshot ids; *ret is the caller's to free, the texts borrow from the body. */
int internal_read_ids(struct request *rq, const char *key, const char ***ret, size_t *ret_n);
