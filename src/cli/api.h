/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CLI's side of the management API. Blocking. A problem+json answer becomes an sp_error with its field; a call that
 * changes something carries an Idempotency-Key and is repeated with the same key when its answer was lost.
 */
#pragma once
#include "base/error.h"
#include "base/json.h"
#include "model/settings.h"

struct api {
    char url[256]; /* management API: http://host:port */
    char token[96];
};

/* SPACE_API_URL and SPACE_TOKEN, else <state_dir>/etc/client.json, which `space up` writes and root reads. */
int api_open(struct api *a, const struct settings *s, struct sp_error *err);
void api_close(struct api *a); /* wipes the token */
/* body may be NULL. *ret (may be NULL) gets the answer's JSON, NULL for 204. */
int api_call(const struct api *a, const char *method, const char *target, const json_t *body, json_t **ret,
             struct sp_error *err);
/* Waits until the operation is final, saying so on a terminal once it takes over a second. A failed operation is an error. */
int api_wait_operation(const struct api *a, const char *operation_id, const char *doing, uint64_t timeout_ms,
                       json_t **ret, struct sp_error *err);
/* All pages of a list, as one array. `target` may have a query. */
int api_list(const struct api *a, const char *target, json_t **ret, struct sp_error *err);
