/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's decision for one sandbox, as a pure function of what control wants and what is here. Level-triggered: it may
 * be asked at any time, any number of times.
 */
#pragma once
#include "node/desired.h"

enum local_state {
    LOCAL_NONE,   /* nothing known here */
    LOCAL_COMING, /* on its way to running */
    LOCAL_RUNNING,
    LOCAL_PAUSED,
    LOCAL_BUSY,      /* a lifecycle activity is going on; what it ends in decides what comes next */
    LOCAL_STOPPING,  /* on its way out */
    LOCAL_SUSPENDED, /* nothing on the host but its snapshot */
    LOCAL_FAILED,    /* nothing on the host, reason kept */
    LOCAL_DELETED,   /* nothing on the host */
};

enum reconcile_action {
    RECONCILE_NOTHING,
    RECONCILE_START,     /* make it run */
    RECONCILE_RESTART,   /* another generation is wanted: end this one, then start */
    RECONCILE_PAUSE,     /* make it stand still */
    RECONCILE_RESUME,    /* make it go on */
    RECONCILE_SUSPEND,   /* make the snapshot, then end it */
    RECONCILE_SNAPSHOT,  /* make the snapshot, leave it as it is */
    RECONCILE_COPY,      /* the same of one that is suspended: out of its own snapshot */
    RECONCILE_REST,      /* nothing is here and nothing is to be: it is suspended */
    RECONCILE_PUT_BACK,  /* control gave the start of a suspended one up: end its VM, it is suspended as before */
    RECONCILE_LOOK,      /* nothing is here of one that was to be suspended: is its snapshot? */
    RECONCILE_DELETE,    /* end it and say deleted */
    RECONCILE_LOST,      /* control saw it running, it is not here: failed */
    RECONCILE_SAY_AGAIN, /* control's record differs from what is here: report it once more */
    RECONCILE_FORGET,    /* nobody wants it and nothing is left */
    RECONCILE_ACTION_COUNT_
};

struct local {
    enum local_state state;
    uint64_t generation;     /* 0: not known yet (an adopted VM that has not spoken) */
    bool operation_failed;   /* the operation that is on its way failed here, and left it well */
    bool snapshot_known;     /* the snapshot that is wanted is being made, was made, or could not be */
    bool snapshot_unsettled; /* … and control has not taken note of its end */
};

/* d NULL: the sandbox is not in control's list. */
enum reconcile_action reconcile(const struct desired *d, const struct local *local);
const char *reconcile_action_name(enum reconcile_action action);
