/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/session.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "guest/klog.h"
#include <errno.h>
#include <string.h>

#define MESSAGE_MAX 240

static size_t rx_budget(const struct agent *a) {
    size_t part = a->config.memory_bytes / 16;
    return part < (2u << 20) ? (2u << 20) : part > (16u << 20) ? (16u << 20) : part;
}

struct session *session_new(struct agent *a, uint32_t id) {
    struct session *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->agent = a;
    s->id = id;
    buf_init(&s->held, CHANNEL_MAX_WINDOW);
    buf_init(&s->out, SESSION_QUEUE_MAX);
    buf_init(&s->stdin_data, RECORD_MAX_PAYLOAD);
    s->next = a->sessions;
    if (s->next)
        s->next->prev = s;
    a->sessions = s;
    a->n_sessions++;
    return s;
}

void session_free(struct session *s) {
    struct agent *a = s->agent;

    reader_detach(s);
    stdin_forget(s);
    request_signal_forget(s);
    if (s->probe) {
        s->probe->done_arg = NULL;
        process_kill(s->probe, "disconnected");
    }
    if (a->freezer.session == s)
        a->freezer.session = NULL;
    if (a->syncer.session == s)
        a->syncer.session = NULL;
    if (a->silencer == s)
        a->silencer = NULL;
    if (a->identify.session == s)
        a->identify.session = NULL;
    if (a->turn == s)
        a->turn = s->next;
    if (s->prev)
        s->prev->next = s->next;
    else
        a->sessions = s->next;
    if (s->next)
        s->next->prev = s->prev;
    a->n_sessions--;
    a->rx_held -= s->held.len;
    record_reader_done(&s->reader);
    buf_done(&s->held);
    buf_done(&s->out);
    buf_done(&s->stdin_data);
    free(s);
}

/* --- records going out --- */

size_t session_begin(struct session *s, enum record_type type) {
    return record_begin(&s->out, type);
}

void session_commit(struct session *s, size_t mark) {
    if (record_end(&s->out, mark) == 0)
        return;
    klog(KLOG_ERROR, "no memory for an answer, stream %u is reset", s->id);
    s->kind = SESSION_ENDED;
    s->sent_end = true;
    channel_reset(&s->agent->channel, s->id, CHANNEL_CANCELLED);
}

void session_ok(struct session *s) {
    session_commit(s, session_begin(s, REC_OK));
}

void session_error(struct session *s, const char *code, const char *message) {
    size_t mark = session_begin(s, REC_ERROR);
    char text[MESSAGE_MAX];

    (void)record_put_string(&s->out, TAG_CODE, code);
    (void)record_put_string(&s->out, TAG_MESSAGE, text_escape(text, sizeof(text), message, strlen(message)));
    session_commit(s, mark);
    if (s->kind == SESSION_ATTACH || s->kind == SESSION_STDIN)
        s->kind = SESSION_ENDED;
}

/* --- records coming in --- */

static const struct {
    uint16_t type;
    void (*handle)(struct session *s, const struct record *rec);
    bool while_frozen; /* also before IDENTITY has thawed the commands */
} handlers[] = {
    {REC_PING, request_ping, true},         {REC_QUIESCE, request_quiesce, true},
    {REC_IDENTITY, request_identity, true}, {REC_SHUTDOWN, request_shutdown, true},
    {REC_LIST, request_list, true},         {REC_ATTACH, request_attach, false},
    {REC_STDIN, request_stdin, false},      {REC_SIGNAL, request_signal, false},
    {REC_RESIZE, request_resize, false},    {REC_PROBE, request_probe, false},
    {REC_SYNC, request_sync, false},
};

static void handle(struct session *s, const struct record *rec) {
    const char *missing = record_missing(rec);
    char text[80];

    if (s->kind == SESSION_STDIN) {
        stdin_record(s, rec);
        return;
    }
    if (s->kind != SESSION_REQUESTS)
        return; /* a reader has nothing to say */
    if (missing) {
        (void)text_printf(text, sizeof(text), "%s: %s is missing", record_type_name(rec->type), missing);
        session_error(s, "invalid", text);
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(handlers); i++) {
        if (handlers[i].type != rec->type)
            continue;
        if ((rec->type == REC_ATTACH || rec->type == REC_STDIN) && s->first_seen)
            session_error(s, "invalid", "ATTACH and STDIN need a stream of their own");
        else if (s->agent->state != AGENT_OPEN && !handlers[i].while_frozen)
            session_error(s, "frozen", "the sandbox is between QUIESCE and IDENTITY");
        else
            handlers[i].handle(s, rec);
        s->first_seen = true;
        return;
    }
    session_error(s, "invalid", "unknown request");
}

