/* SPDX-License-Identifier: Apache-2.0 */
/* Names of states, kinds and failures, one row each. */
#include "model/states.h"
#include "base/text.h"
#include <assert.h>
#include <string.h>

static const char *const sandbox_states[SANDBOX_STATE_COUNT_] = {
    [SANDBOX_CREATING] = "creating", [SANDBOX_RUNNING] = "running",       [SANDBOX_PAUSING] = "pausing",
    [SANDBOX_PAUSED] = "paused",     [SANDBOX_SUSPENDING] = "suspending", [SANDBOX_SUSPENDED] = "suspended",
    [SANDBOX_WAKING] = "waking",     [SANDBOX_DELETING] = "deleting",     [SANDBOX_DELETED] = "deleted",
    [SANDBOX_FAILED] = "failed",
};
static const char *const operation_kinds[OPERATION_KIND_COUNT_] = {
    [OPERATION_CREATE] = "create",   [OPERATION_DELETE] = "delete",     [OPERATION_PAUSE] = "pause",
    [OPERATION_SUSPEND] = "suspend", [OPERATION_WAKE] = "wake",         [OPERATION_SNAPSHOT] = "snapshot",
    [OPERATION_FORK] = "fork",       [OPERATION_ROLLBACK] = "rollback",
};
static const char *const operation_reasons[REASON_COUNT_] = {
    [REASON_CLIENT] = "client",     [REASON_IDLE_PAUSE] = "idle_pause",     [REASON_IDLE_SUSPEND] = "idle_suspend",
    [REASON_MAX_LIFE] = "max_life", [REASON_DELETE_AFTER] = "delete_after", [REASON_CHECKPOINT] = "checkpoint",
    [REASON_TRAFFIC] = "traffic",
};
static const char *const snapshot_kinds[SNAPSHOT_KIND_COUNT_] = {
    [SNAPSHOT_NAMED] = "snapshot",
    [SNAPSHOT_SUSPEND] = "suspend",
    [SNAPSHOT_FORK] = "fork",
    [SNAPSHOT_CHECKPOINT] = "checkpoint",
};
static const char *const snapshot_contents[SNAPSHOT_CONTENT_COUNT_] = {
    [CONTENT_FULL] = "full",
    [CONTENT_DISK] = "disk",
};
static const char *const snapshot_states[SNAPSHOT_STATE_COUNT_] = {
    [SNAPSHOT_CREATING] = "creating",
    [SNAPSHOT_READY] = "ready",
    [SNAPSHOT_FAILED] = "failed",
    [SNAPSHOT_DELETING] = "deleting",
};
static const char *const start_kinds[START_KIND_COUNT_] = {
    [START_NONE] = "", [START_WARM] = "warm", [START_BLANK] = "blank", [START_COLD] = "cold", [START_BOOT] = "boot",
};
static const char *const operation_states[OPERATION_STATE_COUNT_] = {
    [OPERATION_PENDING] = "pending",
    [OPERATION_RUNNING] = "running",
    [OPERATION_SUCCEEDED] = "succeeded",
    [OPERATION_FAILED] = "failed",
};
static const char *const session_states[SESSION_STATE_COUNT_] = {
    [SESSION_CREATED] = "created",
    [SESSION_STARTED] = "started",
    [SESSION_EXITED] = "exited",
    [SESSION_LOST] = "lost",
};
static const struct {
    const char *name, *text;
} failures[FAILURE_COUNT_] = {
    [FAILURE_NONE] = {"", ""},
    [FAILURE_NO_CAPACITY] = {"no_capacity", "no node with room came before the deadline"},
    [FAILURE_TEMPLATE_MISSING] = {"template_missing", "the node does not hold the template's content"},
    [FAILURE_SNAPSHOT_BROKEN] = {"snapshot_broken", "the snapshot failed its integrity check"},
    [FAILURE_VMM_FAILED] = {"vmm_failed", "the virtual machine monitor did not start or reported an error"},
    [FAILURE_VMM_KILLED] = {"vmm_killed", "the virtual machine ended without being asked to"},
    [FAILURE_GUEST_SILENT] = {"guest_silent", "the guest agent did not answer in time"},
    [FAILURE_GUEST_PROTOCOL] = {"guest_protocol", "the guest broke the protocol of its channel"},
    [FAILURE_HOST_DISK_FULL] = {"host_disk_full", "the node's disk is full"},
    [FAILURE_DEADLINE_EXCEEDED] = {"deadline_exceeded", "the operation was not done by its deadline"},
    [FAILURE_NODE_LOST] = {"node_lost", "the node restarted or went away with the sandbox"},
    [FAILURE_PROBE_FAILED] = {"probe_failed", "the template's readiness probe did not pass"},
    [FAILURE_SUPERSEDED] = {"superseded", "the sandbox was deleted before the operation ended"},
    [FAILURE_SNAPSHOT_MISSING] = {"snapshot_missing", "the node does not hold the snapshot"},
    [FAILURE_GUEST_BUSY] = {"guest_busy", "the guest could not be brought to a stop in time"},
    [FAILURE_PARENT_GONE] = {"parent_gone", "what it was to be made from went away first"},
    [FAILURE_IO] = {"io", "reading or writing on the node failed"},
    [FAILURE_CHILDREN_FAILED] = {"children_failed", "children of the fork did not come to run; `children` says which"},
    [FAILURE_ENGINE_MISSING] = {"engine_missing", "the node does not hold the engine that the snapshot was taken with"},
    [FAILURE_ENGINE_BROKEN] = {"engine_broken",
                               "the engine that the snapshot was taken with failed its integrity check"},
    [FAILURE_INTERNAL] = {"internal", "a fault of the platform"},
};

