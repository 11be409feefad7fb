/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the root file system out. syncfs() takes as long as the disk does and nothing interrupts it, so a child calls it
 * and the agent waits for the child, for so long and no longer. Of the root alone: a file system whose daemon is frozen
 * would never be done.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/klog.h"
#include "guest/session.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

#define DEFAULT_MS 30000u
#define MAX_MS 600000u

/* Holds nothing of the agent's while it waits for the disk. */
static _Noreturn void child(int out) {
    uint8_t result = 0;
    int root;

    (void)dup2(out, 0);
    (void)syscall(SYS_close_range, 1u, ~0u, 0u);
    root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || syncfs(root) < 0)
        result = errno > 0 && errno < 256 ? (uint8_t)errno : EIO;
    (void)!write(0, &result, 1);
    _exit(0);
}

static void end(struct agent *a, int err) {
    struct syncer *y = &a->syncer;
    void (*done)(struct agent *, int) = y->done;
    int fd = y->source.fd;

    loop_remove(&a->loop, &y->source);
    timer_stop(&a->loop, &y->deadline);
    (void)close(fd);
    y->done = NULL;
    if (err)
        klog(KLOG_ERROR, "root file system not synced: %s", strerror(err));
    done(a, err);
}

static void on_child(struct source *s, uint32_t events) {
    struct agent *a = container_of(s, struct agent, syncer.source);
    uint8_t result = 0;
    ssize_t n = read(s->fd, &result, 1);

    (void)events;
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    end(a, n == 1 ? result : EIO);
}

static void on_deadline(struct timer *t) {
    end(container_of(t, struct agent, syncer.deadline), ETIMEDOUT);
}

int sync_begin(struct agent *a, uint64_t timeout_ms, void (*done)(struct agent *a, int err)) {
    struct syncer *y = &a->syncer;
    int fds[2], r;
    pid_t pid;

    if (y->done)
        return -EBUSY;
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    pid = fork();
    if (pid == 0)
        child(fds[1]);
    r = pid < 0 ? -errno : 0;
    (void)close(fds[1]);
    if (r == 0)
        r = loop_add(&a->loop, &y->source, fds[0], EPOLLIN, on_child);
    if (r < 0) {
        (void)close(fds[0]);
        return r;
    }
    y->done = done;
    timer_arm(&a->loop, &y->deadline, clock_monotonic_ns() + timeout_ms * NSEC_PER_MSEC, on_deadline);
    return 0;
}

const char *sync_words(int err) {
    return err == ETIMEDOUT ? "the root file system was not written out in time" : strerror(err);
}

/* --- the request --- */

static void answer(struct agent *a, int err) {
    struct session *s = a->syncer.session;

    a->syncer.session = NULL;
    if (!s)
        return;
    if (err)
        session_error(s, "busy", sync_words(err));
    else
        session_ok(s);
    session_ready(s);
}

void request_sync(struct session *s, const struct record *rec) {
    struct agent *a = s->agent;
    uint64_t ms = record_get_u64_or(rec, TAG_TIMEOUT_MS, DEFAULT_MS);
    int r = sync_begin(a, ms < MAX_MS ? ms : MAX_MS, answer);

    if (r < 0) {
        session_error(s, r == -EBUSY ? "busy" : "internal", r == -EBUSY ? "it is being written out" : strerror(-r));
        return;
    }
    a->syncer.session = s;
    s->busy = true;
}
