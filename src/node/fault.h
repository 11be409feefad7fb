/* SPDX-License-Identifier: Apache-2.0 */
/* Why something of a sandbox went wrong, as control is told: a code of the contract and a sentence. */
#pragma once
#include "base/error.h"
#include "model/states.h"

struct fault {
    enum failure code;
    char message[224];
};

void fault_set(struct fault *f, enum failure code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* What an error of the broker (or of building the request) means. `missing`: what it is that was not found, for the request
 * at hand: FAILURE_TEMPLATE_MISSING of a boot, FAILURE_SNAPSHOT_BROKEN of a clone, else FAILURE_INTERNAL. */
void fault_from_error(struct fault *f, const struct sp_error *err, enum failure missing);
