/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest channel engine: streams, credit and output. Frames coming in are taken apart in channel_input.c.
 *
 * `out` holds at most out_max bytes of data frames plus a reserve for control frames. What fills the reserve is bounded
 * by the number of streams (their RESET, SHUTDOWN and CREDIT) and by input: frames that need an answer are not read
 * while half of the reserve is used. So control frames always fit, and two peers that both wait for room in their
 * output still read each other's frames. The allocation is twice that bound: a buffer half empty is moved down, never
 * allocated again.
 */
#include "wire/channel.h"
#include "wire/channel_internal.h"
#include <assert.h>
#include <errno.h>
#include <string.h>

#define DEFAULT_OUT_MAX (128u * 1024u)

static uint32_t clamp_offer(uint32_t value, uint32_t fallback, uint32_t min, uint32_t max) {
    if (value == 0)
        return fallback;
    return value < min ? min : value > max ? max : value;
}

int channel_init(struct channel *c, enum channel_role role, const struct channel_limits *limits) {
    static const struct channel_limits none;
    const struct channel_limits *l = limits ? limits : &none;

    memset(c, 0, sizeof(*c));
    c->role = role;
    c->offer_window = clamp_offer(l->window, CHANNEL_DEFAULT_WINDOW, CHANNEL_MIN_WINDOW, CHANNEL_MAX_WINDOW);
    c->offer_frame = clamp_offer(l->max_frame, CHANNEL_MAX_FRAME, CHANNEL_MIN_FRAME, CHANNEL_MAX_FRAME);
    c->window = c->offer_window;
    c->max_frame = c->offer_frame;
    c->out_max = l->out_max ? l->out_max : DEFAULT_OUT_MAX;
    c->state = role == CHANNEL_GUEST ? CHANNEL_SEARCHING : CHANNEL_IDLE;
    buf_init(&c->out, 2 * (c->out_max + CHANNEL_CONTROL_RESERVE));
    return buf_reserve(&c->out, c->out.max) ? 0 : -ENOMEM;
}

void channel_done(struct channel *c) {
    buf_done(&c->out);
    c->state = CHANNEL_BROKEN;
}

/* Everything of the connection that was: streams, output, half-read frames. */
void channel_forget(struct channel *c, enum channel_state next) {
    memset(c->streams, 0, sizeof(c->streams));
    buf_reset(&c->out);
    c->n_streams = 0;
    c->last_id = 0;
    c->hint = 0;
    c->owing = false;
    c->body_left = 0;
    c->body_id = 0;
    c->state = next;
}

void channel_disconnect(struct channel *c) {
    channel_forget(c, c->role == CHANNEL_GUEST ? CHANNEL_SEARCHING : CHANNEL_IDLE);
    c->head_len = 0;
}

void channel_put(struct channel *c, enum channel_op op, uint32_t id, uint32_t arg) {
    char *p = buf_reserve(&c->out, CHANNEL_HEADER_SIZE);
    assert(p);
    memset(p, 0, 4);
    p[0] = (char)op;
    store_u32(p + 4, (uint32_t)c->epoch);
    store_u32(p + 8, id);
    store_u32(p + 12, arg);
    buf_commit(&c->out, CHANNEL_HEADER_SIZE);
}

void channel_put_hello(struct channel *c, enum channel_op op) {
    char p[CHANNEL_HELLO_SIZE];

    channel_put(c, op, 0, CHANNEL_HELLO_SIZE);
    memcpy(p, CHANNEL_MAGIC, 16);
    store_u64(p + 16, c->epoch);
    store_u64(p + 24, c->generation);
    store_u32(p + 32, c->window);
    store_u32(p + 36, c->max_frame);
    (void)buf_append(&c->out, p, sizeof(p));
}

void channel_connect(struct channel *c, uint64_t epoch, uint64_t generation, bool resync) {
    assert(c->role == CHANNEL_HOST && epoch != 0);
    channel_forget(c, CHANNEL_SEARCHING);
    c->head_len = 0;
    c->epoch = epoch;
    c->generation = generation;
    c->window = c->offer_window;
    c->max_frame = c->offer_frame;
    if (resync) {
        char *p = buf_reserve(&c->out, CHANNEL_RESYNC_SIZE);
        if (p) {
            memset(p, 0, CHANNEL_RESYNC_SIZE);
            buf_commit(&c->out, CHANNEL_RESYNC_SIZE);
        }
    }
    channel_put_hello(c, CHANNEL_OP_HELLO);
}

struct channel_stream *channel_find(struct channel *c, uint32_t id) {
    if (id == 0)
        return NULL;
    if (c->streams[c->hint].id == id)
        return &c->streams[c->hint];
    for (uint32_t i = 0; i < CHANNEL_MAX_STREAMS; i++) {
        if (c->streams[i].id == id) {
            c->hint = i;
            return &c->streams[i];
        }
    }
    return NULL;
}

static const struct channel_stream *find_const(const struct channel *c, uint32_t id) {
    if (id == 0)
        return NULL;
    if (c->streams[c->hint].id == id)
        return &c->streams[c->hint];
    for (uint32_t i = 0; i < CHANNEL_MAX_STREAMS; i++)
        if (c->streams[i].id == id)
            return &c->streams[i];
    return NULL;
}

