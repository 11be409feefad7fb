/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a space-vm is told at birth. It is started as
 *
 *     space-vm CONFIG_FD STUB_PID
 *
 * CONFIG_FD  a memfd holding one JSON object (≤ 48 KiB), read from offset 0 and closed;
 * STUB_PID   the stub's pid as clone() returned it in the process that becomes space-vm (which is the stub's parent).
 *
 * {"broker": {                    what the broker checked or made itself
 *    "id": "sbx_…"|"tpb_…"|"spr_…", "mode": "clone"|"template_boot"|"blank"|"boot",
 *    "kernel": "stock"|"lean", "accelerator": "tcg"|"kvm", "vcpus": 1..32, "memory_mib": 64..262144,
 *    "qemu": "/usr/bin/qemu-system-x86_64",          path in the VMM's root
 *    "qemu_version": "7.2.22",                       of that one: a restore's may be older than the host's
 *    "vm_dir": "/vm",                                directory in the VMM's root, see below
 *    "fds": {"control": N, "guest": N, "stub": N, "tap": N, "memory": N, "disk": N, "devices": N} },
 *  "config": {                    vm_start's `config`, handed on as it is; see struct vm_config for the limits
 *    "acpi": bool, "tsc_khz": N, "cpu_model": "max"?,
 *    "generation": N, "identity": {"hostname": "...", "machine_id": "<32 hex>", "env": ["K=V", ...]},
 *    "output_window": bytes, "session_retention_ms": N?, "probe": {"argv": [...], "user": "...", "timeout_ms": N}?,
 *    "start": {"argv": [...], "user": "...", "env": ["K=V", ...], "cwd": "/"}?, "deadline_ms": N } }
 *
 * Unknown keys are refused in both objects. A blank's config has no generation and no identity: they come with `load`,
 * whose config is whole and must name the same machine (acpi, cpu_model).
 *
 * Descriptors, all inherited (CLOEXEC cleared), everything else closed by the broker; 0, 1, 2 are open: 0 and 1 may be
 * /dev/null, 2 is the log (JSON lines):
 *   control  listening SOCK_SEQPACKET   run/vm/<id>/control.sock
 *   guest    listening SOCK_STREAM      run/vm/<id>/guest.sock
 *   stub     connected SOCK_SEQPACKET   vmm/stub.h
 *   tap      one queue, IFF_TAP | IFF_NO_PI | IFF_VNET_HDR (always VNET_HDR: a snapshot only loads with the same), down
 *   memory   clone: the snapshot's memory, O_RDONLY (a writable one is refused). template_boot: a file of exactly
 *            memory_mib MiB (sparse), O_RDWR, on the reflink file system. boot: such a file, O_RDONLY (it stays empty)
 *   disk     the VM's own image, O_RDWR
 *   devices  clone: the snapshot's `devices`, O_RDONLY. template_boot: sandboxes/<id>/devices, empty, O_WRONLY. A boot has none
 * memory, disk and devices are absent for a blank and come with `load`, as SCM_RIGHTS in this order, of the kinds of a
 * clone. `snapshot` brings two: memory, a clone of the base's, O_RDWR; devices, empty, O_WRONLY. All of them go on to the
 * VMM by descriptor (vmm/preload_wire.h): neither jail needs a path to one. Their owner and mode matter to nobody here.
 *
 * <vm_dir> in the VMM's root, owned by root, not writable by the VM's uid. `disk.img` and `memory` in it are names the
 * VMM is told and never reach the file system: nothing needs to be there.
 *   kernel, initrd   template_boot and boot, 0444
 *   preload.so       libexec/space/space-vmm-preload.so, 0444; in every mode
 *
 * space-vm needs /proc of its own pid namespace (subset=pid, read-only): it opens the VMM's pagemap and mem before it
 * drops to its system call filter.
 *
 * space-vm needs no path after exec: it may sit in an empty read-only root, but needs no_new_privs-compatible exec only.
 * Its uid is the VMM's, so that it may signal it and later read its memory. It raises no limit. When space-vm dies the
 * kernel kills the VMM (PDEATHSIG of the stub); when the VMM dies space-vm goes to `failed` and stays for its reason.
 * SIGTERM to space-vm: the same as the request `stop`.
 *
 * template_boot ends with `saved`: memory is in `memory` (page cache; sealing does the fsync), device state in
 * `devices`, the disk is clean of VMM writes, the VMM is gone; space-vm exits 0 once a control client has seen `saved`
 * and hung up, or after 10 s.
 */
#pragma once
#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VM_CONFIG_MAX (48 * 1024)
#define VM_CONFIG_ARGS_MAX 64     /* entries of an argv */
#define VM_CONFIG_ENV_MAX 128     /* entries of an env */
#define VM_CONFIG_STRING_MAX 4096 /* bytes of one entry */
#define VM_CONFIG_VCPUS_MAX 32
#define VM_CONFIG_MEMORY_MIB_MIN 64
#define VM_CONFIG_MEMORY_MIB_MAX 262144
#define VM_CONFIG_DEADLINE_MS_MAX 3600000

enum vm_mode { VM_MODE_CLONE, VM_MODE_TEMPLATE_BOOT, VM_MODE_BLANK, VM_MODE_BOOT };

struct vm_command {
    char **argv; /* NULL-ended; NULL: no command */
    char **env;  /* NULL-ended, never NULL when argv is not */
    char *user;  /* never NULL when argv is not; default "root" */
    char *cwd;   /* default "/" */
    uint64_t timeout_ms;
};

struct vm_config {
    /* broker */
    char id[ID_SIZE];
    enum vm_mode mode;
    char kernel[8];
    char accelerator[8];
    unsigned vcpus;
    unsigned memory_mib;
    char qemu[256];
    char qemu_version[32];
    char vm_dir[128];
    int fd_control, fd_guest, fd_stub, fd_tap;
    int fd_memory, fd_disk, fd_devices; /* -1: a blank has none yet, a boot no devices */
    /* node */
    bool acpi;
    uint64_t tsc_khz; /* 0: unknown, left out of the kernel's command line */
    char cpu_model[64];
    uint64_t generation;
    char hostname[65];
    char machine_id[33];
    char **env; /* NULL-ended, never NULL */
    uint64_t output_window;
    uint64_t session_retention_ms; /* 0: the agent's own default */
    struct vm_command probe;       /* template_boot: run until it passes */
    struct vm_command start;       /* template_boot, boot: started once, left running */
    uint64_t deadline_ms;          /* from space-vm's start to `running` or `saved` */
};

/* Parses and checks everything above; on failure *ret is zeroed and err names the field. */
int vm_config_parse(const char *json, size_t len, struct vm_config *ret, struct sp_error *err);
/* Reads the whole memfd and parses it. Does not close fd. */
int vm_config_read(int fd, struct vm_config *ret, struct sp_error *err);
/* Parses the node's half alone, `config` of the request `load`, into what a blank was started with: the machine it names
 * must be the blank's. Only the fields under "node" change; on failure none does. */
int vm_config_load(struct vm_config *c, const json_t *config, struct sp_error *err);
/* The identity of `identify`: {hostname, machine_id, env[]} replaces the one in c, or nothing changes. */
int vm_config_identity(struct vm_config *c, const json_t *identity, struct sp_error *err);
void vm_config_done(struct vm_config *config);
const char *vm_mode_name(enum vm_mode mode);
