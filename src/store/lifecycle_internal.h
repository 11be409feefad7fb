/* SPDX-License-Identifier: Apache-2.0 */
/* Steps shared by the lifecycle_*.c files. The sandbox's row is locked. */
#pragma once
#include "model/plan.h"
#include "store/store.h"

/* How an operation ended. FAILURE_NONE: it succeeded. message "": the failure's own text. */
struct operation_end {
    enum failure failure;
    const char *message;
    const char *timings, *start_kind; /* what the node said; may be NULL */
};
/* One that is final already stays as it is. */
int lifecycle_finish_operation(struct store *s, const char *operation_id, const struct operation_end *end,
                               struct sp_error *err);
/* The sandbox has failed, and with it the operation, if there is one. */
int lifecycle_fail_sandbox(struct store *s, const char *id, const char *operation_id, const struct operation_end *end,
                           struct sp_error *err);
/* The operation failed and the sandbox goes to `state`, which is not failed unless it was before. `renew`: what the
 * operation started is to be ended, so that the generation has to differ. `ready` counts if it runs. */
int lifecycle_give_up(struct store *s, const char *id, const char *operation_id, enum sandbox_state state, bool ready,
                      bool renew, const struct operation_end *end, struct sp_error *err);
int lifecycle_end_delete(struct store *s, const char *id, const char *operation_id, struct sp_error *err);
int lifecycle_add_outbox(struct store *s, const char *sandbox_id, const char *reason, struct sp_error *err);
