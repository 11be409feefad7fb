/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a space-vm says on control.sock (spec/node-protocol.md §3). It runs beside a hostile guest under its own uid, so its
 * words are bounded and checked like any stranger's. Pure.
 */
#pragma once
#include "base/json.h"
#include "base/random.h"
#include "model/states.h"

#define VM_STATUS_MESSAGE_MAX 32768
#define VM_STATUS_TEXT_MAX 200
#define VM_STATUS_TIMINGS_MAX 24

enum vm_phase {
    VM_PHASE_COMING, /* starting … identifying */
    VM_PHASE_RUNNING,
    VM_PHASE_SAVING,
    VM_PHASE_SAVED,
    VM_PHASE_STOPPING,
    VM_PHASE_FAILED,
};

struct vm_status {
    enum vm_phase phase;
    bool ready;
    uint64_t generation;
    uint64_t vmm_pid;
    char accelerator[8];
    char kernel[8];
    enum failure failure;                 /* VM_PHASE_FAILED */
    char message[VM_STATUS_TEXT_MAX + 1]; /* escaped; "" when none */
    json_t *timings;                      /* {"vm_<step>": ms}; owned */
};

enum vm_message { VM_MESSAGE_STATUS, VM_MESSAGE_PONG, VM_MESSAGE_OTHER };

/* One message of the VM `id`. *ret is filled for STATUS only (vm_status_done it); for PONG *ret_alive says whether the
 * agent answered. */
int vm_message_parse(const char *data, size_t len, const char *id, enum vm_message *ret_kind, struct vm_status *ret,
                     bool *ret_alive, struct sp_error *err);
void vm_status_done(struct vm_status *s); /* safe on a zeroed struct */
