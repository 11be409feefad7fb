/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers of a command's output. Each has its own place in each ring. A command waits for the slowest reader that is
 * still alive: one that has taken nothing for STALL_NS while it was a whole window behind is not waited for any more and
 * gets a GAP when it comes back.
 */
#include "base/clock.h"
#include "guest/session.h"
#include <errno.h>
#include <string.h>

#define STALL_NS (5 * NSEC_PER_SEC)
#define SMALLEST_PIECE 512u

static enum record_tag offset_tag(enum record_stream kind) {
    return kind == STREAM_STDOUT ? TAG_STDOUT_OFFSET : kind == STREAM_STDERR ? TAG_STDERR_OFFSET : TAG_PTY_OFFSET;
}

static enum record_tag from_tag(enum record_stream kind) {
    return kind == STREAM_STDOUT ? TAG_STDOUT_FROM : kind == STREAM_STDERR ? TAG_STDERR_FROM : TAG_PTY_FROM;
}

/* Where each stream goes on: the offset asked for, or the oldest held. Asking for what is not there is a RESYNC. */
static void place(struct reader *r, const struct record *rec) {
    for (unsigned i = 0; i < r->process->n_out; i++) {
        const struct ring *ring = &r->process->out[i].ring;
        uint64_t from = record_get_u64_or(rec, from_tag(r->process->out[i].kind), ring->base);
        if (from < ring->base || from > ring->end) {
            r->resync = true;
            from = ring->base;
        }
        r->pos[i] = from;
    }
}

int reader_attach(struct session *s, struct process *p, const struct record *rec, bool resumed) {
    struct reader *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->session = s;
    r->process = p;
    r->resumed = resumed;
    place(r, rec);
    r->next = p->readers;
    p->readers = r;
    p->n_readers++;
    s->attached = r;
    s->kind = SESSION_ATTACH;
    process_readers_changed(p);
    return 0;
}

void reader_detach(struct session *s) {
    struct reader *r = s->attached;
    struct process *p;

    if (!r)
        return;
    p = r->process;
    s->attached = NULL;
    for (struct reader **at = &p->readers; *at; at = &(*at)->next) {
        if (*at == r) {
            *at = r->next;
            break;
        }
    }
    p->n_readers--;
    for (unsigned i = 0; i < 2; i++)
        timer_stop(&s->agent->loop, &r->stall[i]);
    free(r);
    for (unsigned i = 0; i < p->n_out; i++)
        output_watch(&p->out[i]);
    process_readers_changed(p);
}

uint64_t readers_keep(const struct process *p, unsigned output) {
    uint64_t keep = p->out[output].ring.end;
    for (const struct reader *r = p->readers; r; r = r->next)
        if (!r->stalled[output] && r->pos[output] < keep)
            keep = r->pos[output];
    return keep;
}

static void on_stall(struct reader *r, unsigned output) {
    r->stalled[output] = true;
    output_watch(&r->process->out[output]);
}
static void on_stall_0(struct timer *t) {
    on_stall(container_of(t, struct reader, stall[0]), 0);
}
static void on_stall_1(struct timer *t) {
    on_stall(container_of(t, struct reader, stall[1]), 1);
}

void readers_blocked(struct process *p, unsigned output) {
    uint64_t keep = readers_keep(p, output), at = clock_monotonic_ns() + STALL_NS;
    for (struct reader *r = p->readers; r; r = r->next)
        if (!r->stalled[output] && r->pos[output] == keep && !timer_armed(&r->stall[output]))
            timer_arm(&p->agent->loop, &r->stall[output], at, output == 0 ? on_stall_0 : on_stall_1);
}

static void say_started(struct reader *r) {
    struct session *s = r->session;
    size_t mark = session_begin(s, REC_STARTED);

    (void)record_put_string(&s->out, TAG_PROCESS_ID, r->process->id);
    (void)record_put_u64(&s->out, TAG_PID, (uint64_t)r->process->pid);
    (void)record_put_u64(&s->out, TAG_STARTED_REALTIME_NS, r->process->started_realtime_ns);
    (void)record_put_u64(&s->out, TAG_RESUMED, r->resumed);
    session_commit(s, mark);
    r->started_sent = true;
}