static bool find(const char *const *names, size_t n, const char *name, unsigned *ret) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (unsigned)i;
            return true;
        }
    return false;
}

/* name and parse of one vocabulary */
#define DEFINE_NAMES(type, tag, names)                                                                                 \
    const char *type##_name(enum tag v) {                                                                              \
        assert((unsigned)v < ARRAY_SIZE(names));                                                                       \
        return names[v];                                                                                               \
    }                                                                                                                  \
    bool type##_parse(const char *name, enum tag *ret) {                                                               \
        unsigned i;                                                                                                    \
        if (!find(names, ARRAY_SIZE(names), name, &i))                                                                 \
            return false;                                                                                              \
        *ret = (enum tag)i;                                                                                            \
        return true;                                                                                                   \
    }

DEFINE_NAMES(sandbox_state, sandbox_state, sandbox_states)
DEFINE_NAMES(operation_kind, operation_kind, operation_kinds)
DEFINE_NAMES(operation_state, operation_state, operation_states)
DEFINE_NAMES(operation_reason, operation_reason, operation_reasons)
DEFINE_NAMES(snapshot_kind, snapshot_kind, snapshot_kinds)
DEFINE_NAMES(snapshot_content, snapshot_content, snapshot_contents)
DEFINE_NAMES(snapshot_state, snapshot_state, snapshot_states)
DEFINE_NAMES(start_kind, start_kind, start_kinds)
DEFINE_NAMES(session_state, session_state, session_states)

bool operation_is_final(enum operation_state s) {
    return s == OPERATION_SUCCEEDED || s == OPERATION_FAILED;
}

const char *failure_name(enum failure f) {
    assert((unsigned)f < FAILURE_COUNT_);
    return failures[f].name;
}

const char *failure_text(enum failure f) {
    assert((unsigned)f < FAILURE_COUNT_);
    return failures[f].text;
}

bool failure_parse(const char *name, enum failure *ret) {
    for (size_t i = 0; i < FAILURE_COUNT_; i++)
        if (strcmp(failures[i].name, name) == 0) {
            *ret = (enum failure)i;
            return true;
        }
    *ret = FAILURE_INTERNAL;
    return false;
}