static void broken_records(struct session *s, int err) {
    session_error(s, err == -ENOMEM ? "no_memory" : "invalid", err == -ENOMEM ? "out of memory" : "malformed record");
    s->kind = SESSION_ENDED;
}

/* Takes records until one has to be waited for. Returns how many bytes were used. */
static size_t take(struct session *s, struct view in) {
    size_t before = in.len;
    struct record rec;
    int r = 0;

    while (!s->busy && s->out.len == 0 && s->kind != SESSION_ENDED && (r = record_next(&s->reader, &in, &rec)) > 0)
        handle(s, &rec);
    if (r < 0)
        broken_records(s, r);
    if (s->kind == SESSION_ENDED)
        in.len = 0; /* nothing more is wanted */
    return before - in.len;
}

static void take_held(struct session *s) {
    if (s->held.len > 0) {
        size_t n = take(s, (struct view){(const uint8_t *)s->held.data, s->held.len});
        buf_consume(&s->held, n);
        s->agent->rx_held -= n;
        channel_consume(&s->agent->channel, s->id, n);
        if (s->held.len == 0)
            buf_done(&s->held);
    }
    if (s->got_end && s->held.len == 0 && !s->busy && s->kind == SESSION_STDIN)
        stdin_end(s);
}

void session_data(struct session *s, struct view data) {
    struct agent *a = s->agent;
    size_t n = 0;

    if (s->held.len == 0)
        n = take(s, data);
    channel_consume(&a->channel, s->id, n);
    data.p += n;
    data.len -= n;
    if (data.len == 0)
        return;
    if (a->rx_held + data.len > rx_budget(a) || buf_append(&s->held, data.p, data.len) < 0) {
        channel_reset(&a->channel, s->id, CHANNEL_TOO_MANY);
        session_free(s);
        return;
    }
    a->rx_held += data.len;
}

void session_end(struct session *s) {
    s->got_end = true;
    take_held(s);
}

void session_ready(struct session *s) {
    s->busy = false;
}

/* --- moving on --- */

static bool flush_out(struct session *s) {
    size_t n = channel_send(&s->agent->channel, s->id, s->out.data, s->out.len);

    if (s->out.len == 0)
        return false;
    buf_consume(&s->out, n);
    if (s->out.len == 0)
        buf_done(&s->out);
    return n > 0;
}

static bool finish(struct session *s) {
    bool done = s->kind == SESSION_ENDED || (s->kind == SESSION_REQUESTS && s->got_end && s->held.len == 0 && !s->busy);
    if (!done || s->sent_end || s->out.len > 0 || s->list_left > 0)
        return false;
    s->sent_end = true;
    if (channel_shutdown(&s->agent->channel, s->id))
        session_free(s);
    return true;
}

bool session_pump(struct session *s) {
    bool moved;

    if (s->sent_end && channel_user(&s->agent->channel, s->id) != s) {
        session_free(s); /* reset for lack of memory */
        return true;
    }
    moved = flush_out(s);
    if (s->out.len == 0 && s->list_left > 0)
        moved |= request_list_pump(s);
    if (s->out.len == 0 && s->attached)
        moved |= reader_pump(s->attached);
    if (s->out.len == 0 && !s->busy && s->list_left == 0 && (s->held.len > 0 || s->got_end)) {
        size_t held = s->held.len;
        take_held(s);
        moved |= s->out.len > 0 || s->held.len != held; /* an answer or credit that has not been sent yet */
    }
    return finish(s) || moved;
}

int session_list(const struct record *rec, enum record_tag tag, size_t max, char ***ret) {
    size_t n = record_count(rec, tag), bytes = 0, i = 0;
    struct view cursor = rec->payload, item;
    char **list, *text;

    if (n > max)
        return -E2BIG;
    while (record_list_next(&cursor, tag, &item))
        bytes += item.len + 1;
    list = malloc((n + 1) * sizeof(char *) + bytes);
    if (!list)
        return -ENOMEM;
    text = (char *)(list + n + 1);
    cursor = rec->payload;
    while (record_list_next(&cursor, tag, &item)) {
        if (item.len > 0)
            memcpy(text, item.p, item.len);
        text[item.len] = '\0';
        list[i++] = text;
        text += item.len + 1;
    }
    list[n] = NULL;
    *ret = list;
    return 0;
}
