/* SPDX-License-Identifier: Apache-2.0 */
/* The decision table. Unit tests go through every row. */
#include "node/reconcile.h"
#include <string.h>

static const char *const names[] = {
    [RECONCILE_NOTHING] = "nothing", [RECONCILE_START] = "start", [RECONCILE_RESTART] = "restart",
    [RECONCILE_DELETE] = "delete",   [RECONCILE_LOST] = "lost",   [RECONCILE_SAY_AGAIN] = "say",
    [RECONCILE_FORGET] = "forget",
};

const char *reconcile_action_name(enum reconcile_action action) {
    return names[action];
}

static bool observed_is(const struct desired *d, const char *state) {
    return strcmp(d->observed, state) == 0;
}

/* Control does not know it (any more). */
static enum reconcile_action unwanted(const struct local *local) {
    switch (local->state) {
    case LOCAL_NONE:
    case LOCAL_STOPPING:
        return RECONCILE_NOTHING;
    case LOCAL_COMING:
    case LOCAL_RUNNING:
        return RECONCILE_DELETE;
    case LOCAL_FAILED:
    case LOCAL_DELETED:
        return RECONCILE_FORGET;
    }
    return RECONCILE_NOTHING;
}

static enum reconcile_action wanted_deleted(const struct desired *d, const struct local *local) {
    if (local->state == LOCAL_DELETED)
        return observed_is(d, "deleted") ? RECONCILE_NOTHING : RECONCILE_SAY_AGAIN;
    /* Also with nothing here: whatever a crash left goes with it, and control is told. */
    return local->state == LOCAL_STOPPING ? RECONCILE_NOTHING : RECONCILE_DELETE;
}

static enum reconcile_action wanted_running(const struct desired *d, const struct local *local) {
    bool newer = local->generation && d->generation > local->generation;
    switch (local->state) {
    case LOCAL_NONE:
        return observed_is(d, "running") ? RECONCILE_LOST : RECONCILE_START;
    case LOCAL_COMING:
        return newer ? RECONCILE_RESTART : RECONCILE_NOTHING;
    case LOCAL_RUNNING:
        if (newer)
            return RECONCILE_RESTART;
        return observed_is(d, "running") ? RECONCILE_NOTHING : RECONCILE_SAY_AGAIN;
    case LOCAL_FAILED:
        if (newer)
            return RECONCILE_START;
        return observed_is(d, "failed") ? RECONCILE_NOTHING : RECONCILE_SAY_AGAIN;
    case LOCAL_STOPPING:
    case LOCAL_DELETED:
        return RECONCILE_NOTHING;
    }
    return RECONCILE_NOTHING;
}

enum reconcile_action reconcile(const struct desired *d, const struct local *local) {
    if (!d)
        return unwanted(local);
    return d->want == WANT_DELETED ? wanted_deleted(d, local) : wanted_running(d, local);
}
