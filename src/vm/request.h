/* SPDX-License-Identifier: Apache-2.0 */
/* What may be asked on control.sock (spec/node-protocol.md §3), as values: parsing without a VM. */
#pragma once
#include "base/error.h"
#include "base/json.h"
#include "base/random.h"

#define VM_MESSAGE_MAX (48 * 1024) /* one message on control.sock, either way */
#define REQUEST_FDS_MAX 3
#define REQUEST_NAME_SIZE 80

enum request_kind {
    REQUEST_NONE,
    REQUEST_PING,
    REQUEST_CONSOLE,
    REQUEST_STOP,
    REQUEST_PAUSE,
    REQUEST_RESUME,
    REQUEST_IDENTIFY,
    REQUEST_LOAD,
    REQUEST_SNAPSHOT,
    REQUEST_SNAPSHOT_STOP,
    REQUEST_SNAPSHOT_GO,
    REQUEST_SNAPSHOT_COMMITTED,
};

struct request {
    enum request_kind kind;
    uint64_t seq;
    char id[ID_SIZE];                 /* identify; load: "" keeps the blank's */
    char snapshot[REQUEST_NAME_SIZE]; /* load, snapshot, snapshot_committed */
    bool stop;                        /* snapshot: then stop */
    bool disk_alone;                  /* snapshot: memory and device state are not wanted */
    bool warm;                        /* load */
    uint64_t generation;              /* identify */
    uint64_t session_retention_ms;    /* identify; 0: as it was */
    json_t *body;                     /* load: config; identify: identity. A reference of its own */
};

/* One message with that many descriptors from root or not. On failure *ret is zeroed and the connection is to be closed:
 * such a message may not be sent. */
int request_parse(const char *text, size_t len, size_t n_fds, bool is_root, struct request *ret, struct sp_error *err);
void request_done(struct request *request);
