/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of the guest channel: finds the HELLO (or its acknowledgement), then takes frames apart. Every
 * header is checked before anything is done with it; a fault of the framing ends the connection, a fault within one
 * stream ends that stream.
 */
#include "wire/channel.h"
#include "wire/channel_internal.h"
#include <errno.h>
#include <string.h>

struct frame {
    uint8_t op;
    uint32_t epoch, id, arg;
};

static struct frame frame_read(const uint8_t *head) {
    return (
        struct frame){.op = head[0], .epoch = load_u32(head + 4), .id = load_u32(head + 8), .arg = load_u32(head + 12)};
}

static bool zero(const uint8_t *p, size_t from, size_t to, size_t len) {
    for (size_t i = from; i < to && i < len; i++)
        if (p[i] != 0)
            return false;
    return true;
}

static size_t within(size_t len, size_t from, size_t size) {
    if (len <= from)
        return 0;
    return len - from < size ? len - from : size;
}

/* Can the first len bytes be the start of a HELLO (guest) or of the acknowledgement we wait for (host)? */
static bool hello_may_start(const struct channel *c, const uint8_t *p, size_t len) {
    static const uint8_t size[4] = {CHANNEL_HELLO_SIZE, 0, 0, 0};
    uint8_t op = c->role == CHANNEL_GUEST ? CHANNEL_OP_HELLO : CHANNEL_OP_HELLO_ACK;
    uint8_t epoch[8];

    if (p[0] != op || !zero(p, 1, 4, len) || !zero(p, 8, 12, len))
        return false;
    if (memcmp(p + 12, size, within(len, 12, 4)) != 0 || memcmp(p + 16, CHANNEL_MAGIC, within(len, 16, 16)) != 0)
        return false;
    if (c->role == CHANNEL_HOST) {
        store_u64(epoch, c->epoch);
        return memcmp(p + 4, epoch, within(len, 4, 4)) == 0 && memcmp(p + 32, epoch, within(len, 32, 8)) == 0;
    }
    return memcmp(p + 32, p + 4, within(len, 32, 4)) == 0;
}

/* A whole HELLO whose shape was checked: are its values in range? Takes them over. */
static bool hello_take(struct channel *c) {
    const uint8_t *body = c->head + CHANNEL_HEADER_SIZE;
    uint64_t epoch = load_u64(body + 16), generation = load_u64(body + 24);
    uint32_t window = load_u32(body + 32), frame = load_u32(body + 36);

    if (epoch == 0 || window < CHANNEL_MIN_WINDOW || frame < CHANNEL_MIN_FRAME)
        return false;
    if (c->role == CHANNEL_HOST && (window > c->offer_window || frame > c->offer_frame || generation != c->generation))
        return false;
    if (c->role == CHANNEL_GUEST)
        channel_forget(c, CHANNEL_SYNCED);
    c->epoch = epoch;
    c->generation = generation;
    c->window = window < c->offer_window ? window : c->offer_window;
    c->max_frame = frame < c->offer_frame ? frame : c->offer_frame;
    c->state = CHANNEL_SYNCED;
    if (c->role == CHANNEL_GUEST)
        channel_put_hello(c, CHANNEL_OP_HELLO_ACK);
    return true;
}

/* Drops bytes from the front of the held ones until what is left may start a HELLO. */
static void search_shift(struct channel *c) {
    uint32_t from = 1;
    while (from < c->head_len && !hello_may_start(c, c->head + from, c->head_len - from))
        from++;
    c->head_len -= from;
    memmove(c->head, c->head + from, c->head_len);
}

static int search(struct channel *c, struct view *in, struct channel_event *ret) {
    if (c->head_len > 0 && !hello_may_start(c, c->head, c->head_len))
        search_shift(c);
    while (in->len > 0) {
        uint8_t byte = *in->p;
        in->p++;
        in->len--;
        c->head[c->head_len++] = byte;
        if (!hello_may_start(c, c->head, c->head_len)) {
            search_shift(c);
        } else if (c->head_len == sizeof(c->head)) {
            if (hello_take(c)) {
                c->head_len = 0;
                *ret = (struct channel_event){.type = CHANNEL_EV_CONNECTED};
                return 1;
            }
            search_shift(c);
        }
    }
    return 0;
}

