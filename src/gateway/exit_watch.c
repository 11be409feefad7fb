/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One entry a sandbox with the sessions watched in it and a timer whose pause grows while nothing happens. Each tick opens a
 * stream, asks LIST, and compares. A sandbox that does not answer a few times is given up: control says what became of its sessions.
 */
#include "gateway/exit_watch.h"
#include "base/log.h"
#include "base/text.h"
#include "gateway/guest_conn.h"
#include "model/settings.h"
#include <stdlib.h>
#include <string.h>

#define FIRST_MS 1000u
#define LONGEST_MS 15000u
#define ANSWER_MS 10000u
#define FAILURES_MAX 5u

struct watched {
    struct watched *next;
    char session_id[ID_SIZE], process_id[ID_SIZE];
    bool listed; /* in the answer that is being read */
};

struct watched_sandbox {
    struct exit_watch *owner;
    struct watched_sandbox *next;
    char id[ID_SIZE];
    struct watched *sessions;
    struct guest_conn *conn; /* a question is under way */
    struct loop_timer *timer;
    uint64_t pause_ms;
    unsigned failures;
};

struct exit_watch {
    struct loop *loop;
    char state_dir[SETTINGS_PATH_MAX + 1];
    struct session_reports *reports;
    struct watched_sandbox *sandboxes;
    size_t n;
};

struct exit_watch *exit_watch_new(struct loop *l, const char *state_dir, struct session_reports *reports) {
    struct exit_watch *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    *w = (struct exit_watch){.loop = l, .reports = reports};
    (void)text_copy(w->state_dir, sizeof(w->state_dir), state_dir);
    return w;
}

static void drop_session(struct watched_sandbox *b, struct watched **p) {
    struct watched *s = *p;
    *p = s->next;
    b->owner->n--;
    free(s);
}

static void drop_sandbox(struct watched_sandbox *b) {
    struct watched_sandbox **p = &b->owner->sandboxes;
    while (*p != b)
        p = &(*p)->next;
    *p = b->next;
    while (b->sessions)
        drop_session(b, &b->sessions);
    guest_conn_free(b->conn);
    loop_timer_free(b->timer);
    free(b);
}

struct exit_watch *exit_watch_free(struct exit_watch *w) {
    while (w && w->sandboxes)
        drop_sandbox(w->sandboxes);
    free(w);
    return NULL;
}

/* ---- one question ---- */

static void ask_later(struct watched_sandbox *b) {
    b->conn = guest_conn_free(b->conn);
    if (!b->sessions || b->failures >= FAILURES_MAX) {
        drop_sandbox(b);
        return;
    }
    loop_timer_start(b->timer, b->pause_ms, 0);
    b->pause_ms = b->pause_ms * 2 > LONGEST_MS ? LONGEST_MS : b->pause_ms * 2;
}

static void fail(struct watched_sandbox *b) {
    b->failures++;
    ask_later(b);
}

/* A process of the answer: is it one of ours, and has it ended? */
static void take_process(struct watched_sandbox *b, const struct record *rec) {
    char process_id[ID_SIZE];
    uint64_t code = record_get_u64_or(rec, TAG_EXIT_CODE, 0), signal = record_get_u64_or(rec, TAG_SIGNAL, 0);
    bool ended = record_get_u64_or(rec, TAG_STATE, 0) == PROCESS_EXITED && code <= 255 && signal <= 64;
    if (record_get_string(rec, TAG_PROCESS_ID, process_id, sizeof(process_id)) != 1)
        return;
    for (struct watched **p = &b->sessions; *p; p = &(*p)->next) {
        const struct session_exit exit = {.exit_code = code,
                                          .signal = signal,
                                          .reason = signal ? "signaled" : "exited"};
        if (strcmp((*p)->process_id, process_id) != 0)
            continue;
        (*p)->listed = true;
        if (ended) {
            session_report_exited(b->owner->reports, (*p)->session_id, record_get_u64_or(rec, TAG_PID, 0), &exit);
            drop_session(b, p);
        }
        return;
    }
}

/* What was not listed is no longer known to the agent. */
static void end_of_list(struct watched_sandbox *b) {
    struct watched **p = &b->sessions;
    while (*p)
        if ((*p)->listed)
            p = &(*p)->next;
        else
            drop_session(b, p);
    b->failures = 0;
    ask_later(b);
}

static bool on_record(void *ctx, const struct record *rec) {
    struct watched_sandbox *b = ctx;
    if (rec->type == REC_PROCESS) {
        take_process(b, rec);
        return true;
    }
    if (rec->type == REC_OK)
        end_of_list(b);
    else
        fail(b);
    return false;
}

static void on_open(void *ctx) {
    struct watched_sandbox *b = ctx;
    _cleanup_buf_ struct buf request = {0};
    buf_init(&request, 64);
    (void)record_end(&request, record_begin(&request, REC_LIST));
    for (struct watched *s = b->sessions; s; s = s->next)
        s->listed = false;
    (void)guest_conn_write(b->conn, request.data, request.len);
}

static void on_end(void *ctx, enum guest_end end, const char *text) {
    (void)end;
    (void)text;
    fail(ctx);
}

/* Time to ask, or time that an answer was there. */
static void on_timer(void *ctx) {
    static const struct guest_conn_events events = {.on_open = on_open, .on_record = on_record, .on_end = on_end};
    struct watched_sandbox *b = ctx;
    if (b->conn) {
        fail(b);
        return;
    }
    loop_timer_start(b->timer, ANSWER_MS, 0);
    if (guest_conn_new(b->owner->loop, b->owner->state_dir, b->id, ANSWER_MS, &events, b, &b->conn, NULL) < 0)
        fail(b);
}

/* ---- interface ---- */

static struct watched_sandbox *find_or_add(struct exit_watch *w, const char *id) {
    struct watched_sandbox *b = w->sandboxes;
    while (b && strcmp(b->id, id) != 0)
        b = b->next;
    if (b)
        return b;
    b = calloc(1, sizeof(*b));
    if (!b)
        abort();
    *b = (struct watched_sandbox){.owner = w, .next = w->sandboxes};
    (void)text_copy(b->id, sizeof(b->id), id);
    b->timer = loop_timer_new(w->loop, on_timer, b);
    w->sandboxes = b;
    return b;
}

void exit_watch_add(struct exit_watch *w, const char *sandbox_id, const char *session_id, const char *process_id) {
    struct watched_sandbox *b;
    struct watched *s;
    if (w->n >= EXIT_WATCH_MAX)
        return;
    b = find_or_add(w, sandbox_id);
    for (s = b->sessions; s; s = s->next)
        if (strcmp(s->session_id, session_id) == 0)
            return;
    s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->next = b->sessions;
    s->listed = true; /* an answer that is being read was asked for before it came */
    (void)text_copy(s->session_id, sizeof(s->session_id), session_id);
    (void)text_copy(s->process_id, sizeof(s->process_id), process_id);
    b->sessions = s;
    w->n++;
    b->pause_ms = FIRST_MS;
    if (!b->conn)
        loop_timer_start(b->timer, FIRST_MS, 0);
}

size_t exit_watch_sessions(const struct exit_watch *w) {
    return w->n;
}
