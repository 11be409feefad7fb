/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connection states DOWN (timer runs) → HELLO (greeting sent) → UP, and the table of calls under way. The broker answers
 * at most 64 requests at once, so no more are sent; the others wait here in order.
 */
#include "node/broker_client.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text.h"
#include "io/packet.h"
#include "io/unix_socket.h"
#include <assert.h>
#include <string.h>
#include <sys/socket.h>

#define IN_WORK_MAX 48
#define BACKOFF_FIRST_MS 50u
#define BACKOFF_MAX_MS 2000u
#define HELLO_MS 5000u
#define STUCK_MS 600000u /* a call without an answer for so long: the connection is given up */
#define STUCK_CHECK_MS 30000u

enum broker_state { BROKER_DOWN, BROKER_HELLO, BROKER_UP };

struct broker_call {
    struct broker_call *next; /* of its list */
    uint64_t seq;
    uint64_t sent_ms;
    char *text;                                                               /* until it is sent */
    void (*done)(void *ctx, const json_t *reply, const struct sp_error *err); /* NULL: forgotten */
    void *ctx;
};

struct broker_calls {
    struct broker_call *first, **last;
    unsigned n;
};

struct broker_client {
    struct loop *loop;
    char path[128];
    enum broker_state state;
    struct packet *packet;
    struct loop_timer *timer; /* DOWN: connect; HELLO: give up; UP: look for stuck calls */
    uint64_t backoff_ms, next_seq;
    struct broker_calls waiting, sent;
    const struct broker_client_events *events;
    void *ctx;
};

static void calls_add(struct broker_calls *list, struct broker_call *call) {
    call->next = NULL;
    *list->last = call;
    list->last = &call->next;
    list->n++;
}

/* Unlinks the call at *p. */
static struct broker_call *calls_take(struct broker_calls *list, struct broker_call **p) {
    struct broker_call *call = *p;
    *p = call->next;
    if (!*p)
        list->last = p;
    list->n--;
    return call;
}

static void call_free(struct broker_call *call) {
    free(call->text);
    free(call);
}

static void calls_init(struct broker_calls *list) {
    *list = (struct broker_calls){0};
    list->last = &list->first;
}

static void on_timer(void *ctx);

static void set_state(struct broker_client *c, enum broker_state to) {
    c->state = to;
    if (to == BROKER_DOWN) {
        c->packet = packet_free(c->packet);
        loop_timer_start(c->timer, c->backoff_ms, 0);
        c->backoff_ms = c->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : c->backoff_ms * 2;
    } else if (to == BROKER_HELLO) {
        loop_timer_start(c->timer, HELLO_MS, 0);
    } else {
        c->backoff_ms = BACKOFF_FIRST_MS;
        loop_timer_start(c->timer, STUCK_CHECK_MS, STUCK_CHECK_MS);
    }
}

/* Every call of the list fails; its owner may start new ones meanwhile (they are refused). */
static void calls_fail(struct broker_calls *list) {
    const struct sp_error err = {.code = SP_E_UNAVAILABLE, .op = "broker", .text = "the broker's connection was lost"};
    struct broker_calls taken = *list;
    calls_init(list);
    while (taken.first) {
        struct broker_call *call = taken.first;
        taken.first = call->next;
        if (call->done)
            call->done(call->ctx, NULL, &err);
        call_free(call);
    }
}

static void go_down(struct broker_client *c, const char *why) {
    bool was_up = c->state == BROKER_UP;
    log_event(was_up ? LOG_L_WARN : LOG_L_DEBUG, "broker_down", "why", why, NULL);
    set_state(c, BROKER_DOWN);
    calls_fail(&c->sent);
    calls_fail(&c->waiting);
    if (was_up)
        c->events->on_down(c->ctx);
}

static void send_waiting(struct broker_client *c) {
    while (c->state == BROKER_UP && c->waiting.first && c->sent.n < IN_WORK_MAX) {
        struct broker_call *call = calls_take(&c->waiting, &c->waiting.first);
        int r = packet_write(c->packet, call->text, strlen(call->text));
        call->sent_ms = loop_now_ms(c->loop);
        free(call->text);
        call->text = NULL;
        calls_add(&c->sent, call);
        if (r < 0)
            return; /* the connection's end is about to be reported */
    }
}

/* ---- replies ---- */

static void on_hello(struct broker_client *c, const json_t *reply) {
    json_t *list = json_object_get(reply, "accelerators"), *item;
    const char *cgroup = json_string_value(json_object_get(reply, "cgroup"));
    const char *engine = json_string_value(json_object_get(reply, "engine"));
    struct broker_facts facts = {0};
    size_t i;
    if (!json_is_true(json_object_get(reply, "ok"))) {
        go_down(c, "the broker refuses our protocol version");
        return;
    }
    json_array_foreach (list, i, item) {
        const char *name = json_string_value(item);
        facts.kvm = facts.kvm || (name && strcmp(name, "kvm") == 0);
        facts.tcg = facts.tcg || (name && strcmp(name, "tcg") == 0);
    }
    (void)text_copy(facts.cgroup, sizeof(facts.cgroup), cgroup ? cgroup : "");
    (void)text_copy(facts.engine, sizeof(facts.engine), engine ? engine : "");
    set_state(c, BROKER_UP);
    c->events->on_up(c->ctx, &facts);
}

static struct broker_call *take_by_seq(struct broker_client *c, uint64_t seq) {
    for (struct broker_call **p = &c->sent.first; *p; p = &(*p)->next)
        if ((*p)->seq == seq)
            return calls_take(&c->sent, p);
    return NULL;
}

