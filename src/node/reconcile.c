/* SPDX-License-Identifier: Apache-2.0 */
/* The decision table. Unit tests go through every row. */
#include "node/reconcile.h"
#include <string.h>

static const char *const names[RECONCILE_ACTION_COUNT_] = {
    [RECONCILE_NOTHING] = "nothing",   [RECONCILE_START] = "start",   [RECONCILE_RESTART] = "restart",
    [RECONCILE_PAUSE] = "pause",       [RECONCILE_RESUME] = "resume", [RECONCILE_SUSPEND] = "suspend",
    [RECONCILE_SNAPSHOT] = "snapshot", [RECONCILE_COPY] = "copy",     [RECONCILE_REST] = "rest",
    [RECONCILE_LOOK] = "look",         [RECONCILE_DELETE] = "delete", [RECONCILE_LOST] = "lost",
    [RECONCILE_SAY_AGAIN] = "say",     [RECONCILE_FORGET] = "forget", [RECONCILE_PUT_BACK] = "put_back",
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
    case LOCAL_PAUSED:
    case LOCAL_BUSY:
        return RECONCILE_DELETE;
    case LOCAL_SUSPENDED:
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

/* Nothing is here of it. What may be started anew is only what control says is to be: a resident VM that is gone is lost. */
static enum reconcile_action absent(const struct desired *d) {
    bool is_new = observed_is(d, "creating") || !d->observed[0];
    bool begins_anew = d->start_snapshot[0] && (observed_is(d, "waking") || observed_is(d, "suspended") ||
                                                observed_is(d, "failed") || strcmp(d->operation_kind, "rollback") == 0);
    switch (d->want) {
    case WANT_RUNNING:
        return is_new || begins_anew ? RECONCILE_START : RECONCILE_LOST;
    case WANT_SUSPENDED:
        if (observed_is(d, "suspended"))
            return RECONCILE_REST;
        return observed_is(d, "suspending") && d->snapshot_id[0] ? RECONCILE_LOOK : RECONCILE_LOST;
    default:
        return RECONCILE_LOST;
    }
}

/* Where it is to be: only a snapshot, or word of something, may be missing. */
static enum reconcile_action arrived(const struct desired *d, const struct local *local, const char *state) {
    if (d->snapshot_id[0] && !local->snapshot_known && !local->operation_failed)
        return local->state == LOCAL_SUSPENDED ? RECONCILE_COPY : RECONCILE_SNAPSHOT;
    if (!observed_is(d, state) || local->operation_failed || (local->snapshot_known && local->snapshot_unsettled))
        return RECONCILE_SAY_AGAIN;
    return RECONCILE_NOTHING;
}

static enum reconcile_action when_running(const struct desired *d, const struct local *local) {
    if (d->want == WANT_RUNNING)
        return arrived(d, local, "running");
    if (local->operation_failed)
        return RECONCILE_SAY_AGAIN;
    if (d->want == WANT_PAUSED)
        return RECONCILE_PAUSE;
    return d->snapshot_id[0] ? RECONCILE_SUSPEND : RECONCILE_SAY_AGAIN;
}

static enum reconcile_action when_paused(const struct desired *d, const struct local *local) {
    if (d->want == WANT_PAUSED)
        return arrived(d, local, "paused");
    if (local->operation_failed)
        return RECONCILE_SAY_AGAIN;
    if (d->want == WANT_RUNNING)
        return RECONCILE_RESUME;
    return d->snapshot_id[0] ? RECONCILE_SUSPEND : RECONCILE_SAY_AGAIN;
}

/* No VM is here any more. */
static enum reconcile_action at_rest(const struct desired *d, const struct local *local, bool newer) {
    /* Of one that had failed: its last good snapshot may be woken. */
    if (newer && (local->state != LOCAL_DELETED || d->start_snapshot[0]))
        return RECONCILE_START;
    if (local->state == LOCAL_SUSPENDED && d->want == WANT_SUSPENDED)
        return arrived(d, local, "suspended");
    if (local->state == LOCAL_DELETED || (local->state == LOCAL_FAILED && observed_is(d, "failed")))
        return RECONCILE_NOTHING;
    return RECONCILE_SAY_AGAIN;
}

/* A VM of an earlier generation than the wanted one, at whatever it is. */
static enum reconcile_action outdated(const struct desired *d, bool *ret_decided) {
    *ret_decided = d->want == WANT_RUNNING || (d->want == WANT_SUSPENDED && !d->snapshot_id[0]);
    return d->want == WANT_RUNNING ? RECONCILE_RESTART : RECONCILE_PUT_BACK;
}

static enum reconcile_action with_vm(const struct desired *d, const struct local *local) {
    if (local->state == LOCAL_RUNNING)
        return when_running(d, local);
    return local->state == LOCAL_PAUSED ? when_paused(d, local) : RECONCILE_NOTHING;
}

static enum reconcile_action wanted(const struct desired *d, const struct local *local) {
    bool is_old = local->generation && d->generation > local->generation, decided = false;
    enum reconcile_action action = RECONCILE_NOTHING;
    switch (local->state) {
    case LOCAL_NONE:
        return absent(d);
    case LOCAL_STOPPING:
        return RECONCILE_NOTHING;
    case LOCAL_COMING:
    case LOCAL_BUSY:
    case LOCAL_RUNNING:
    case LOCAL_PAUSED:
        if (is_old)
            action = outdated(d, &decided);
        return decided ? action : with_vm(d, local);
    case LOCAL_SUSPENDED:
    case LOCAL_FAILED:
    case LOCAL_DELETED:
        return at_rest(d, local, is_old && d->want == WANT_RUNNING);
    }
    return RECONCILE_NOTHING;
}

enum reconcile_action reconcile(const struct desired *d, const struct local *local) {
    if (!d)
        return unwanted(local);
    return d->want == WANT_DELETED ? wanted_deleted(d, local) : wanted(d, local);
}