static void say_resync(struct reader *r) {
    struct session *s = r->session;
    size_t mark = session_begin(s, REC_RESYNC);

    (void)record_put_string(&s->out, TAG_REASON, "not_held");
    for (unsigned i = 0; i < r->process->n_out; i++)
        (void)record_put_u64(&s->out, offset_tag(r->process->out[i].kind), r->pos[i]);
    session_commit(s, mark);
    r->resync = false;
}

static void say_gap(struct reader *r, unsigned i) {
    struct session *s = r->session;
    const struct output *o = &r->process->out[i];
    size_t mark = session_begin(s, REC_GAP);

    (void)record_put_u64(&s->out, TAG_STREAM, o->kind);
    (void)record_put_u64(&s->out, TAG_FROM, r->pos[i]);
    (void)record_put_u64(&s->out, TAG_TO, o->ring.base);
    session_commit(s, mark);
    r->pos[i] = o->ring.base;
}

static void say_exited(struct reader *r) {
    struct session *s = r->session;
    const struct process *p = r->process;
    size_t mark = session_begin(s, REC_EXITED);

    (void)record_put_u64(&s->out, TAG_EXIT_CODE, (uint64_t)p->exit_code);
    (void)record_put_u64(&s->out, TAG_SIGNAL, (uint64_t)p->exit_signal);
    (void)record_put_u64(&s->out, TAG_OOM_KILLED, p->oom_killed);
    (void)record_put_string(&s->out, TAG_REASON, p->reason);
    (void)record_put_u64(&s->out, TAG_DURATION_MS, (p->ended_ns - p->started_ns) / NSEC_PER_MSEC);
    (void)record_put_u64(&s->out, TAG_OUTPUT_MAY_CONTINUE, p->output_may_continue);
    session_commit(s, mark);
    reader_detach(s);
    s->kind = SESSION_ENDED;
}

/* One OUTPUT record of stream i, as much as credit and room allow. */
static bool send_piece(struct reader *r, unsigned i) {
    struct output *o = &r->process->out[i];
    struct channel *c = &r->session->agent->channel;
    size_t room = channel_sendable(c, r->session->id), held = (size_t)(o->ring.end - r->pos[i]), n;
    uint8_t head[RECORD_OUTPUT_OVERHEAD];
    struct view parts[3] = {{head, sizeof(head)}};

    if (room <= RECORD_OUTPUT_OVERHEAD)
        return false;
    n = room - RECORD_OUTPUT_OVERHEAD;
    if (n > RECORD_MAX_OUTPUT)
        n = RECORD_MAX_OUTPUT;
    if (n < held && n < SMALLEST_PIECE)
        return false;
    n = ring_peek(&o->ring, r->pos[i], n, parts + 1);
    record_output_header(head, o->kind, r->pos[i], n);
    if (!channel_send_all(c, r->session->id, parts, 3))
        return false;
    r->pos[i] += n;
    r->stalled[i] = false;
    timer_stop(&r->session->agent->loop, &r->stall[i]);
    output_watch(o);
    return true;
}

static bool send_stream(struct reader *r, unsigned i) {
    const struct ring *ring = &r->process->out[i].ring;

    if (r->pos[i] < ring->base) {
        say_gap(r, i);
        return true;
    }
    return r->pos[i] < ring->end && send_piece(r, i);
}

static bool everything_sent(const struct reader *r) {
    for (unsigned i = 0; i < r->process->n_out; i++)
        if (r->pos[i] < r->process->out[i].ring.end)
            return false;
    return true;
}

bool reader_pump(struct reader *r) {
    struct process *p = r->process;

    if (p->state == PROC_STARTING)
        return false;
    if (!r->started_sent) {
        say_started(r);
        return true;
    }
    if (r->resync) {
        say_resync(r);
        return true;
    }
    for (unsigned k = 0; k < p->n_out; k++) {
        unsigned i = (r->turn + k) % p->n_out;
        if (send_stream(r, i)) {
            r->turn = i + 1;
            return true;
        }
    }
    if (p->state != PROC_EXITED || !everything_sent(r))
        return false;
    say_exited(r);
    return true;
}