static void on_reply(struct broker_client *c, const json_t *reply) {
    struct sp_error error = {0}, why = {0};
    struct broker_call *call;
    uint64_t seq;
    if (json_get_u64(reply, "", "seq", 0, INT64_MAX, &seq, &why) < 0 || !(call = take_by_seq(c, seq))) {
        go_down(c, "a reply to nothing we asked");
        return;
    }
    if (!json_is_true(json_object_get(reply, "ok")) &&
        (sp_error_decode(json_object_get(reply, "error"), &error, &why) < 0 || error.code == SP_OK))
        error = (struct sp_error){.code = SP_E_PROTOCOL, .op = "broker", .text = "a failure without an error"};
    if (call->done)
        call->done(call->ctx, error.code ? NULL : reply, error.code ? &error : NULL);
    call_free(call);
    send_waiting(c);
}

static void on_message(void *ctx, const char *data, size_t len) {
    struct broker_client *c = ctx;
    _cleanup_json_ json_t *reply = NULL;
    struct sp_error err = {0};
    if (json_parse(data, len, BROKER_CLIENT_MESSAGE_MAX, &reply, &err) < 0 || !json_is_object(reply))
        go_down(c, "a reply that is no JSON object");
    else if (c->state == BROKER_HELLO)
        on_hello(c, reply);
    else
        on_reply(c, reply);
}

static void on_end(void *ctx, const struct sp_error *err) {
    go_down(ctx, err ? err->text : "closed by the broker");
}

/* ---- connecting ---- */

static void connect_now(struct broker_client *c) {
    static const struct packet_events events = {.on_message = on_message, .on_end = on_end};
    static const char hello[] = "{\"request\":\"hello\",\"version\":1}";
    struct sp_error err = {0};
    int fd = -1;
    if (unix_connect(c->path, SOCK_SEQPACKET | SOCK_NONBLOCK, deadline_in_ms(0), &fd, &err) < 0 ||
        packet_new(c->loop, fd, BROKER_CLIENT_MESSAGE_MAX, IN_WORK_MAX + 8, &events, c, &c->packet, &err) < 0) {
        (void)close_fd(fd);
        go_down(c, err.text);
        return;
    }
    set_state(c, BROKER_HELLO);
    (void)packet_write(c->packet, hello, sizeof(hello) - 1);
}

static void on_timer(void *ctx) {
    struct broker_client *c = ctx;
    if (c->state == BROKER_DOWN)
        connect_now(c);
    else if (c->state == BROKER_HELLO)
        go_down(c, "no answer to hello");
    else if (c->sent.first && loop_now_ms(c->loop) - c->sent.first->sent_ms > STUCK_MS)
        go_down(c, "no answer to a request");
}

struct broker_client *broker_client_new(struct loop *l, const char *state_dir,
                                        const struct broker_client_events *events, void *ctx) {
    struct broker_client *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    *c = (struct broker_client){
        .loop = l, .state = BROKER_DOWN, .backoff_ms = BACKOFF_FIRST_MS, .next_seq = 1, .events = events, .ctx = ctx};
    (void)text_printf(c->path, sizeof(c->path), "%s/run/broker.sock", state_dir);
    calls_init(&c->waiting);
    calls_init(&c->sent);
    c->timer = loop_timer_new(l, on_timer, c);
    loop_timer_start(c->timer, 0, 0);
    return c;
}

struct broker_client *broker_client_free(struct broker_client *c) {
    if (!c)
        return NULL;
    struct broker_calls *lists[] = {&c->waiting, &c->sent};
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        while (lists[i]->first)
            call_free(calls_take(lists[i], &lists[i]->first));
    packet_free(c->packet);
    loop_timer_free(c->timer);
    free(c);
    return NULL;
}

bool broker_client_is_up(const struct broker_client *c) {
    return c->state == BROKER_UP;
}

/* The request as text, or NULL when it cannot be sent. */
static char *request_text(const char *name, json_t *fields, uint64_t seq, struct sp_error *err) {
    _cleanup_json_ json_t *request = fields ? fields : json_object();
    char *text;
    if (!request || json_object_set_new(request, "request", json_string(name)) < 0 ||
        json_object_set_new(request, "seq", json_integer((json_int_t)seq)) < 0) {
        sp_error_set(err, SP_E_INTERNAL, "out of memory");
        return NULL;
    }
    text = json_print(request);
    if (strlen(text) > BROKER_CLIENT_MESSAGE_MAX) {
        sp_error_set(err, SP_E_TOO_LARGE, "%s is over the size of a request", name);
        free(text);
        return NULL;
    }
    return text;
}

int broker_call_start(struct broker_client *c, const char *name, json_t *fields,
                      void (*done)(void *ctx, const json_t *reply, const struct sp_error *err), void *ctx,
                      struct broker_call **ret, struct sp_error *err) {
    struct sp_error why = {0};
    char *text = request_text(name, fields, c->next_seq, &why);
    struct broker_call *call = NULL;
    if (text && c->state != BROKER_UP)
        sp_error_set(&why, SP_E_UNAVAILABLE, "the broker does not answer");
    else if (text && c->waiting.n + c->sent.n >= BROKER_CLIENT_REQUESTS_MAX)
        sp_error_set(&why, SP_E_UNAVAILABLE, "too many requests wait for the broker");
    else if (text && !(call = calloc(1, sizeof(*call))))
        sp_error_set(&why, SP_E_INTERNAL, "out of memory");
    if (!call) {
        free(text);
        if (err)
            *err = why;
        return -(int)why.code;
    }
    *call = (struct broker_call){.seq = c->next_seq++, .text = text, .done = done, .ctx = ctx};
    calls_add(&c->waiting, call);
    send_waiting(c);
    if (ret)
        *ret = call;
    return 0;
}

struct broker_call *broker_call_forget(struct broker_call *call) {
    if (call)
        call->done = NULL;
    return NULL;
}
