/* SPDX-License-Identifier: Apache-2.0 */
/*
 * QUIESCE: no new work, all other streams reset (or kept, standing still), commands frozen, root file system written out
 * when asked (sync.c), QUIESCED, silence.
 * The commands stay frozen until an IDENTITY has been carried out, whatever happens to connections in between.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/klog.h"
#include "guest/session.h"
#include <errno.h>
#include <string.h>

#define FREEZE_DEADLINE_NS (5 * NSEC_PER_SEC)
#define SYNC_MS 5000u
#define SYNC_MAX_MS 120000u

static void stop_waiting(struct agent *a) {
    loop_remove(&a->loop, &a->freezer.source);
    timer_stop(&a->loop, &a->freezer.deadline);
}

static void give_up(struct agent *a, const char *code, const char *message);

static void quiesced(struct agent *a) {
    struct session *s = a->freezer.session;

    a->freezer.session = NULL;
    if (!s) {
        a->state = AGENT_FROZEN; /* the host went away: a new one has to send IDENTITY */
        return;
    }
    session_commit(s, session_begin(s, REC_QUIESCED));
    session_ready(s);
    a->state = AGENT_SILENT;
    a->silencer = s;
    a->silent_since_ns = clock_monotonic_ns();
}

static void synced(struct agent *a, int err) {
    if (err)
        give_up(a, "busy", sync_words(err));
    else
        quiesced(a);
}

static void frozen(struct agent *a) {
    int r;

    stop_waiting(a);
    if (!a->freezer.session || !a->freezer.sync) {
        quiesced(a);
        return;
    }
    r = sync_begin(a, a->freezer.sync_ms, synced);
    if (r < 0)
        give_up(a, "busy", strerror(-r));
}

static void check(struct agent *a) {
    int r = cgroup_is_frozen();
    if (r > 0)
        frozen(a);
    else if (r < 0)
        klog(KLOG_ERROR, "cgroup.events cannot be read: %s", strerror(-r));
}

static void on_cgroup_events(struct source *s, uint32_t events) {
    (void)events;
    check(container_of(s, struct agent, freezer.source));
}

static void give_up(struct agent *a, const char *code, const char *message) {
    struct session *s = a->freezer.session;

    stop_waiting(a);
    a->freezer.session = NULL;
    (void)cgroup_freeze(false);
    a->state = AGENT_OPEN;
    if (!s)
        return;
    session_error(s, code, message);
    session_ready(s);
}

static void on_deadline(struct timer *t) {
    give_up(container_of(t, struct agent, freezer.deadline), "busy", "the commands could not be frozen within 5 s");
}

static void reset_others(struct agent *a, const struct session *keep) {
    struct session *next;
    for (struct session *s = a->sessions; s; s = next) {
        next = s->next;
        if (s == keep)
            continue;
        channel_reset(&a->channel, s->id, CHANNEL_CANCELLED);
        session_free(s);
    }
}

void request_quiesce(struct session *s, const struct record *rec) {
    struct agent *a = s->agent;
    const uint64_t flags = record_get_u64_or(rec, TAG_FLAGS, 0);
    const uint64_t sync_ms = record_get_u64_or(rec, TAG_TIMEOUT_MS, SYNC_MS);
    int r;

    if (a->state != AGENT_OPEN && a->state != AGENT_FROZEN) {
        session_error(s, "busy", "QUIESCE or IDENTITY is under way");
        return;
    }
    a->freezer.sync = (flags & QUIESCE_SYNC) != 0;
    a->freezer.sync_ms = sync_ms < SYNC_MAX_MS ? sync_ms : SYNC_MAX_MS;
    a->freezer.keep = (flags & QUIESCE_KEEP) != 0;
    if (!a->freezer.keep)
        reset_others(a, s);
    a->state = AGENT_FREEZING;
    a->freezer.session = s;
    s->busy = true;
    r = cgroup_freeze(true);
    if (r == 0)
        r = loop_add(&a->loop, &a->freezer.source, cgroup_freeze_fd(), EPOLLPRI, on_cgroup_events);
    if (r < 0) {
        give_up(a, "internal", strerror(-r));
        return;
    }
    timer_arm(&a->loop, &a->freezer.deadline, clock_monotonic_ns() + FREEZE_DEADLINE_NS, on_deadline);
    check(a);
}
