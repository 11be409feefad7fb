/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a fork of the broker to a jailed space-vm with its VMM stub:
 *
 *   job (root) ── J: own pid, mount, ipc, uts and network namespaces; becomes space-vm, pid 1 of its namespace
 *                  └─ stub: its own ones again, below J's; pid 1 of its namespace; becomes the VMM
 *
 * The stub's pid namespace is inside J's, so the end of space-vm is the end of the VMM by the kernel's own rule, and
 * the VMM can neither see nor signal space-vm. Both report over one socket; J executes space-vm only after the job has
 * said so. If the job (or the broker) dies before, both see end of file and exit.
 */
#pragma once
#include "base/clock.h"
#include "broker/record.h"
#include "host/cgroup.h"
#include "host/jail_filter.h"

struct vm_child_plan {
    const struct vm_record *record;
    const struct cgroup_entry *cgroup;
    const struct jail_filter *filter;
    const char *scratch;         /* where roots are built */
    const char *log_level;       /* for space-vm's environment */
    bool pass_sanitizer_options; /* *SAN_OPTIONS too: test builds */
    uint64_t disk_size;          /* 0: not known yet, a blank */
    /* Borrowed descriptors. */
    int null, log, control, guest, config;
    int memory, disk, devices; /* -1 for a blank; devices: for a boot too */
    int program;               /* space-vm */
    bool program_static;
    const char *usr, *lib64; /* of the engine: all the VMM has of a host */
    int kernel, initrd,
        preload; /* mounts (jail_file_mount) that appear in the VMM's root; the first two of a boot only */
};

/* Numbers the descriptors have in space-vm; 0 and 1 are /dev/null, 2 is the log. */
enum vm_child_fd {
    VM_FD_CONTROL = 3,
    VM_FD_GUEST,
    VM_FD_STUB,
    VM_FD_TAP,
    VM_FD_CONFIG,
    VM_FD_COUNT_BLANK, /* where a blank's end */
    VM_FD_MEMORY = VM_FD_COUNT_BLANK,
    VM_FD_DISK,
    VM_FD_COUNT_BOOT, /* where a boot's end */
    VM_FD_DEVICES = VM_FD_COUNT_BOOT,
    VM_FD_COUNT_
};
#define VM_CHILD_DIR "/vm" /* in the VMM's root */

struct vm_child {
    pid_t pid; /* J */
    int pidfd;
    int sync;      /* to both children */
    int program;   /* what it will run; borrowed from the plan */
    pid_t vmm_pid; /* the stub, once it has reported */
};

void vm_child_init(struct vm_child *child); /* descriptors -1 */
int vm_child_fork(const struct vm_child_plan *plan, struct vm_child *ret, struct sp_error *err);
/* Waits until both are jailed, or fails with what one of them reports. */
int vm_child_wait_ready(struct vm_child *child, struct deadline deadline, struct sp_error *err);
/* Lets J execute space-vm, waits until it has. */
int vm_child_release(struct vm_child *child, struct deadline deadline, struct sp_error *err);
/* Kills and reaps J if it is there, closes everything. */
void vm_child_kill(struct vm_child *child);
/* Leaves it running, closes everything. */
void vm_child_leave(struct vm_child *child);
