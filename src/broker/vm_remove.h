/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes away everything that carries a VM's id: processes first, and nothing else before they are proven dead; then the
 * control group, sockets, files. Idempotent, for a VM in any state of being started, run, or removed. Blocking (a job).
 */
#pragma once
#include "broker/layout.h"
#include "broker/record.h"
#include "host/cgroup.h"

struct vm_remove {
    const struct layout *layout;
    struct cgroup_root *cgroups;
    const char *id;
    const char *cgroup;                /* NULL: what the record says, else the id */
    const struct process_ref *process; /* space-vm of this boot; NULL when not known or of an earlier boot */
};

/* A killed process is gone in milliseconds; on a host that is out of breath the kernel's own part of its end takes longer,
 * and nothing waits for this but whoever asked. */
#define VM_REMOVE_DEATH_MS 10000
/* *ret_existed: something was there. SP_E_TIMEOUT: a process would not die; then nothing was taken away. */
int vm_remove(const struct vm_remove *remove, bool *ret_existed, struct sp_error *err);
