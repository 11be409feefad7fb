/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child program run to its end: input fed, output gathered, deadline kept. It is over when the child ended, not when
 * the last holder of its output closed it: a background grandchild holds up nothing.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "io/spawn.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define TAIL_MAX 4096
#define TAIL_KEEP 1024

struct run {
    struct child child;
    int in, out; /* our ends; -1 when done with */
    const char *input;
    size_t input_len;
    struct buf *gather; /* may be NULL */
    struct buf tail;    /* the last bytes, for the error text */
};

static void run_done(struct run *run) {
    child_done(&run->child);
    run->in = close_fd(run->in);
    run->out = close_fd(run->out);
    buf_done(&run->tail);
}

static int start(struct run *run, const struct spawn_options *opt, struct sp_error *err) {
    struct spawn_options mine = *opt;
    int in[2] = {-1, -1}, out[2];
    if (pipe2(out, O_CLOEXEC) < 0)
        return sp_error_errno(err, errno, "pipe2", "cannot run %s", opt->argv[0]);
    run->out = out[0];
    _cleanup_close_ int child_out = out[1];
    if (run->input && pipe2(in, O_CLOEXEC) < 0)
        return sp_error_errno(err, errno, "pipe2", "cannot run %s", opt->argv[0]);
    run->in = in[1];
    _cleanup_close_ int child_in = in[0];
    (void)fd_set_nonblocking(run->out, true);
    if (run->in >= 0)
        (void)fd_set_nonblocking(run->in, true);
    if (run->input)
        mine.stdin_fd = child_in;
    mine.stdout_fd = mine.stderr_fd = child_out;
    return spawn_start(&mine, &run->child, err);
}

/* write(2) whose SIGPIPE is kept from a process that may not ignore it. */
static ssize_t write_quietly(int fd, const void *data, size_t len) {
    static const struct timespec now;
    sigset_t pipe_only, before;
    (void)sigemptyset(&pipe_only);
    (void)sigaddset(&pipe_only, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    ssize_t n = write(fd, data, len);
    int e = errno;
    if (n < 0 && e == EPIPE)
        (void)sigtimedwait(&pipe_only, NULL, &now);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = e;
    return n;
}

static void feed(struct run *run) {
    ssize_t n = write_quietly(run->in, run->input, run->input_len);
    if (n > 0) {
        run->input += n;
        run->input_len -= (size_t)n;
    }
    if (run->input_len == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        run->in = close_fd(run->in);
}

static void keep(struct run *run, const char *data, size_t len) {
    if (run->gather) {
        size_t room = run->gather->max - run->gather->len;
        (void)buf_append(run->gather, data, len < room ? len : room);
    }
    if (run->tail.len + len > TAIL_MAX)
        buf_consume(&run->tail, run->tail.len > TAIL_KEEP ? run->tail.len - TAIL_KEEP : 0);
    if (len > TAIL_KEEP) {
        data += len - TAIL_KEEP;
        len = TAIL_KEEP;
    }
    (void)buf_append(&run->tail, data, len);
}

/* Everything there is now. */
static void gather(struct run *run) {
    char piece[4096];
    for (;;) {
        ssize_t n = read(run->out, piece, sizeof(piece));
        if (n > 0) {
            keep(run, piece, (size_t)n);
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0 || errno != EAGAIN)
            run->out = close_fd(run->out);
        return;
    }
}

/* Until the child ended; negative on the deadline. */
static int pump(struct run *run, struct deadline d, struct sp_error *err) {
    for (;;) {
        struct pollfd p[3] = {{.fd = run->child.pidfd, .events = POLLIN},
                              {.fd = run->out, .events = POLLIN},
                              {.fd = run->in, .events = POLLOUT}}; /* poll skips negative ones */
        int n = poll(p, 3, deadline_poll_ms(d));
        if (n < 0 && errno != EINTR)
            return sp_error_errno(err, errno, "poll", "child");
        if (n == 0 && deadline_passed(d))
            return sp_error_set(err, SP_E_TIMEOUT, "took too long and was killed");
        if (n <= 0)
            continue;
        if (p[2].revents)
            feed(run);
        if (p[1].revents || (p[0].revents && run->out >= 0))
            gather(run);
        if (p[0].revents)
            return 0;
    }
}

/* The last line that is not empty, printable, into dst. */
static const char *last_line(const struct buf *tail, char *dst, size_t size) {
    size_t end = tail->len;
    while (end > 0 && (tail->data[end - 1] == '\n' || tail->data[end - 1] == '\r'))
        end--;
    size_t from = end;
    while (from > 0 && tail->data[from - 1] != '\n')
        from--;
    return text_escape(dst, size, tail->data + from, end - from);
}

int spawn_run(const struct spawn_options *opt, const void *input, size_t input_len, struct deadline d, struct buf *out,
              int *ret_status, struct sp_error *err) {
    __attribute__((cleanup(run_done))) struct run run = {
        .child = CHILD_NONE, .in = -1, .out = -1, .input = input, .input_len = input_len, .gather = out};
    char text[64], line[160];
    int status = 0;
    buf_init(&run.tail, TAIL_MAX);
    int r = start(&run, opt, err);
    if (r == 0)
        r = pump(&run, d, err);
    if (r == 0)
        r = spawn_wait(&run.child, (struct deadline){UINT64_MAX}, &status, err);
    if (r < 0) {
        if (err)
            (void)sp_error_wrap(err, "%.80s", opt->argv[0]);
        return r;
    }
    if (ret_status)
        *ret_status = status;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return sp_error_set(err, SP_E_IO, "%.60s %s: %s", opt->argv[0], spawn_status_text(text, status),
                        last_line(&run.tail, line, sizeof(line)));
}