/* The peer broke the framing. The guest looks for a HELLO from the second byte of the bad header on. */
static int broken(struct channel *c, struct channel_event *ret) {
    if (c->role == CHANNEL_HOST) {
        channel_forget(c, CHANNEL_BROKEN);
        return -EPROTO;
    }
    channel_forget(c, CHANNEL_SEARCHING);
    search_shift(c);
    *ret = (struct channel_event){.type = CHANNEL_EV_LOST};
    return 1;
}

/* The peer broke the rules of one stream: it is reset, the caller hears of it. */
static int fault(struct channel *c, struct channel_stream *s, enum channel_reason reason, struct channel_event *ret) {
    *ret = (struct channel_event){.type = CHANNEL_EV_RESET, .id = s->id, .reason = reason, .user = s->user};
    channel_reset(c, s->id, reason);
    return 1;
}

static int on_open(struct channel *c, const struct frame *f, struct channel_event *ret) {
    if (f->id <= c->last_id)
        return broken(c, ret);
    if (!channel_add(c, f->id, NULL)) {
        c->last_id = f->id;
        channel_put(c, CHANNEL_OP_RESET, f->id, CHANNEL_TOO_MANY);
        return 0;
    }
    *ret = (struct channel_event){.type = CHANNEL_EV_OPEN, .id = f->id, .port = f->arg};
    return 1;
}

static int on_data(struct channel *c, struct channel_stream *s, const struct frame *f, struct channel_event *ret) {
    c->body_left = f->arg;
    c->body_id = 0;
    if (f->arg > c->max_frame || s->got_end)
        return fault(c, s, CHANNEL_PROTOCOL, ret);
    if (f->arg > s->recv_credit)
        return fault(c, s, CHANNEL_CREDIT, ret);
    s->recv_credit -= f->arg;
    c->body_id = s->id;
    return 0;
}

static int on_credit(struct channel *c, struct channel_stream *s, const struct frame *f, struct channel_event *ret) {
    if (f->arg > c->window - s->send_credit)
        return fault(c, s, CHANNEL_CREDIT, ret);
    s->send_credit += f->arg;
    *ret = (struct channel_event){.type = CHANNEL_EV_CREDIT, .id = s->id, .user = s->user};
    return 1;
}

static int on_shutdown(struct channel *c, struct channel_stream *s, struct channel_event *ret) {
    if (s->got_end)
        return fault(c, s, CHANNEL_PROTOCOL, ret);
    s->got_end = true;
    *ret = (struct channel_event){.type = CHANNEL_EV_SHUTDOWN, .id = s->id, .ended = s->sent_end, .user = s->user};
    if (s->sent_end)
        channel_remove(c, s);
    return 1;
}

/* A frame of a stream that exists. 1: an event; 0: none. */
static int stream_frame(struct channel *c, struct channel_stream *s, const struct frame *f, struct channel_event *ret) {
    if (c->role == CHANNEL_HOST && s->waiting != (f->op == CHANNEL_OP_OPENED) && f->op != CHANNEL_OP_RESET) {
        if (f->op == CHANNEL_OP_DATA) {
            c->body_left = f->arg;
            c->body_id = 0;
        }
        return fault(c, s, CHANNEL_PROTOCOL, ret);
    }
    switch (f->op) {
    case CHANNEL_OP_OPENED:
        s->waiting = false;
        *ret = (struct channel_event){.type = CHANNEL_EV_OPENED, .id = s->id, .user = s->user};
        return 1;
    case CHANNEL_OP_DATA:
        return on_data(c, s, f, ret);
    case CHANNEL_OP_CREDIT:
        return on_credit(c, s, f, ret);
    case CHANNEL_OP_SHUTDOWN:
        return on_shutdown(c, s, ret);
    default:
        *ret = (struct channel_event){.type = CHANNEL_EV_RESET, .id = s->id, .reason = f->arg, .user = s->user};
        channel_remove(c, s);
        return 1;
    }
}

/* Is the header one the peer may send at all? Independent of the epoch. */
static bool frame_allowed(const struct channel *c, const struct frame *f) {
    if (c->head[1] != 0 || c->head[2] != 0 || c->head[3] != 0)
        return false;
    switch (f->op) {
    case CHANNEL_OP_HELLO:
        return c->role == CHANNEL_GUEST && f->id == 0 && f->arg == CHANNEL_HELLO_SIZE;
    case CHANNEL_OP_OPEN:
        return c->role == CHANNEL_GUEST && f->id % 2 == 1;
    case CHANNEL_OP_OPENED:
        return c->role == CHANNEL_HOST && f->id % 2 == 1 && f->arg == 0;
    case CHANNEL_OP_DATA:
        return f->id % 2 == 1 && f->arg >= 1 && f->arg <= CHANNEL_MAX_FRAME;
    case CHANNEL_OP_CREDIT:
        return f->id % 2 == 1 && f->arg >= 1;
    case CHANNEL_OP_SHUTDOWN:
        return f->id % 2 == 1 && f->arg == 0;
    case CHANNEL_OP_RESET:
        return f->id % 2 == 1;
    default:
        return false;
    }
}

