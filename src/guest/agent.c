/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/agent.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/klog.h"
#include "guest/power.h"
#include "guest/session.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#define READS_A_STEP 16
#define ROUNDS_A_STEP 16

const char *const *agent_environment(const struct agent *a) {
    static const char *const none[] = {NULL};
    return a->identity.env ? (const char *const *)a->identity.env : none;
}

/* --- the port --- */

/* Edge-triggered: a port without a host reports a hang-up for ever, and no such event says who is there next. Room to
 * write is asked for only while it is missing. */
static void on_port(struct source *s, uint32_t events) {
    struct agent *a = container_of(s, struct agent, port);

    a->port_readable = true;
    if (events & EPOLLOUT) {
        a->port_writable = true;
        (void)loop_change(&a->loop, s, EPOLLIN | EPOLLET);
    }
}

static void wait_for_room(struct agent *a) {
    a->port_writable = false;
    (void)loop_change(&a->loop, &a->port, EPOLLIN | EPOLLOUT | EPOLLET);
}

static void drop_sessions(struct agent *a) {
    while (a->sessions)
        session_free(a->sessions);
}

void agent_end_silence(struct agent *a, enum agent_state next) {
    a->state = next;
    a->silencer = NULL;
    loop_shift_timers(&a->loop, clock_monotonic_ns() - a->silent_since_ns);
}

static void on_connected(struct agent *a) {
    drop_sessions(a);
    if (a->state == AGENT_SILENT)
        agent_end_silence(a, AGENT_FROZEN);
}

static void on_open(struct agent *a, const struct channel_event *ev) {
    struct session *s = ev->port == CHANNEL_PORT_AGENT ? session_new(a, ev->id) : NULL;

    if (s)
        channel_accept(&a->channel, ev->id, s);
    else
        channel_reset(&a->channel, ev->id, ev->port == CHANNEL_PORT_AGENT ? CHANNEL_TOO_MANY : CHANNEL_REFUSED);
}

static void on_event(struct agent *a, const struct channel_event *ev) {
    switch (ev->type) {
    case CHANNEL_EV_CONNECTED:
        on_connected(a);
        break;
    case CHANNEL_EV_LOST:
        klog(KLOG_INFO, "channel: streams dropped, waiting for a HELLO");
        drop_sessions(a);
        break;
    case CHANNEL_EV_OPEN:
        on_open(a, ev);
        break;
    case CHANNEL_EV_DATA:
        session_data(ev->user, ev->data);
        break;
    case CHANNEL_EV_SHUTDOWN:
        if (ev->ended)
            session_free(ev->user);
        else
            session_end(ev->user);
        break;
    case CHANNEL_EV_RESET:
        session_free(ev->user);
        break;
    case CHANNEL_EV_OPENED:
    case CHANNEL_EV_CREDIT:
        break;
    }
}

/* Takes what was read; false when output has to drain first. */
static bool take_pending(struct agent *a) {
    struct channel_event ev;
    while (channel_next(&a->channel, &a->pending, &ev) > 0)
        on_event(a, &ev);
    return a->pending.len == 0;
}

static void read_port(struct agent *a) {
    for (int i = 0; i < READS_A_STEP && a->port_readable; i++) {
        if (!take_pending(a) || !channel_wants_input(&a->channel))
            return;
        ssize_t n = read(a->config.port_fd, a->input, sizeof(a->input));
        if (n > 0) {
            a->pending = (struct view){a->input, (size_t)n};
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else {
            a->port_readable = false; /* nothing there, or nobody connected */
            a->stop |= a->config.hosted && n == 0;
        }
    }
    (void)take_pending(a);
}

static void write_port(struct agent *a) {
    while (a->port_writable && a->channel.out.len > 0) {
        ssize_t n = write(a->config.port_fd, a->channel.out.data, a->channel.out.len);
        if (n > 0)
            channel_sent(&a->channel, (size_t)n);
        else if (n == 0 || errno != EINTR)
            wait_for_room(a);
    }
}

/* --- children --- */

static void on_signal(struct source *s, uint32_t events) {
    struct agent *a = container_of(s, struct agent, signals);
    struct signalfd_siginfo info[8];
    struct process *p;
    pid_t pid;
    int status;

    (void)events;
    while (read(s->fd, info, sizeof(info)) > 0)
        continue;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        p = process_by_pid(&a->processes, pid);
        if (p && !p->reaped)
            process_reaped(p, status);
    }
}

