/* SPDX-License-Identifier: Apache-2.0 */
/* Starting a command: user, pipes or pty, cgroup, child; then waiting (in the loop) for exec to happen or fail. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "guest/klog.h"
#include "guest/session.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif
#define STDIN_PIPE 0
#define NULL_DEVICE "/dev/null"

/* The child's three descriptors; closed after the start. */
struct ends {
    int in, out, err;
};

static void close_ends(struct ends *e) {
    int in = e->in, out = e->out;
    e->in = close_fd(in);
    e->out = out == in ? -1 : close_fd(out);
    e->err = e->err == in || e->err == out ? -1 : close_fd(e->err);
}

int process_setup_output(struct process *p, unsigned i, enum record_stream kind, int fd) {
    struct output *o = &p->out[i];
    int r = ring_init(&o->ring, p->agent->processes.window, &p->agent->processes.budget);

    if (r < 0)
        return r;
    o->process = p;
    o->kind = kind;
    o->fd = fd;
    o->source.fd = -1;
    p->n_out = i + 1;
    return 0;
}

static int output_pipe(struct process *p, unsigned i, enum record_stream kind, int *ret_child) {
    int fds[2], r;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    r = process_setup_output(p, i, kind, fds[0]);
    if (r < 0) {
        (void)close(fds[0]);
        (void)close(fds[1]);
        return r;
    }
    *ret_child = fds[1];
    return 0;
}

static int stdin_pipe(struct process *p, int *ret_child) {
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    (void)fcntl(fds[1], F_SETFL, O_NONBLOCK);
    p->stdin_fd = fds[1];
    *ret_child = fds[0];
    return 0;
}

static int open_null(int *ret) {
    *ret = open(NULL_DEVICE, O_RDWR | O_CLOEXEC | O_NOCTTY);
    return *ret < 0 ? -errno : 0;
}

/* A pipe belongs to the command's user, or it could not open /dev/stdout and /dev/stderr, as tee and logs do. */
static int make_pipes(struct process *p, const struct process_request *req, uid_t uid, struct ends *e) {
    int r = req->with_stdin ? stdin_pipe(p, &e->in) : open_null(&e->in);

    if (r == 0)
        r = req->hidden ? open_null(&e->out) : output_pipe(p, 0, STREAM_STDOUT, &e->out);
    if (r == 0 && req->hidden)
        e->err = e->out;
    else if (r == 0)
        r = output_pipe(p, 1, STREAM_STDERR, &e->err);
    if (r == 0 && ((req->with_stdin && fchown(e->in, uid, (gid_t)-1) < 0) ||
                   (!req->hidden && (fchown(e->out, uid, (gid_t)-1) < 0 || fchown(e->err, uid, (gid_t)-1) < 0))))
        r = -errno;
    return r;
}

/* Master for us, slave for all three of the child's descriptors, in its final size. */
static int make_pty(struct process *p, const struct process_request *req, uid_t uid, struct ends *e) {
    struct winsize size = {.ws_col = (unsigned short)req->pty_cols, .ws_row = (unsigned short)req->pty_rows};
    _cleanup_close_ int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    struct termios tio;
    int unlock = 0, r;

    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -errno;
    e->in = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (e->in < 0)
        return -errno;
    e->out = e->err = e->in;
    if (fchown(e->in, uid, (gid_t)-1) < 0)
        return -errno;
    if (ioctl(master, TIOCSWINSZ, &size) < 0)
        return -errno;
    if (tcgetattr(e->in, &tio) == 0) {
        tio.c_iflag |= IUTF8;
        (void)tcsetattr(e->in, TCSANOW, &tio);
    }
    r = process_setup_output(p, 0, STREAM_PTY, master);
    if (r < 0)
        return r;
    p->stdin_fd = TAKE_FD(master);
    return 0;
}

/* "cmd arg arg…" for LIST and people; cut, escaped. */
static void describe(struct process *p, char *const *argv) {
    size_t n = 0;
    for (; *argv && n + 2 < sizeof(p->command); argv++) {
        if (n > 0)
            p->command[n++] = ' ';
        (void)text_escape(p->command + n, sizeof(p->command) - n, *argv, strlen(*argv));
        n += strlen(p->command + n);
    }
}

static struct process *new_record(struct agent *a, const struct process_request *req) {
    struct process *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    p->agent = a;
    p->stdin_fd = p->out[0].fd = p->out[1].fd = -1;
    p->stdin_source.fd = p->status.fd = -1;
    p->pty = req->pty_cols > 0;
    p->hidden = req->hidden;
    p->done = req->done;
    p->done_arg = req->done_arg;
    p->kill_on_disconnect = req->kill_on_disconnect;
    p->reason = "exited";
    (void)text_copy(p->id, sizeof(p->id), req->id);
    describe(p, req->argv);
    return p;
}

static void on_timeout(struct timer *t) {
    process_kill(container_of(t, struct process, timeout), "timeout");
}

