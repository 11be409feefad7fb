/* SPDX-License-Identifier: Apache-2.0 */
/* Steps shared by lifecycle.c and lifecycle_observe.c. The sandbox's row is locked. */
#pragma once
#include "model/states.h"
#include "store/store.h"

/* FAILURE_NONE: it succeeded. One that is final already stays as it is. message "": the failure's own text. */
int lifecycle_finish_operation(struct store *s, const char *operation_id, enum failure failure, const char *message,
                               struct sp_error *err);
int lifecycle_fail_sandbox(struct store *s, const char *id, const char *operation_id, enum failure failure,
                           const char *message, struct sp_error *err);
int lifecycle_end_delete(struct store *s, const char *id, const char *operation_id, struct sp_error *err);
