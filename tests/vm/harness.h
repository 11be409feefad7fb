/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays the broker for space-vm without a jail: makes the stub process, descriptors, tap, configuration and files of one
 * VM in a work directory on a reflink file system, and runs VM and VMM under an unprivileged uid. For the tests of the
 * engine and for the raw figures of the benchmarks. Needs root (tap, uid, loop mount). Prints what went wrong and ends
 * the program: it is a test tool. Leaves nothing: its work directory goes at exit, unless --work named one.
 */
#pragma once
#include "base/json.h"
#include "base/random.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HARNESS_PATH 256

struct harness {
    char work[HARNESS_PATH];       /* on btrfs or xfs; created files stay below it */
    char libexec[HARNESS_PATH];    /* the programs under test */
    char kernel_dir[HARNESS_PATH]; /* of one profile */
    char rootfs[HARNESS_PATH], disk[HARNESS_PATH], initrd[HARNESS_PATH], qemu[HARNESS_PATH];
    char probe[HARNESS_PATH], start[HARNESS_PATH]; /* shell commands, "" for none */
    char accelerator[8], cpu_model[64];
    unsigned vcpus, memory_mib, deadline_ms, store_mib, runs;
    bool no_userfaultfd; /* VMMs are refused it, as by an older kernel */
    /* found out: */
    char space_vm[HARNESS_PATH], preload[HARNESS_PATH], kernel_file[HARNESS_PATH];
    char kernel[16]; /* profile: stock, lean */
    char qemu_version[32];
    bool acpi;
    uint64_t tsc_khz;
    uid_t uid;
};

struct harness_vm {
    char id[ID_SIZE];
    char dir[HARNESS_PATH]; /* <work>/<id>: vm/ control.sock guest.sock devices */
    pid_t pid;              /* space-vm */
    int control;            /* connected to control.sock, -1 when closed */
    int tap;                /* made ahead by harness_new */
    bool blank;             /* started without files, for harness_load */
    bool boots;             /* a sandbox that boots on its snapshot's disk alone */
    json_t *status;         /* last status event */
};

/* harness.c */
_Noreturn void harness_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
const char *harness_path(char dst[HARNESS_PATH], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
double harness_now_ms(void);
void harness_make_dir(const char *dir, mode_t mode, uid_t uid);
void harness_reflink(const char *from, const char *to, mode_t mode, uid_t uid);
/* Reads --flags, looks at profile, VMM and TSC, prepares the work directory. */
void harness_init(struct harness *h, int argc, char **argv);
/* <work>/snapshot-<kernel>-<vcpus>-<memory>: memory, devices, disk.img. Boots the template unless it is there. */
const char *harness_snapshot(struct harness *h, bool fresh);
/* Opens the files of a snapshot for a VM: its own disk, reflinked; memory, disk and devices as `load` brings them. */
void harness_open_snapshot(const struct harness *h, const struct harness_vm *vm, const char *snapshot, int fds[3]);
/* The node's half of a configuration. */
json_t *harness_config(const struct harness *h, bool template_boot);
/* What the product would have ready in a slot: id and tap. */
void harness_new(struct harness_vm *vm, bool clone, const char *work);
/* Makes the files and starts space-vm; with `snapshot` a clone, without a template boot, or a blank when vm->blank. */
void harness_start(const struct harness *h, struct harness_vm *vm, const char *snapshot);
/* stop, wait for space-vm's end (killed after 20 s), remove its files. Returns its exit status, -1 when killed. */
int harness_stop(struct harness_vm *vm);

/* prepare.c: work directory, disk image and initrd. */
void harness_prepare(struct harness *h);

/* snapshot.c: the broker's part of snapshots. */
struct harness_snapshot {
    char dir[HARNESS_PATH]; /* memory, devices, disk.img; whole when `ok` */
    bool ok;
    char code[32]; /* why not */
    long pages, stall_us;
    double total_ms, ahead_ms; /* ahead: until `copied` */
};
/* `then`: resume, stop, or disk: of the disk alone, and it goes on. A base without memory is that of a VM that booted.
 * Where the exchange is given up: NULL or "connected", "copied", "stopped", "gone" (after snapshot_go was sent); or
 * the VMM is "killed while it runs" (after copied) or "killed while it stands". */
void harness_take_snapshot(const struct harness *h, struct harness_vm *vm, const char *base, const char *name,
                           const char *then, const char *give_up, struct harness_snapshot *ret);

/* talk.c */
int harness_control_connect(const struct harness_vm *vm);
/* Waits for a status whose state is one of the '|'-separated names; false on time out or end of space-vm. */
bool harness_wait_state(struct harness_vm *vm, const char *states, unsigned timeout_ms);
const char *harness_state(const struct harness_vm *vm);
double harness_timing(const struct harness_vm *vm, const char *step); /* ms, -1 when missing */
pid_t harness_vmm_pid(const struct harness_vm *vm);
/* Sends a request on control.sock and waits for an event of that name (NULL: none). */
json_t *harness_request(struct harness_vm *vm, const char *request, const char *event, unsigned timeout_ms);
/* Any message, with descriptors, which stay the caller's; takes it over. */
void harness_send(struct harness_vm *vm, json_t *message, const int *fds, size_t n_fds);
/* The next event of that name (NULL: any) whose `seq` is it (negative: any); NULL when time is up or the connection ends. */
json_t *harness_wait_event(struct harness_vm *vm, const char *event, long seq, unsigned timeout_ms);
/* A lifecycle request and its `done`; takes the request (without seq) over. NULL: none came. */
json_t *harness_operate(struct harness_vm *vm, json_t *request, const int *fds, size_t n_fds);
/* A stream to a guest port through guest.sock: the descriptor, or -1 with the ERR line in error. */
int harness_connect(const struct harness_vm *vm, unsigned port, char *error, size_t size);
/* Runs a shell command in the guest as root and waits for its end: exit code, or -1. `out` gets its output, cut to size. */
int harness_run(const struct harness_vm *vm, const char *command, char *out, size_t size);
/* Asks the agent for PONG over guest.sock; NULL when it fails: {clocksource, generation}. */
json_t *harness_ping(const struct harness_vm *vm);
