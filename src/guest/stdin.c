/* SPDX-License-Identifier: Apache-2.0 */
/*
 * STDIN: bytes to a command's pipe (or pty). Streams that write to the same command take turns, whole stream by whole
 * stream. A full pipe is waited for in the loop; meanwhile the stream's input is left where it is, so that the host runs
 * out of credit. OK says that every byte is in the pipe.
 */
#include "base/cleanup.h"
#include "guest/session.h"
#include <errno.h>
#include <string.h>
#include <termios.h>

#define EOT "\x04" /* what a terminal takes as the end of input */

static void on_writable(struct source *source, uint32_t events);

static struct loop *loop_of(const struct process *p) {
    return &p->agent->loop;
}

static void close_stdin(struct process *p) {
    loop_remove(loop_of(p), &p->stdin_source);
    if (p->pty) {
        (void)!write(p->stdin_fd, EOT, 1);
        return;
    }
    p->stdin_fd = close_fd(p->stdin_fd);
}

/* Takes s out of its command's queue; the next one starts. */
static void leave(struct session *s) {
    struct process *p = s->stdin_process;
    struct session *last = NULL;

    if (!p)
        return;
    for (struct session **at = &p->stdin_first; *at; at = &(*at)->stdin_next) {
        if (*at == s) {
            *at = s->stdin_next;
            break;
        }
    }
    for (struct session *q = p->stdin_first; q; q = q->stdin_next)
        last = q;
    p->stdin_last = last;
    s->stdin_process = NULL;
    s->stdin_next = NULL;
    loop_remove(loop_of(p), &p->stdin_source);
    if (p->stdin_first)
        session_ready(p->stdin_first);
}

static void closed(struct session *s) {
    leave(s);
    s->busy = false;
    session_error(s, "closed", "the command's input is closed");
}

void stdin_forget(struct session *s) {
    leave(s);
}

void stdin_process_gone(struct process *p) {
    while (p->stdin_first)
        closed(p->stdin_first);
}

/* Writes what it can of the current record. */
static void write_some(struct session *s) {
    struct process *p = s->stdin_process;

    while (s->stdin_data.len > 0) {
        ssize_t n = write(p->stdin_fd, s->stdin_data.data, s->stdin_data.len);
        if (n > 0) {
            buf_consume(&s->stdin_data, (size_t)n);
            s->stdin_accepted += (uint64_t)n;
        } else if (errno == EAGAIN || errno == EINTR) {
            if (!loop_has(&p->stdin_source))
                (void)loop_add(loop_of(p), &p->stdin_source, p->stdin_fd, EPOLLOUT, on_writable);
            s->busy = true;
            return;
        } else {
            closed(s);
            return;
        }
    }
    buf_done(&s->stdin_data);
    loop_remove(loop_of(p), &p->stdin_source);
    session_ready(s);
}

static void on_writable(struct source *source, uint32_t events) {
    struct process *p = container_of(source, struct process, stdin_source);

    if ((events & EPOLLERR) && !p->pty)
        stdin_process_gone(p); /* nobody reads any more */
    else if (p->stdin_first)
        write_some(p->stdin_first);
    else
        loop_remove(loop_of(p), &p->stdin_source);
}

void request_stdin(struct session *s, const struct record *rec) {
    char id[PROCESS_ID_MAX + 2];
    struct process *p;

    s->kind = SESSION_STDIN;
    (void)record_get_string(rec, TAG_PROCESS_ID, id, sizeof(id));
    p = process_find(&s->agent->processes, id);
    if (!p) {
        session_error(s, "not_found", "no such process");
        return;
    }
    if (p->stdin_fd < 0 || p->state >= PROC_DRAINING) {
        session_error(s, "closed", "the command's input is closed");
        return;
    }
    s->stdin_close_after = record_get_u64_or(rec, TAG_CLOSE_AFTER, 0) != 0;
    s->stdin_process = p;
    if (p->stdin_last)
        p->stdin_last->stdin_next = s;
    else
        p->stdin_first = s;
    p->stdin_last = s;
    s->busy = p->stdin_first != s; /* waits for its turn */
}

void stdin_record(struct session *s, const struct record *rec) {
    struct view data;

    if (rec->type != REC_DATA || !record_get_bytes(rec, TAG_DATA, &data)) {
        leave(s);
        session_error(s, "invalid", "only DATA may follow STDIN");
        return;
    }
    if (!s->stdin_process)
        return;
    if (buf_append(&s->stdin_data, data.p, data.len) < 0) {
        leave(s);
        session_error(s, "no_memory", "out of memory");
        return;
    }
    write_some(s);
}

/* The host has sent everything, and everything was written. */
void stdin_end(struct session *s) {
    struct process *p = s->stdin_process;
    size_t mark;

    if (!p)
        return;
    if (s->stdin_close_after) {
        leave(s);
        close_stdin(p);
        stdin_process_gone(p); /* others in the queue come too late */
    } else {
        leave(s);
    }
    mark = session_begin(s, REC_OK);
    (void)record_put_u64(&s->out, TAG_ACCEPTED, s->stdin_accepted);
    session_commit(s, mark);
    s->kind = SESSION_ENDED;
}
