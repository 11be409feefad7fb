/* SPDX-License-Identifier: Apache-2.0 */
/* Every VM id that something on the host carries: control groups, directories of the store, sockets, half-made snapshots. */
#pragma once
#include "broker/layout.h"
#include "host/cgroup.h"

/* fn gets valid ids only, one of them perhaps several times; what it returns is ignored. */
int leftovers_each(const struct layout *layout, struct cgroup_root *cgroups, int (*fn)(void *ctx, const char *id),
                   void *ctx, struct sp_error *err);
