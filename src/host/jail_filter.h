/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system call filter every jailed process lives under, from before its first untrusted byte and through exec. It
 * denies (EPERM) what a VMM or space-vm never needs and a break-out would: new namespaces, mounts, tracing, bpf, keys,
 * modules, io_uring, sockets other than AF_UNIX. It is a floor: programs add their own filters on top of it.
 * Built once with libseccomp when the broker starts, loaded as plain BPF in each child.
 */
#pragma once
#include "base/error.h"
#include <linux/filter.h>

#define JAIL_FILTER_MAX 1024
struct jail_filter {
    struct sock_filter code[JAIL_FILTER_MAX];
    struct sock_fprog program; /* points into code: don't copy the struct */
};
int jail_filter_build(struct jail_filter *filter, struct sp_error *err);
/* Needs no_new_privs. 0 or -errno. */
int jail_filter_load(const struct jail_filter *filter);
