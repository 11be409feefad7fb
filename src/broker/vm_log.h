/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of one VM: sandboxes/<id>/vm.log, which space-vm and its VMM write to. A file of its own, because whoever holds
 * a descriptor of it can truncate and overwrite it; what a VM that was taken over can spoil is its own record. When the VM
 * is removed the last lines go, escaped, into log/space-vm.log, which only the broker writes to.
 */
#pragma once
#include "broker/layout.h"

#define VM_LOG_KEPT 8192 /* bytes of a VM's log that outlive it */

/* Creates it in the open directory of the VM; a descriptor for appending. */
int vm_log_create(int dirfd, int *ret_fd, struct sp_error *err);
/* Copies the end of it. A VM without a log is fine. */
int vm_log_keep(const struct layout *layout, const char *id, struct sp_error *err);
