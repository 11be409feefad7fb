/* SPDX-License-Identifier: Apache-2.0 */
/* Creating and deleting a sandbox, as `create`, `run` and `rm` share it. */
#pragma once
#include "cli/api.h"
#include "cli/command.h"

struct sandbox_options {
    const char *name, *vcpus, *memory_mib;
    const char *env[OPTION_LIST_MAX + 1], *labels[OPTION_LIST_MAX + 1];
    bool no_wait;
};
#define SANDBOX_OPTION_ROWS(o)                                                                                         \
    {"--name", 0, OPTION_VALUE, &(o).name}, {"--vcpus", 0, OPTION_VALUE, &(o).vcpus},                                  \
        {"--memory-mib", 0, OPTION_VALUE, &(o).memory_mib}, {"--env", 'e', OPTION_LIST, (o).env}, {                    \
        "--label", 0, OPTION_LIST, (o).labels                                                                          \
    }

/* Creates and, unless no_wait, waits until it runs. ret_id is set as soon as the sandbox exists, on failure too ("" before). */
int sandbox_create(const struct api *a, const struct sandbox_options *o, const char *template_ref, char ret_id[64],
                   struct sp_error *err);
int sandbox_delete(const struct api *a, const char *id, bool wait, struct sp_error *err);
