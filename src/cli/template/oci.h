/* SPDX-License-Identifier: Apache-2.0 */
/* What an OCI image says about how to run it, as a template manifest. */
#pragma once
#include "base/error.h"
#include <jansson.h>

/* `config` is the runtime configuration umoci wrote. Environment, working directory and user are taken over; the image's
 * command is not a start command: sandboxes run what the caller asks for. Unusable parts are left at their default. */
int oci_manifest(const char *config, json_t **ret, struct sp_error *err);
