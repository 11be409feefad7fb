/* SPDX-License-Identifier: Apache-2.0 */
/* The files a VM works on: a disk of its own, reflinked from its source; memory and device state of a snapshot, which are
 * never copied, because clones share their page cache. All are handed to space-vm by descriptor. */
#pragma once
#include "broker/layout.h"
#include "broker/record.h"

/* Refuses a snapshot that is not what it was (quick check), and one of another template or content. */
int vm_files_check(const struct layout *layout, const char *snapshot, const char *template,
                   enum request_content content, struct sp_error *err);
/* A file of a snapshot. */
int vm_files_open(const struct layout *layout, const char *snapshot, const char *name, int flags, int *ret_fd,
                  struct sp_error *err);
/* A new file of the VM's own, in its open directory. */
int vm_files_create(int dir, const struct vm_record *record, const char *name, int flags, int *ret_fd,
                    struct sp_error *err);
/* What a VM that boots has for RAM: an empty file of that size, which nobody holds writable. */
int vm_files_empty_memory(int dir, const struct vm_record *record, int *ret_fd, struct sp_error *err);
/* The VM's disk: of the record's snapshot, or of its template when there is none. */
int vm_files_disk(const struct layout *layout, int dir, const struct vm_record *record, int *ret_fd, uint64_t *ret_size,
                  struct sp_error *err);