/* --- the loop --- */

/* Lets every session send in turn until nothing moves or the output is full. True: more could be done at once. */
static bool pump(struct agent *a) {
    if (a->state == AGENT_SILENT) { /* but for the word that says so: whatever else there is to send waits */
        while (a->silencer && session_pump(a->silencer))
            continue;
        return false;
    }
    for (int round = 0; round < ROUNDS_A_STEP; round++) {
        struct session *s = a->turn ? a->turn : a->sessions, *next;
        bool moved = false;

        for (unsigned n = a->n_sessions; n > 0 && s; n--, s = next) {
            next = s->next ? s->next : a->sessions;
            moved |= session_pump(s);
        }
        if (!moved)
            return false;
        write_port(a);
        if (a->channel.out.len > 0 && !a->port_writable)
            return false;
        a->turn = a->turn ? a->turn->next : a->sessions;
    }
    return true;
}

/* Everything is said: nothing happens here until a HELLO comes or, with streams kept, an IDENTITY. What the host says
 * before that of streams that were kept is noted, and nothing is done with it. */
static void be_silent(struct agent *a) {
    if (!a->freezer.keep) {
        channel_disconnect(&a->channel);
        drop_sessions(a);
        a->pending.len = 0;
    }
    while (a->state == AGENT_SILENT && !a->stop) {
        struct epoll_event ev;
        a->port_readable = true;
        read_port(a);
        if (a->state == AGENT_SILENT && !a->stop)
            (void)epoll_wait(a->quiet_epfd, &ev, 1, -1);
    }
    a->port_readable = a->port_writable = true;
}

static bool all_said(const struct agent *a) {
    for (const struct session *s = a->sessions; s; s = s->next)
        if (s->out.len > 0 && (a->state != AGENT_SILENT || s == a->silencer))
            return false;
    return a->channel.out.len == 0;
}

/* True: there is more to do at once. */
static bool step(struct agent *a, bool more) {
    loop_step(&a->loop, more);
    read_port(a);
    more = pump(a);
    write_port(a);
    return more || (a->port_readable && channel_wants_input(&a->channel)) ||
           (a->port_writable && a->channel.out.len > 0);
}

static void tidy_up(struct agent *a) {
    a->tidy = false;
    cgroup_prepare_spare();
}

void agent_run(struct agent *a) {
    bool more = true;

    while (!a->stop) {
        more = step(a, more);
        if (a->state == AGENT_SILENT && all_said(a)) {
            be_silent(a);
            more = true; /* the acknowledgement waits to be written */
        } else if (!more && a->tidy) {
            tidy_up(a);
        }
        if (a->shutting_down && (all_said(a) || !a->port_writable)) {
            if (!a->config.hosted)
                power_off();
            a->stop = true;
        }
    }
}

static int watch_port(struct agent *a) {
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
    int r = loop_add(&a->loop, &a->port, a->config.port_fd, EPOLLIN | EPOLLET, on_port);

    if (r < 0)
        return r;
    a->quiet_epfd = epoll_create1(EPOLL_CLOEXEC);
    if (a->quiet_epfd < 0 || epoll_ctl(a->quiet_epfd, EPOLL_CTL_ADD, a->config.port_fd, &ev) < 0)
        return -errno;
    return 0;
}

static int watch_signals(struct agent *a) {
    sigset_t all, child;
    int fd;

    sigfillset(&all);
    if (sigprocmask(SIG_SETMASK, &all, NULL) < 0)
        return -errno;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    fd = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
    return fd < 0 ? -errno : loop_add(&a->loop, &a->signals, fd, EPOLLIN, on_signal);
}

int agent_init(struct agent *a, const struct agent_config *config) {
    int r;

    memset(a, 0, sizeof(*a));
    a->config = *config;
    a->port.fd = a->signals.fd = a->freezer.source.fd = a->syncer.source.fd = -1;
    a->tidy = a->port_writable = true;
    process_table_init(&a->processes, config->memory_bytes);
    r = loop_init(&a->loop);
    if (r == 0)
        r = channel_init(&a->channel, CHANNEL_GUEST, NULL);
    if (r == 0)
        r = cgroup_setup(&a->loop, config->cgroup_root, !config->hosted);
    if (r == 0)
        r = watch_signals(a);
    if (r == 0)
        r = watch_port(a);
    return r;
}