static int finish_status(struct process *p) {
    struct spawn_status status;
    ssize_t n = read(p->status.fd, &status, sizeof(status));
    int fd = p->status.fd;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return -EAGAIN;
    if (n == (ssize_t)sizeof(status))
        p->failure = status;
    loop_remove(&p->agent->loop, &p->status);
    (void)close(fd);
    spawn_free(p->plan);
    p->plan = NULL;
    return 0;
}

/* A working directory that is none is told as an error of the request: there is no command to report on, so the record
 * is not found any more and goes when the child has been reaped. */
static void bad_start(struct process *p) {
    const char *text =
        p->failure.stage == SPAWN_CWD ? "the working directory cannot be entered" : "the child could not be set up";
    const char *code = p->failure.stage == SPAWN_CWD ? "bad_cwd" : "internal";

    p->hidden = true;
    while (p->readers) {
        struct session *s = p->readers->session;
        reader_detach(s);
        session_error(s, code, text);
    }
}

static void on_status(struct source *s, uint32_t events) {
    struct process *p = container_of(s, struct process, status);

    (void)events;
    if (finish_status(p) < 0)
        return;
    if (p->failure.stage == SPAWN_CWD || p->failure.stage == SPAWN_SETUP)
        bad_start(p);
    if (p->failure.stage == SPAWN_SETUP)
        klog(KLOG_ERROR, "child set-up failed: %s", strerror(p->failure.err));
    p->state = PROC_RUNNING;
    if (p->reaped)
        process_reaped(p, p->exit_code); /* the end was seen first and kept */
}

/* Everything of the child's that can fail before there is a child. */
static int prepare(struct process *p, const struct process_request *req, const struct guest_user *u, struct ends *e) {
    struct spawn_request spawn = {.argv = req->argv,
                                  .env = (char **)(uintptr_t)agent_environment(p->agent),
                                  .env_more = req->env,
                                  .cwd = req->cwd,
                                  .user = u,
                                  .tty = p->pty};
    int r = p->pty ? make_pty(p, req, u->uid, e) : make_pipes(p, req, u->uid, e);

    if (r < 0)
        return r;
    p->cgroup = cgroup_new(req->parent);
    if (!p->cgroup)
        return -errno;
    spawn.stdin_fd = e->in;
    spawn.stdout_fd = e->out;
    spawn.stderr_fd = e->err;
    spawn.cgroup_fd = p->cgroup->fd;
    return spawn_prepare(&spawn, &p->plan);
}

static int launch(struct process *p, const struct process_request *req) {
    struct agent *a = p->agent;
    int status_fd, r;

    p->started_ns = clock_monotonic_ns();
    p->started_realtime_ns = clock_realtime_ns();
    r = spawn_start(p->plan, &p->pid, &status_fd);
    if (r < 0)
        return r;
    cgroup_started(p->cgroup);
    process_table_set_pid(&a->processes, p);
    r = loop_add(&a->loop, &p->status, status_fd, EPOLLIN, on_status);
    if (r < 0) { /* the child runs; it is killed and reaped, and its plan is leaked rather than pulled from under it */
        klog(KLOG_ERROR, "cannot watch a start: %s", strerror(-r));
        (void)close(status_fd);
        p->plan = NULL;
        p->state = PROC_RUNNING;
        process_kill(p, "internal");
    }
    if (req->timeout_ms > 0)
        timer_arm(&a->loop, &p->timeout, p->started_ns + req->timeout_ms * NSEC_PER_MSEC, on_timeout);
    for (unsigned i = 0; i < p->n_out; i++)
        output_watch(&p->out[i]);
    return 0;
}

static void explain(int err, const char **ret_code, const char **ret_message) {
    *ret_message = strerror(-err);
    *ret_code = err == -ENOMEM                     ? "no_memory"
                : err == -E2BIG                    ? "invalid"
                : err == -ENOENT                   ? "no_user"
                : err == -EAGAIN || err == -EMFILE ? "limit"
                                                   : "internal";
    if (err == -E2BIG)
        *ret_message = "too many arguments or variables";
    if (err == -ENOENT)
        *ret_message = "no such user";
}

int process_start(struct agent *a, const struct process_request *req, struct process **ret, const char **ret_code,
                  const char **ret_message) {
    struct ends ends = {-1, -1, -1};
    struct guest_user user;
    struct process *p;
    int r;

    if (!process_table_make_room(&a->processes)) {
        *ret_code = "limit";
        *ret_message = "too many commands";
        return -EAGAIN;
    }
    r = users_lookup(req->user ? req->user : "", &user);
    p = r == 0 ? new_record(a, req) : NULL;
    if (!p) {
        explain(r < 0 ? r : -ENOMEM, ret_code, ret_message);
        return -1;
    }
    process_table_add(&a->processes, p);
    r = prepare(p, req, &user, &ends);
    if (r == 0)
        r = launch(p, req);
    close_ends(&ends);
    if (r < 0) {
        explain(r == -ENOENT ? -EIO : r, ret_code, ret_message);
        process_free(p);
        return r;
    }
    *ret = p;
    return 0;
}
