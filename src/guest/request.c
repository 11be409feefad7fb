/* SPDX-License-Identifier: Apache-2.0 */
/* The small requests: PING, LIST, SIGNAL, RESIZE, SHUTDOWN. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "guest/session.h"
#include "guest/stats.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>

#define KILL_WAIT_NS (2 * NSEC_PER_SEC)
#define KILL_POLL_NS (5 * NSEC_PER_MSEC)
#define SIZE_MAX_CELLS 4096u

void request_ping(struct session *s, const struct record *rec) {
    struct agent *a = s->agent;
    bool full = (record_get_u64_or(rec, TAG_FLAGS, 0) & PING_FULL) != 0;
    size_t mark = session_begin(s, REC_PONG);
    char text[64];

    (void)record_put_string(&s->out, TAG_AGENT_VERSION, AGENT_VERSION);
    (void)record_put_u64(&s->out, TAG_PROTOCOL, AGENT_PROTOCOL);
    (void)record_put_u64(&s->out, TAG_GENERATION, a->identity.generation);
    (void)record_put_u64(&s->out, TAG_UPTIME_NS, clock_monotonic_ns());
    (void)record_put_u64(&s->out, TAG_STREAMS, a->channel.n_streams);
    (void)record_put_u64(&s->out, TAG_PROCESSES, a->processes.n_live);
    if (full) {
        (void)record_put_string(&s->out, TAG_BOOT_ID, stats_boot_id(text, sizeof(text)));
        (void)record_put_string(&s->out, TAG_CLOCKSOURCE, stats_clocksource(text, sizeof(text)));
        (void)record_put_u64(&s->out, TAG_FDS, stats_fds());
        (void)record_put_u64(&s->out, TAG_RSS_KIB, stats_rss_kib());
        (void)record_put_u64(&s->out, TAG_ZOMBIES, stats_zombies());
    }
    session_commit(s, mark);
}

/* --- LIST: a position in the table instead of a copy of it; records that come or go meanwhile may be missed --- */

static struct process *nth(struct process_table *t, unsigned n) {
    unsigned bucket = 0;
    struct process *p = NULL;
    while ((p = process_next(t, &bucket, p)))
        if (!p->hidden && n-- == 0)
            return p;
    return NULL;
}

void request_list(struct session *s, const struct record *rec) {
    (void)rec;
    s->list_at = 0;
    s->list_left = PROCESS_MAX;
    s->busy = true;
}

bool request_list_pump(struct session *s) {
    struct process *p = nth(&s->agent->processes, s->list_at++);
    size_t mark;

    if (!p || --s->list_left == 0) {
        s->list_left = 0;
        session_ok(s);
        session_ready(s);
        return true;
    }
    mark = session_begin(s, REC_PROCESS);
    (void)record_put_string(&s->out, TAG_PROCESS_ID, p->id);
    (void)record_put_u64(&s->out, TAG_PID, (uint64_t)p->pid);
    (void)record_put_u64(&s->out, TAG_STATE, p->state == PROC_EXITED ? PROCESS_EXITED : PROCESS_RUNNING);
    (void)record_put_u64(&s->out, TAG_STARTED_REALTIME_NS, p->started_realtime_ns);
    (void)record_put_u64(&s->out, TAG_EXIT_CODE, p->state == PROC_EXITED ? (uint64_t)p->exit_code : 0);
    (void)record_put_u64(&s->out, TAG_SIGNAL, (uint64_t)p->exit_signal);
    (void)record_put_string(&s->out, TAG_COMMAND, p->command);
    session_commit(s, mark);
    return true;
}

/* --- SIGNAL --- */

/* After SIGKILL to a cgroup the answer waits until it is empty: `remaining` is then the truth, not a race. */
struct kill_wait {
    struct session *session;
    char id[PROCESS_ID_MAX + 1]; /* the record may go meanwhile */
    uint64_t until_ns;
    struct timer timer;
};

static void answer_remaining(struct session *s, unsigned remaining) {
    size_t mark = session_begin(s, REC_OK);
    (void)record_put_u64(&s->out, TAG_REMAINING, remaining);
    session_commit(s, mark);
}

void request_signal_forget(struct session *s) {
    if (!s->kill_wait)
        return;
    timer_stop(&s->agent->loop, &s->kill_wait->timer);
    free(s->kill_wait);
    s->kill_wait = NULL;
}

