/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a VM, and how it outlives the broker: sandboxes/<id>/vm.json. Written by rename without fsync: after
 * a crash of the host no VM is alive and a record that is missing or torn only makes its directory unknown (swept).
 */
#pragma once
#include "base/error.h"
#include "broker/request.h"
#include "host/process.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RECORD_VERSION_SIZE 32

struct vm_record {
    char id[ID_SIZE];
    enum request_mode mode;
    enum request_kernel kernel;
    enum request_accelerator accelerator;
    char template[SHA256_HEX_SIZE]; /* "" for a blank */
    char snapshot[BROKER_KEY_SIZE]; /* what it was started from; "" for a template boot and a blank */
    char base
        [BROKER_KEY_SIZE]; /* what its next snapshot is cloned from: its last one, at first the one it started from */
    char disk_base
        [BROKER_KEY_SIZE]; /* a later one of its disk alone, which tells what of the disk has changed; may be gone */
    char cgroup[ID_SIZE];  /* its control group: the id it was born with, which a spare loses when it is bound */
    char engine[SHA256_HEX_SIZE]; /* whose VMM it runs on; "": of a time before there were bundles */
    char qemu_version[RECORD_VERSION_SIZE];
    bool spoiled; /* a load was begun and not seen to its end: good for nothing but vm_stop */
    unsigned vcpus, memory_mib;
    uid_t uid;
    bool started; /* space-vm was executed; before that the record is of a start that may have been cut off */
    struct process_ref process; /* space-vm */
    pid_t vmm_pid;              /* the stub, later the VMM, as the host sees it */
    uint64_t created_ns;        /* real time */
    char boot_id[PROCESS_BOOT_ID_SIZE];
};

/* Into the open directory of the VM. */
int vm_record_write(int dirfd, const struct vm_record *record, struct sp_error *err);
/* SP_E_CORRUPT for anything that is not a whole record of the VM `id`, or of one that was born as `id`: a spare whose
 * binding was begun is in its old directory with its new id. A blank has mode `blank` until it was loaded, then `clone`. */
int vm_record_read(int dirfd, const char *id, struct vm_record *ret, struct sp_error *err);
