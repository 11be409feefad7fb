/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an installation's use of this host: every VM and whatever carries a VM's id is removed. For `space down`, with
 * no broker serving. Blocking; goes on after a failure and reports the first one. */
#pragma once
#include "broker/layout.h"
#include "host/cgroup.h"

int release_all(const struct layout *layout, struct cgroup_root *cgroups, struct sp_error *err);
