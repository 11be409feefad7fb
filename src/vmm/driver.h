/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual machine monitor as space-vm sees it. One folder a driver (qemu/; firecracker/ later) and one table each.
 *
 * The driver decides the VMM's command line and speaks its control protocol; it never makes a jail (the broker did),
 * never opens a path (everything comes by descriptor or is named inside the VMM's root), and never interprets guest
 * bytes. Every call that waits takes a deadline. A VMM is untrusted once its guest has run: what it says on the control
 * connection is parsed with bounds, and its death or silence is an error of the call, never a hang.
 *
 * A VMM is started before its files are known: it stands still, held, until it is given its RAM file and its disk.
 *
 * Order for a boot:    start → wait_held → give_files → wait_up → (VM runs) …
 * Order for a restore: start → wait_held → give_files → wait_up → load (VM stopped) → cont → …
 * Snapshot of a VM that goes on: stop → save → cont, as often as one likes.
 */
#pragma once
#include "base/clock.h"
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The machine: everything that decides the VMM's command line. A snapshot loads only into the same one, except for
 * what vm_dir holds, the id, and how it starts. Strings are borrowed. */
struct machine {
    const char *id;          /* shown in the process list */
    const char *binary;      /* absolute path in the VMM's root */
    const char *version;     /* of that binary: "7.2.22" */
    const char *accelerator; /* "tcg" or "kvm" */
    const char *cpu_model;   /* NULL or "": the driver's choice for the accelerator */
    const char *vm_dir;      /* directory in the VMM's root: kernel initrd preload.so (vm/vm_config.h) */
    unsigned vcpus;
    unsigned memory_mib;
    bool acpi;        /* what the kernel profile needs */
    uint64_t tsc_khz; /* 0: left to the guest's own calibration */
};
enum vmm_purpose {
    VMM_BOOT,         /* kernel and initrd are loaded, RAM is the shared file itself */
    VMM_BOOT_PRIVATE, /* the same, but RAM is a private view of the file, opened read-only */
    VMM_RESTORE,      /* waits for a device state; RAM is a private view likewise */
};

/* Numbers the VMM's descriptors have in the VMM; the driver's argv names them. 0 is an empty stdin, 1 and 2 the log. */
enum vmm_fd {
    VMM_FD_CONTROL = 3,
    VMM_FD_GUEST = 4,
    VMM_FD_CONSOLE = 5,
    VMM_FD_TAP = 6,
    VMM_FD_FILES = 7,
    VMM_FD_COUNT_ = 8
};

#define VMM_ARGS_MAX 96
#define VMM_ENV_MAX 8
struct vmm_args {
    char *argv[VMM_ARGS_MAX + 1]; /* heap, NULL-ended */
    size_t argc;
    char *env[VMM_ENV_MAX + 1]; /* heap, NULL-ended */
    size_t n_env;
};
void vmm_args_done(struct vmm_args *args);
#define _cleanup_vmm_args_ __attribute__((cleanup(vmm_args_done)))

/* What a VMM binary on this host offers. */
struct vmm_probe {
    char version[32];
    bool tcg, kvm; /* usable here: built in, and for kvm /dev/kvm opens */
};

enum vmm_status {
    VMM_STATUS_INCOMING, /* waits for, or is loading, a device state */
    VMM_STATUS_STOPPED,  /* vCPUs stand still, memory and disk are quiet */
    VMM_STATUS_RUNNING,
    VMM_STATUS_STALLED, /* stopped by itself on a host I/O error, cont tries again */
    VMM_STATUS_OTHER,
};
enum vmm_event_kind {
    VMM_EVENT_SHUTDOWN, /* the guest powered off, reset, or the host asked: the VMM is about to exit */
    VMM_EVENT_RESET,
    VMM_EVENT_STOPPED,
    VMM_EVENT_RESUMED,
    VMM_EVENT_IO_ERROR, /* host disk; `no_space` and `stopped` say which and whether the VM now stands still */
    VMM_EVENT_PANIC,
};
struct vmm_event {
    enum vmm_event_kind kind;
    bool by_guest;
    bool no_space;
    bool stopped;
    char detail[64]; /* escaped */
};

/* Where the VMM's process has the guest's RAM, known once it is up. Only the VMM's word: whoever uses it reads what is
 * there, and a wrong one spoils the VM's own snapshots and nothing else. */
struct vmm_ram {
    uint64_t address, length; /* length 0: not known */
    int fd_uffd;              /* a userfaultfd of the VMM with WP_ASYNC, nothing registered; -1: the host has none */
};

struct vmm_driver;
/* A started VMM. The drivers embed it first; descriptors belong to it until free. */
struct vmm {
    const struct vmm_driver *driver;
    int fd_control; /* readable: call pump */
    int fd_guest;   /* the guest channel, non-blocking byte stream */
    int fd_console; /* guest's serial console output, non-blocking; input is never sent */
    int fd_log;     /* the VMM's own stdout and stderr, non-blocking, end of file at its death */
    struct vmm_ram ram;
};
struct vmm_start {
    struct machine machine;
    enum vmm_purpose purpose;
    int fd_stub; /* vmm/stub.h */
    int fd_tap;
};

struct vmm_driver {
    const char *name;
    /* Asks a binary in this process's own root; for the node, `space doctor` and tests, never for a jail. */
    int (*probe)(const char *binary, struct deadline d, struct vmm_probe *ret, struct sp_error *err);
    /* Pure: no file is opened, no state kept. ret is zeroed on failure. */
    int (*build_args)(const struct machine *m, enum vmm_purpose purpose, struct vmm_args *ret, struct sp_error *err);
    /* Makes the socketpairs, hands them with the argv to the stub, waits until exec happened. */
    int (*start)(const struct vmm_start *start, struct deadline d, struct vmm **ret, struct sp_error *err);
    /* Until it stands where it needs its files; nothing of a guest has run. */
    int (*wait_held)(struct vmm *v, struct deadline d, struct sp_error *err);
    /* Once. RAM: O_RDWR for VMM_BOOT, else O_RDONLY; the disk O_RDWR. Both stay the caller's. */
    int (*give_files)(struct vmm *v, int fd_memory, int fd_disk, struct deadline d, struct sp_error *err);
    /* Until the control connection answers; v->ram is known then. */
    int (*wait_up)(struct vmm *v, struct deadline d, struct sp_error *err);
    /* Loads a device state from fd (read from its position to the end); the VM stays stopped. A state that does not fit
     * may also kill the VMM: SP_E_VMM either way. */
    int (*load)(struct vmm *v, int fd, struct deadline d, struct sp_error *err);
    /* Saves the device state of a stopped VM into fd (O_WRONLY, empty). No RAM. The VM may go on afterwards, and be saved
     * again. */
    int (*save)(struct vmm *v, int fd, struct deadline d, struct sp_error *err);
    int (*stop)(struct vmm *v, struct deadline d, struct sp_error *err);
    int (*cont)(struct vmm *v, struct deadline d, struct sp_error *err);
    /* Machine reset, into a new boot of the same kernel (not VMM_RESTORE). */
    int (*reset)(struct vmm *v, struct deadline d, struct sp_error *err);
    /* Whether the guest's clock events come from the local APIC of vCPU 0. A guest that booted on a busy host may have
     * found it unreliable and fallen back to a PIT, which wakes it and the host four times as often for ever. */
    int (*timer_is_apic)(struct vmm *v, struct deadline d, bool *ret, struct sp_error *err);
    /* Asks the VMM to end and flush; whoever holds the pidfd waits. */
    int (*quit)(struct vmm *v, struct deadline d, struct sp_error *err);
    int (*status)(struct vmm *v, struct deadline d, enum vmm_status *ret, struct sp_error *err);
    /* Takes in what is readable on fd_control without waiting. SP_E_GONE: the VMM closed it. */
    int (*pump)(struct vmm *v, struct sp_error *err);
    /* Oldest event taken in by pump or by any call; false when there is none. Bounded: over the bound the oldest STOPPED
     * and RESUMED go first and are not missed. */
    bool (*next_event)(struct vmm *v, struct vmm_event *ret);
    void (*free)(struct vmm *v); /* closes the descriptors; does not kill */
};
extern const struct vmm_driver qemu_driver;

/* The host's TSC frequency in kHz (x86-64), 0 when there is none that ticks at a constant rate. Asks sysfs, cpuid leaves
 * 0x15 and 0x40000010, else measures for about 60 ms; the caller keeps the result. Goes into every guest's command line,
 * and into a snapshot's manifest. */
uint64_t host_tsc_khz(void);
