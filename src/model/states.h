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

enum operation_kind {
    OPERATION_CREATE,
    OPERATION_DELETE,
    OPERATION_PAUSE,
    OPERATION_SUSPEND,
    OPERATION_WAKE,
    OPERATION_SNAPSHOT,
    OPERATION_FORK,
    OPERATION_ROLLBACK,
    OPERATION_KIND_COUNT_
};
/* Who asked for an operation. */
enum operation_reason {
    REASON_CLIENT,
    REASON_IDLE_PAUSE,
    REASON_IDLE_SUSPEND,
    REASON_MAX_LIFE,
    REASON_DELETE_AFTER,
    REASON_CHECKPOINT,
    REASON_TRAFFIC,
    REASON_COUNT_
};
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

enum snapshot_kind {
    SNAPSHOT_NAMED,      /* asked for by a client */
    SNAPSHOT_SUSPEND,    /* what a suspended sandbox wakes from */
    SNAPSHOT_FORK,       /* what children start from */
    SNAPSHOT_CHECKPOINT, /* made by the policy */
    SNAPSHOT_KIND_COUNT_
};
enum snapshot_content {
    CONTENT_FULL, /* memory, devices and disk: whoever starts from it goes on where it was */
    CONTENT_DISK, /* the disk alone: whoever starts from it boots */
    SNAPSHOT_CONTENT_COUNT_
};
enum snapshot_state {
    SNAPSHOT_CREATING, /* its node was asked to make it */
    SNAPSHOT_READY,    /* durable */
    SNAPSHOT_FAILED,
    SNAPSHOT_DELETING, /* its node was asked to remove it */
    SNAPSHOT_STATE_COUNT_
};

/* How a sandbox came to run. */
enum start_kind {
    START_NONE,  /* not said */
    START_WARM,  /* taken from a pool */
    START_BLANK, /* restored into a VMM that stood by */
    START_COLD,
    START_BOOT, /* its kernel booted, on the disk of a snapshot that holds nothing else */
    START_KIND_COUNT_
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
    FAILURE_SNAPSHOT_MISSING,
    FAILURE_GUEST_BUSY,
    FAILURE_PARENT_GONE,
    FAILURE_IO,
    FAILURE_CHILDREN_FAILED, /* of a fork only */
    FAILURE_ENGINE_MISSING,
    FAILURE_ENGINE_BROKEN,
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
const char *operation_reason_name(enum operation_reason r);
bool operation_reason_parse(const char *name, enum operation_reason *ret);
const char *snapshot_kind_name(enum snapshot_kind k);
bool snapshot_kind_parse(const char *name, enum snapshot_kind *ret);
const char *snapshot_content_name(enum snapshot_content c);
bool snapshot_content_parse(const char *name, enum snapshot_content *ret);
const char *snapshot_state_name(enum snapshot_state s);
bool snapshot_state_parse(const char *name, enum snapshot_state *ret);
const char *start_kind_name(enum start_kind k); /* "" for START_NONE */
bool start_kind_parse(const char *name, enum start_kind *ret);
const char *session_state_name(enum session_state s);
bool session_state_parse(const char *name, enum session_state *ret);
const char *failure_name(enum failure f); /* "" for FAILURE_NONE */
/* Unknown names become FAILURE_INTERNAL and false: nodes may be newer than we are. */
bool failure_parse(const char *name, enum failure *ret);
const char *failure_text(enum failure f); /* a sentence for people and the docs */
