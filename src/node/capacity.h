/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the node has for sandboxes, and whether one more may be admitted. The sum of what sandboxes were promised never
 * passes the host's memory less a reserve, and none is started on a host that has not that much free now.
 */
#pragma once
#include "base/json.h"
#include "model/settings.h"
#include "model/states.h"

#define CAPACITY_VCPU_OVERCOMMIT 4u     /* vCPUs of one sandbox per CPU of the host; vCPUs are shared */
#define CAPACITY_VM_OVERHEAD_MIB 64u    /* of the VMM itself, for each sandbox */
#define CAPACITY_SPARE_RESIDENT_MIB 16u /* what a spare holds of the host's memory, at the least */

struct capacity {
    unsigned vcpus;      /* largest sandbox */
    uint64_t memory_mib; /* for all sandboxes */
    uint64_t disk_free_mib, memory_available_mib;
    unsigned max_sandboxes;
};
struct capacity_use {
    unsigned sandboxes;
    uint64_t memory_mib; /* promised, overhead included */
};

/* A line "Name:  123 kB" of /proc/meminfo, in MiB. */
int capacity_meminfo(const char *name, uint64_t *ret_mib, struct sp_error *err);
int capacity_meminfo_parse(const char *text, const char *name, uint64_t *ret_mib, struct sp_error *err);
/* Reads /proc/meminfo and the store's file system now. */
int capacity_measure(const struct settings *s, unsigned cpus, uint64_t memory_total_mib, struct capacity *ret,
                     struct sp_error *err);
/* FAILURE_NONE, or why not, with a sentence. Pure. */
enum failure capacity_admit(const struct capacity *c, const struct settings *s, const struct capacity_use *use,
                            unsigned vcpus, unsigned memory_mib, char *message, size_t size);
/* {vcpus, memory_mib, disk_mib, max_sandboxes} as control is told. */
json_t *capacity_json(const struct capacity *c, const struct settings *s);
