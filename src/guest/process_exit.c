/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a command: killed by us or by itself, reaped, drained, kept for a while. An exit is only ever made here,
 * from a wait status. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/klog.h"
#include "guest/session.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define NSEC_MAX_MS (UINT64_MAX / NSEC_PER_MSEC / 4)

void process_kill(struct process *p, const char *reason) {
    int r;

    if (!p->reaped && !p->kill_reason)
        p->kill_reason = reason;
    r = cgroup_kill(p->cgroup);
    if (r < 0 && !p->reaped && p->pid > 0) {
        klog(KLOG_WARN, "cgroup.kill failed (%s), only the leader is killed", strerror(-r));
        (void)kill(p->pid, SIGKILL);
    }
}

static void decide(struct process *p, int status) {
    p->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    p->exit_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    p->oom_killed = p->exit_signal == SIGKILL && cgroup_oom_killed(p->cgroup);
    if (p->failure.stage == SPAWN_EXEC && p->exit_signal == 0)
        p->reason = p->exit_code == 127 ? "command_not_found" : "permission_denied";
    else if (p->kill_reason && p->exit_signal == SIGKILL)
        p->reason = p->kill_reason;
    else if (p->oom_killed)
        p->reason = "oom_killed";
    else
        p->reason = p->exit_signal ? "signaled" : "exited";
}

void process_reaped(struct process *p, int status) {
    struct agent *a = p->agent;

    p->reaped = true;
    if (p->state == PROC_STARTING) {
        p->exit_code = status; /* on_status() comes back with it: how exec went is not known yet */
        return;
    }
    p->ended_ns = clock_monotonic_ns();
    decide(p, status);
    timer_stop(&a->loop, &p->timeout);
    cgroup_leader_gone(p->cgroup);
    p->state = PROC_DRAINING;
    for (unsigned i = 0; i < p->n_out; i++)
        if (p->state == PROC_DRAINING)
            output_start_drain(&p->out[i]);
    if (p->state == PROC_DRAINING)
        process_finish_if_drained(p);
}

static void on_expiry(struct timer *t) {
    struct process *p = container_of(t, struct process, expiry);
    if (!p->readers)
        process_free(p);
    /* else: the last reader to leave arms it again */
}

static void keep_for_a_while(struct process *p) {
    uint64_t ms = p->agent->processes.retention_ms;
    if (ms > NSEC_MAX_MS)
        ms = NSEC_MAX_MS;
    timer_arm(&p->agent->loop, &p->expiry, p->ended_ns + ms * NSEC_PER_MSEC, on_expiry);
}

void process_finish_if_drained(struct process *p) {
    if (p->state != PROC_DRAINING)
        return;
    for (unsigned i = 0; i < p->n_out; i++)
        if (!p->out[i].final)
            return;
    p->state = PROC_EXITED;
    p->agent->tidy = true;
    process_table_exited(&p->agent->processes, p);
    for (unsigned i = 0; i < p->n_out; i++) {
        p->output_may_continue |= p->out[i].fd >= 0;
        ring_shrink(&p->out[i].ring);
        output_watch(&p->out[i]);
    }
    stdin_process_gone(p);
    if (p->stdin_fd >= 0 && !p->pty)
        p->stdin_fd = close_fd(p->stdin_fd);
    timer_stop(&p->agent->loop, &p->disconnect);
    if (p->done)
        p->done(p);
    if (p->hidden) /* callers still hold p: it goes with the next timers */
        timer_arm(&p->agent->loop, &p->expiry, 1, on_expiry);
    else
        keep_for_a_while(p);
}

static void on_disconnected(struct timer *t) {
    struct process *p = container_of(t, struct process, disconnect);
    if (!p->readers)
        process_kill(p, "disconnected");
}

void process_readers_changed(struct process *p) {
    struct agent *a = p->agent;

    if (p->readers) {
        timer_stop(&a->loop, &p->disconnect);
        return;
    }
    if (p->state == PROC_EXITED && !timer_armed(&p->expiry) && !p->hidden)
        keep_for_a_while(p);
    else if (p->state < PROC_DRAINING && p->kill_on_disconnect)
        timer_arm(&a->loop, &p->disconnect, clock_monotonic_ns() + DISCONNECT_GRACE_MS * NSEC_PER_MSEC,
                  on_disconnected);
}