/* A whole header of the synced state lies in c->head. 1: an event; 0: none; -EPROTO. */
static int take_header(struct channel *c, struct channel_event *ret) {
    struct frame f = frame_read(c->head);
    struct channel_stream *s;

    if (!frame_allowed(c, &f))
        return broken(c, ret);
    if (f.epoch != (uint32_t)c->epoch) {
        if (f.op == CHANNEL_OP_DATA)
            c->body_left = f.arg;
        c->body_id = 0;
        return 0;
    }
    if (f.op == CHANNEL_OP_OPEN)
        return on_open(c, &f, ret);
    if (f.id > c->last_id)
        return broken(c, ret);
    s = channel_find(c, f.id);
    if (s)
        return stream_frame(c, s, &f, ret);
    if (f.op == CHANNEL_OP_DATA) {
        c->body_left = f.arg;
        c->body_id = 0;
    }
    return 0;
}

static void fill_head(struct channel *c, struct view *in, uint32_t want) {
    size_t n = want - c->head_len;
    if (n > in->len)
        n = in->len;
    memcpy(c->head + c->head_len, in->p, n);
    c->head_len += (uint32_t)n;
    in->p += n;
    in->len -= n;
}

/* Payload of the DATA frame being read. 1: an event; 0: it was dropped. in is not empty. */
static int take_body(struct channel *c, struct view *in, struct channel_event *ret) {
    size_t n = in->len < c->body_left ? in->len : c->body_left;
    struct view data = {in->p, n};
    struct channel_stream *s = channel_find(c, c->body_id);

    in->p += n;
    in->len -= n;
    c->body_left -= (uint32_t)n;
    if (!s)
        return 0;
    *ret = (struct channel_event){.type = CHANNEL_EV_DATA, .id = s->id, .data = data, .user = s->user};
    return 1;
}

/* A HELLO inside a synced connection: its payload must follow. */
static int take_hello(struct channel *c, struct view *in, struct channel_event *ret) {
    fill_head(c, in, sizeof(c->head));
    if (c->head_len < sizeof(c->head))
        return 0;
    if (!hello_may_start(c, c->head, c->head_len) || !hello_take(c))
        return broken(c, ret);
    c->head_len = 0;
    *ret = (struct channel_event){.type = CHANNEL_EV_CONNECTED};
    return 1;
}

static int take_frame(struct channel *c, struct view *in, struct channel_event *ret) {
    int r;

    if (c->head_len < CHANNEL_HEADER_SIZE)
        fill_head(c, in, CHANNEL_HEADER_SIZE);
    if (c->head_len < CHANNEL_HEADER_SIZE)
        return 0;
    if (c->head[0] == CHANNEL_OP_HELLO) {
        struct frame f = frame_read(c->head);
        if (frame_allowed(c, &f))
            return take_hello(c, in, ret);
    }
    r = take_header(c, ret);
    if (c->state == CHANNEL_SYNCED)
        c->head_len = 0;
    return r;
}

bool channel_wants_input(const struct channel *c) {
    return c->state != CHANNEL_BROKEN && c->out.len <= c->out_max + CHANNEL_CONTROL_RESERVE / 2;
}

int channel_next(struct channel *c, struct view *in, struct channel_event *ret) {
    while (in->len > 0) {
        int r = 0;
        switch (c->state) {
        case CHANNEL_BROKEN:
            return -EPROTO;
        case CHANNEL_IDLE:
            in->p += in->len;
            in->len = 0;
            break;
        case CHANNEL_SEARCHING:
            r = search(c, in, ret);
            break;
        case CHANNEL_SYNCED:
            if (c->body_left > 0) {
                r = take_body(c, in, ret);
            } else if (!channel_wants_input(c)) {
                return 0;
            } else {
                r = take_frame(c, in, ret);
            }
            break;
        }
        if (r != 0)
            return r;
    }
    return 0;
}
