/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the QEMU driver share; nobody outside src/vmm/qemu and its tests includes this. */
#pragma once
#include "vmm/driver.h"
#include "vmm/qemu/qmp.h"

/* files.c: the driver's end of preload_wire.h, a socket that only one of each message ever crosses. */
int qemu_files_wait_held(int sock, struct deadline d, struct sp_error *err);
int qemu_files_give(int sock, int fd_memory, int fd_disk, struct sp_error *err);
/* What the VMM said of its RAM; it has said it by the time it is up. */
int qemu_files_mapped(int sock, struct deadline d, struct vmm_ram *ret, struct sp_error *err);

/* args.c */
int qemu_build_args(const struct machine *m, enum vmm_purpose purpose, struct vmm_args *ret, struct sp_error *err);
/* Whether the version (as QEMU prints it) is at least major.minor; an unreadable one counts as old. */
bool qemu_version_at_least(const char *version, unsigned major, unsigned minor);

/* probe.c */
int qemu_probe(const char *binary, struct deadline d, struct vmm_probe *ret, struct sp_error *err);

/* event.c: false for QMP events nobody acts on. */
bool qemu_event_from_qmp(const struct qmp_event *event, struct vmm_event *ret);
enum vmm_status qemu_status_from_name(const char *name);
/* Whether `info lapic` shows the timer's vector (LVTT) masked for good; false when it shows none. */
bool qemu_lapic_timer_masked(const char *text, bool *ret);
