/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a space-vm says on control.sock (spec/node-protocol.md §3). It runs beside a hostile guest under its own uid, so its
 * words are bounded and checked like any stranger's. Pure.
 */
#pragma once
#include "base/json.h"
#include "base/random.h"
#include "model/states.h"

#define VM_STATUS_MESSAGE_MAX 49152
#define VM_STATUS_TEXT_MAX 200
#define VM_STATUS_TIMINGS_MAX 24
#define VM_STATUS_STREAMS_MAX 4096

enum vm_phase {
    VM_PHASE_UNKNOWN, /* it has not spoken; never parsed */
    VM_PHASE_COMING,  /* starting … identifying */
    VM_PHASE_BLANK,
    VM_PHASE_WARM,
    VM_PHASE_RUNNING,
    VM_PHASE_PAUSING,
    VM_PHASE_PAUSED,
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
    uint64_t streams, active_ns; /* open now; when the last one was, real time, 0: never */
    char accelerator[8];
    char kernel[8];
    char vmm[48];                         /* "qemu 7.2.22"; "" from one of a time before it was said */
    char snapshot[ID_SIZE];               /* taken while it has stood still since; "" none */
    enum failure failure;                 /* VM_PHASE_FAILED */
    char message[VM_STATUS_TEXT_MAX + 1]; /* escaped; "" when none */
    json_t *timings;                      /* {"vm_<step>": ms}; owned */
};

/* The answer to a lifecycle request. */
struct vm_done {
    uint64_t seq;
    bool ok;
    enum failure failure; /* !ok */
    char message[VM_STATUS_TEXT_MAX + 1];
    json_t *timings; /* owned */
};

enum vm_message_kind { VM_MESSAGE_STATUS, VM_MESSAGE_PONG, VM_MESSAGE_DONE, VM_MESSAGE_OTHER };

struct vm_message {
    enum vm_message_kind kind;
    struct vm_status status; /* STATUS */
    struct vm_done done;     /* DONE */
    bool alive;              /* PONG: the agent answered */
};

/* One message of the VM `id`, which calls itself so, or by the id of the spare it was. *ret is to be vm_message_done(). */
int vm_message_parse(const char *data, size_t len, const char *id, struct vm_message *ret, struct sp_error *err);
void vm_message_done(struct vm_message *m); /* safe on a zeroed struct */
