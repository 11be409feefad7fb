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
/* What an error of the broker (or of building the request) means. not_found names in its field what was not there; it is
 * `internal` for anything but a template or a snapshot. A refusal of space-vm has its code in the field. */
void fault_from_error(struct fault *f, const struct sp_error *err);