struct channel_stream *channel_add(struct channel *c, uint32_t id, void *user) {
    for (uint32_t i = 0; i < CHANNEL_MAX_STREAMS; i++) {
        struct channel_stream *s = &c->streams[i];
        if (s->id != 0)
            continue;
        *s = (struct channel_stream){
            .id = id, .send_credit = c->window, .recv_credit = c->window, .waiting = true, .user = user};
        c->last_id = id;
        c->n_streams++;
        return s;
    }
    return NULL;
}

void channel_remove(struct channel *c, struct channel_stream *s) {
    *s = (struct channel_stream){0};
    c->n_streams--;
}

int channel_open(struct channel *c, uint32_t port, void *user, uint32_t *ret_id) {
    struct channel_stream *s;

    assert(c->role == CHANNEL_HOST);
    if (c->state != CHANNEL_SYNCED || c->last_id > UINT32_MAX - 2)
        return -ENOTCONN;
    if (c->out.len > c->out_max)
        return -EAGAIN;
    s = channel_add(c, c->last_id == 0 ? 1 : c->last_id + 2, user);
    if (!s)
        return -EMFILE;
    *ret_id = s->id;
    channel_put(c, CHANNEL_OP_OPEN, *ret_id, port);
    return 0;
}

void channel_accept(struct channel *c, uint32_t id, void *user) {
    struct channel_stream *s = channel_find(c, id);

    assert(c->role == CHANNEL_GUEST);
    if (!s || !s->waiting)
        return;
    s->waiting = false;
    s->user = user;
    channel_put(c, CHANNEL_OP_OPENED, id, 0);
}

/* Payload for which there is room below out_max, frame headers counted. */
static size_t out_room(const struct channel *c) {
    size_t room = c->out.len < c->out_max ? c->out_max - c->out.len : 0;
    size_t headers = CHANNEL_HEADER_SIZE * (room / c->max_frame + 1);
    return room > headers ? room - headers : 0;
}

size_t channel_sendable(const struct channel *c, uint32_t id) {
    const struct channel_stream *s = find_const(c, id);
    size_t room = out_room(c);

    if (!s || s->sent_end || c->state != CHANNEL_SYNCED)
        return 0;
    return s->send_credit < room ? s->send_credit : room;
}

size_t channel_send(struct channel *c, uint32_t id, const void *data, size_t len) {
    size_t n = channel_sendable(c, id);
    struct view part = {data, n < len ? n : len};
    return part.len > 0 && channel_send_all(c, id, &part, 1) ? part.len : 0;
}

/* Appends n bytes of the parts to out, moving on in them. They hold at least n. */
static void put_parts(struct channel *c, size_t n, const struct view **part, const struct view *end, size_t *offset) {
    while (n > 0 && *part < end) {
        size_t left = (*part)->len - *offset, take = left < n ? left : n;
        if (take > 0)
            (void)buf_append(&c->out, (*part)->p + *offset, take);
        n -= take;
        *offset += take;
        if (*offset == (*part)->len) {
            (*part)++;
            *offset = 0;
        }
    }
}

bool channel_send_all(struct channel *c, uint32_t id, const struct view *parts, size_t n) {
    size_t total = 0, offset = 0;
    const struct view *part = parts;
    struct channel_stream *s = channel_find(c, id);

    for (size_t i = 0; i < n; i++)
        total += parts[i].len;
    if (!s || total > channel_sendable(c, id))
        return false;
    while (total > 0) {
        uint32_t take = total < c->max_frame ? (uint32_t)total : c->max_frame;
        channel_put(c, CHANNEL_OP_DATA, id, take);
        put_parts(c, take, &part, parts + n, &offset);
        s->send_credit -= take;
        total -= take;
    }
    assert(!c->out.failed);
    return true;
}

static void give_credit(struct channel *c, struct channel_stream *s) {
    if (s->got_end || s->owed < c->window / 4)
        return;
    if (c->out.len > c->out_max) {
        c->owing = true;
        return;
    }
    s->recv_credit += s->owed;
    uint32_t owed = s->owed;
    s->owed = 0;
    channel_put(c, CHANNEL_OP_CREDIT, s->id, owed);
}

void channel_consume(struct channel *c, uint32_t id, size_t n) {
    struct channel_stream *s = channel_find(c, id);
    if (!s || n == 0)
        return;
    assert(n <= c->window - s->recv_credit - s->owed);
    s->owed += (uint32_t)n;
    give_credit(c, s);
}

bool channel_shutdown(struct channel *c, uint32_t id) {
    struct channel_stream *s = channel_find(c, id);
    if (!s)
        return true;
    if (s->sent_end)
        return false;
    s->sent_end = true;
    bool ended = s->got_end;
    if (ended)
        channel_remove(c, s);
    channel_put(c, CHANNEL_OP_SHUTDOWN, id, 0);
    return ended;
}

void channel_reset(struct channel *c, uint32_t id, enum channel_reason reason) {
    struct channel_stream *s = channel_find(c, id);
    if (!s)
        return;
    channel_remove(c, s);
    channel_put(c, CHANNEL_OP_RESET, id, (uint32_t)reason);
}

void *channel_user(const struct channel *c, uint32_t id) {
    const struct channel_stream *s = find_const(c, id);
    return s ? s->user : NULL;
}

void channel_sent(struct channel *c, size_t n) {
    buf_consume(&c->out, n);
    if (!c->owing || c->out.len > c->out_max)
        return;
    c->owing = false;
    for (uint32_t i = 0; i < CHANNEL_MAX_STREAMS; i++)
        if (c->streams[i].id != 0)
            give_credit(c, &c->streams[i]);
}
