/* SPDX-License-Identifier: Apache-2.0 */
/* Creating and deleting a sandbox, as `create`, `run` and `rm` share it. */
#pragma once
#include "cli/api.h"
#include "cli/command.h"

struct sandbox_options {
    const char *name, *vcpus, *memory_mib, *snapshot;
    const char *idle_pause, *idle_suspend, *delete_after, *max_life, *checkpoint_every; /* seconds */
    const char *env[OPTION_LIST_MAX + 1], *labels[OPTION_LIST_MAX + 1];
    bool no_wait, no_wake, checkpoint_disk;
};
#define SANDBOX_OPTION_ROWS(o)                                                                                         \
    {"--name", 0, OPTION_VALUE, &(o).name}, {"--vcpus", 0, OPTION_VALUE, &(o).vcpus},                                  \
        {"--idle-pause", 0, OPTION_VALUE, &(o).idle_pause}, {"--idle-suspend", 0, OPTION_VALUE, &(o).idle_suspend},    \
        {"--delete-after", 0, OPTION_VALUE, &(o).delete_after}, {"--max-life", 0, OPTION_VALUE, &(o).max_life},        \
        {"--checkpoint-every", 0, OPTION_VALUE, &(o).checkpoint_every}, {"--no-wake", 0, OPTION_FLAG, &(o).no_wake},   \
        {"--checkpoint-disk", 0, OPTION_FLAG, &(o).checkpoint_disk},                                                   \
        {"--memory-mib", 0, OPTION_VALUE, &(o).memory_mib}, {"--env", 'e', OPTION_LIST, (o).env}, {                    \
        "--label", 0, OPTION_LIST, (o).labels                                                                          \
    }

/* NAME=VALUE words into an object of strings; `option` is named in errors. */
int sandbox_put_pairs(json_t *obj, const char *const *pairs, const char *option, struct sp_error *err);
/* template_ref is NULL when o->snapshot says what from. Creates and, unless no_wait, waits until it runs. ret_id is set as soon as the sandbox exists, on failure too ("" before). */
int sandbox_create(const struct api *a, const struct sandbox_options *o, const char *template_ref, char ret_id[64],
                   struct sp_error *err);
int sandbox_delete(const struct api *a, const char *id, bool wait, struct sp_error *err);
