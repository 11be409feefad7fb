/* SPDX-License-Identifier: Apache-2.0 */
/*
 * QUIESCE: no new work, all other streams reset (or kept, standing still), commands frozen, root file system synced when
 * asked, QUIESCED, silence.
 * The commands stay frozen until an IDENTITY has been carried out, whatever happens to connections in between.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/klog.h"
#include "guest/session.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define FREEZE_DEADLINE_NS (5 * NSEC_PER_SEC)

static void stop_waiting(struct agent *a) {
    loop_remove(&a->loop, &a->freezer.source);
    timer_stop(&a->loop, &a->freezer.deadline);
}

static void sync_root(void) {
    _cleanup_close_ int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || syncfs(fd) < 0)
        klog(KLOG_ERROR, "root file system not synced: %s", strerror(errno));
}

static void frozen(struct agent *a) {
    struct session *s = a->freezer.session;

    stop_waiting(a);
    a->freezer.session = NULL;
    if (!s) {
        a->state = AGENT_FROZEN; /* the host went away: a new one has to send IDENTITY */
        return;
    }
    if (a->freezer.sync)
        sync_root();
    session_commit(s, session_begin(s, REC_QUIESCED));
    session_ready(s);
    a->state = AGENT_SILENT;
    a->silencer = s;
    a->silent_since_ns = clock_monotonic_ns();
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
    int r;

    if (a->state != AGENT_OPEN && a->state != AGENT_FROZEN) {
        session_error(s, "busy", "QUIESCE or IDENTITY is under way");
        return;
    }
    a->freezer.sync = (flags & QUIESCE_SYNC) != 0;
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