static void on_kill_wait(struct timer *t) {
    struct kill_wait *w = container_of(t, struct kill_wait, timer);
    struct session *s = w->session;
    struct process *p = process_find(&s->agent->processes, w->id);
    unsigned left = p ? cgroup_processes(p->cgroup) : 0;

    if (left > 0 && clock_monotonic_ns() < w->until_ns) {
        timer_arm(&s->agent->loop, t, clock_monotonic_ns() + KILL_POLL_NS, on_kill_wait);
        return;
    }
    request_signal_forget(s);
    answer_remaining(s, left);
    session_ready(s);
}

static void wait_for_empty(struct session *s, struct process *p) {
    struct kill_wait *w = calloc(1, sizeof(*w));

    if (!w) {
        answer_remaining(s, cgroup_processes(p->cgroup));
        return;
    }
    w->session = s;
    w->until_ns = clock_monotonic_ns() + KILL_WAIT_NS;
    (void)text_copy(w->id, sizeof(w->id), p->id);
    s->kill_wait = w;
    s->busy = true;
    timer_arm(&s->agent->loop, &w->timer, 1, on_kill_wait);
}

static int send_signal(struct process *p, int sig, uint64_t scope) {
    if (scope == SCOPE_CGROUP)
        return cgroup_signal(p->cgroup, sig);
    if (p->reaped || p->pid <= 1)
        return -ESRCH;
    return kill(scope == SCOPE_GROUP ? -p->pid : p->pid, sig) < 0 ? -errno : 0;
}

void request_signal(struct session *s, const struct record *rec) {
    char id[PROCESS_ID_MAX + 2];
    uint64_t sig = record_get_u64_or(rec, TAG_SIGNAL, 0);
    uint64_t scope = record_get_u64_or(rec, TAG_SCOPE, sig == SIGKILL ? SCOPE_CGROUP : SCOPE_GROUP);
    struct process *p;
    int r;

    (void)record_get_string(rec, TAG_PROCESS_ID, id, sizeof(id));
    p = process_find(&s->agent->processes, id);
    if (!p) {
        session_error(s, "not_found", "no such process");
        return;
    }
    if (sig < 1 || sig > 64 || scope < SCOPE_LEADER || scope > SCOPE_CGROUP) {
        session_error(s, "invalid", "signal must be 1 to 64, scope 1 to 3");
        return;
    }
    r = send_signal(p, (int)sig, scope);
    if (r < 0 && r != -ESRCH)
        session_error(s, "internal", strerror(-r));
    else if (sig == SIGKILL && scope == SCOPE_CGROUP)
        wait_for_empty(s, p);
    else
        answer_remaining(s, cgroup_processes(p->cgroup));
}

/* --- RESIZE, SHUTDOWN --- */

void request_resize(struct session *s, const struct record *rec) {
    char id[PROCESS_ID_MAX + 2];
    uint64_t cols = record_get_u64_or(rec, TAG_COLS, 0), rows = record_get_u64_or(rec, TAG_ROWS, 0);
    struct winsize size = {.ws_col = (unsigned short)cols, .ws_row = (unsigned short)rows};
    struct process *p;

    (void)record_get_string(rec, TAG_PROCESS_ID, id, sizeof(id));
    p = process_find(&s->agent->processes, id);
    if (!p)
        session_error(s, "not_found", "no such process");
    else if (cols < 1 || cols > SIZE_MAX_CELLS || rows < 1 || rows > SIZE_MAX_CELLS)
        session_error(s, "invalid", "cols and rows must be 1 to 4096");
    else if (!p->pty)
        session_error(s, "invalid", "the command has no pty");
    else if (p->state >= PROC_DRAINING || p->out[0].fd < 0)
        session_error(s, "closed", "the command has ended");
    else if (ioctl(p->out[0].fd, TIOCSWINSZ, &size) < 0)
        session_error(s, "internal", strerror(errno));
    else
        session_ok(s);
}

void request_shutdown(struct session *s, const struct record *rec) {
    (void)rec;
    session_commit(s, session_begin(s, REC_SHUTDOWN_OK));
    s->agent->shutting_down = true; /* the loop powers off once the answer is out */
}
