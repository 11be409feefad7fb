/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays the broker for space-vm without a jail: makes the stub process, descriptors, tap, configuration and files of one
 * VM in a work directory on a reflink file system, and runs VM and VMM under an unprivileged uid. For the tests of the
 * engine and for the raw figures of the benchmarks. Needs root (tap, uid), a kernel profile with its initrd, and a root
 * disk image. Prints what went wrong and ends the program: it is a test tool.
 */
#pragma once
#include "base/json.h"
#include "base/random.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HARNESS_PATH 256

struct harness {
    char work[HARNESS_PATH];     /* on btrfs or xfs; created files stay below it */
    char space_vm[HARNESS_PATH]; /* programs under test */
    char preload[HARNESS_PATH];
    char qemu[HARNESS_PATH];
    char qemu_version[32];
    char kernel[16];             /* profile: stock, lean */
    char kernel_file[HARNESS_PATH];
    char initrd[HARNESS_PATH];
    char disk[HARNESS_PATH];     /* root image of the template */
    char accelerator[8];
    bool acpi;
    uint64_t tsc_khz;
    unsigned vcpus, memory_mib;
    uid_t uid;
    unsigned deadline_ms;
    const char *probe, *start;   /* shell commands, may be NULL */
};

struct harness_vm {
    char id[ID_SIZE];
    char dir[HARNESS_PATH];      /* <work>/<id>: vm/ control.sock guest.sock devices */
    pid_t pid;                   /* space-vm */
    int control;                 /* connected to control.sock, -1 when closed */
    json_t *status;              /* last status event */
};

/* Fills in what follows from --flags (see harness.c), probes QEMU and the TSC. */
void harness_init(struct harness *h, int argc, char **argv);
/* <work>/snapshot-<kernel>-<vcpus>-<memory>: memory, devices, disk.img. Boots the template unless it is there. */
const char *harness_snapshot(struct harness *h, bool fresh);
/* Starts space-vm; with `snapshot` a clone, without a template boot. */
void harness_start(const struct harness *h, struct harness_vm *vm, const char *snapshot);
/* Waits for a status whose state is one of the '|'-separated names; false on time out or end of space-vm. */
bool harness_wait_state(struct harness_vm *vm, const char *states, unsigned timeout_ms);
const char *harness_state(const struct harness_vm *vm);
double harness_timing(const struct harness_vm *vm, const char *step); /* ms, -1 when missing */
pid_t harness_vmm_pid(const struct harness_vm *vm);
/* Sends a request on control.sock and waits for an event of that name (NULL: none). */
json_t *harness_request(struct harness_vm *vm, const char *request, const char *event, unsigned timeout_ms);
/* A stream to a guest port through guest.sock: the descriptor, or -1 with the ERR line in error. */
int harness_connect(const struct harness_vm *vm, unsigned port, char *error, size_t size);
/* Asks the agent for PONG over guest.sock; NULL when it fails. The fields by name. */
json_t *harness_ping(const struct harness_vm *vm);
/* stop, wait for space-vm's end (killed after timeout), remove its files. Returns its exit status, -1 when killed. */
int harness_stop(struct harness_vm *vm);
double harness_now_ms(void);
