/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything vm_start does to the host, in one straight line (a job of the broker). There is no undoing here: every
 * resource carries the VM's id, and the broker follows a failure with vm_remove(), which is also what stopping and
 * sweeping are. Only the processes are ended on the spot.
 */
#pragma once
#include "broker/engine.h"
#include "broker/record.h"
#include "host/cgroup.h"
#include "host/jail_filter.h"
#include <jansson.h>

struct vm_start {
    const struct layout *layout;
    const struct settings *settings;
    struct cgroup_root *cgroups;
    const struct jail_filter *filter;
    bool test_mode;                   /* sanitizer options reach space-vm */
    const json_t *config;             /* the node's, for space-vm */
    const struct engine *engine;      /* the host's own */
    const struct engine_entry *known; /* the record's, when this broker has checked it; NULL: to be checked */
};

#define VM_START_TIMEOUT_MS 15000 /* for the jail, twice: until it is ready, and until space-vm runs */
/* The record names the VM, its uid, its machine and its engine; process, vmm_pid, qemu_version and started are filled in on success. ret_qemu:
 * the VMM's path in its root; *ret_times
 * is what each step took: {step: microseconds}. */
int vm_start(const struct vm_start *start, struct vm_record *record, char ret_qemu[ENGINE_PATH_SIZE],
             json_t **ret_times, struct sp_error *err);
