/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The closed vocabularies of the model, each a table of names: sandbox, operation and session states, operation kinds,
 * failure codes. The names are what the API, the database and the node protocol say; tests hold them equal.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum sandbox_state {
    SANDBOX_CREATING, /* intent is recorded; a node is chosen or awaited; the VM is being made */
    SANDBOX_RUNNING,
    SANDBOX_PAUSING,
    SANDBOX_PAUSED, /* VM resident, not running */
    SANDBOX_SUSPENDING,
    SANDBOX_SUSPENDED, /* no VM; a durable snapshot */
    SANDBOX_WAKING,
    SANDBOX_DELETING, /* tombstone: nothing but deleted can follow */
    SANDBOX_DELETED,
    SANDBOX_FAILED, /* holds nothing on a host once its node said so */
    SANDBOX_STATE_COUNT_
};

enum operation_kind { OPERATION_CREATE, OPERATION_DELETE, OPERATION_KIND_COUNT_ };
enum operation_state {
    OPERATION_PENDING,   /* accepted; no node has begun */
    OPERATION_RUNNING,   /* a node has begun */
    OPERATION_SUCCEEDED, /* final */
    OPERATION_FAILED,    /* final, with code and message */
    OPERATION_STATE_COUNT_
};

enum session_state {
    SESSION_CREATED, /* never attached: the process does not exist yet */
    SESSION_STARTED,
    SESSION_EXITED,
    SESSION_LOST, /* the sandbox went away before the end of the process was seen */
    SESSION_STATE_COUNT_
};

/* Why a sandbox or an operation failed (`error.code`). */
enum failure {
    FAILURE_NONE,
    FAILURE_NO_CAPACITY,
    FAILURE_TEMPLATE_MISSING,
    FAILURE_SNAPSHOT_BROKEN,
    FAILURE_VMM_FAILED,
    FAILURE_VMM_KILLED,
    FAILURE_GUEST_SILENT,
    FAILURE_GUEST_PROTOCOL,
    FAILURE_HOST_DISK_FULL,
    FAILURE_DEADLINE_EXCEEDED,
    FAILURE_NODE_LOST,
    FAILURE_PROBE_FAILED,
    FAILURE_SUPERSEDED, /* of an operation only: a delete overtook it */
    FAILURE_INTERNAL,
    FAILURE_COUNT_
};

const char *sandbox_state_name(enum sandbox_state s);
bool sandbox_state_parse(const char *name, enum sandbox_state *ret);
const char *operation_kind_name(enum operation_kind k);
bool operation_kind_parse(const char *name, enum operation_kind *ret);
const char *operation_state_name(enum operation_state s);
bool operation_state_parse(const char *name, enum operation_state *ret);
bool operation_is_final(enum operation_state s);
const char *session_state_name(enum session_state s);
bool session_state_parse(const char *name, enum session_state *ret);
const char *failure_name(enum failure f); /* "" for FAILURE_NONE */
/* Unknown names become FAILURE_INTERNAL and false: nodes may be newer than we are. */
bool failure_parse(const char *name, enum failure *ret);
const char *failure_text(enum failure f); /* a sentence for people and the docs */
