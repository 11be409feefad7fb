/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything vm_start does to the host, in one straight line (a job of the broker). There is no undoing here: every
 * resource carries the VM's id, and the broker follows a failure with vm_remove(), which is also what stopping and
 * sweeping are. Only the processes are ended on the spot.
 */
#pragma once
#include "broker/layout.h"
#include "broker/record.h"
#include "host/cgroup.h"
#include "host/jail_filter.h"
#include <jansson.h>

struct vm_start {
    const struct layout *layout;
    const struct settings *settings;
    struct cgroup_root *cgroups;
    const struct jail_filter *filter;
    bool test_mode;       /* sanitizer options reach space-vm */
    const json_t *config; /* the node's, for space-vm */
};

#define VM_START_TIMEOUT_MS 15000 /* for the jail, twice: until it is ready, and until space-vm runs */
/* The record names the VM, its uid and its machine; process, vmm_pid and started are filled in on success, and *ret_times
 * is what each step took: {step: microseconds}. */
int vm_start(const struct vm_start *start, struct vm_record *record, json_t **ret_times, struct sp_error *err);
