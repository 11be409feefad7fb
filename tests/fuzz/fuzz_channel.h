/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of the guest channel against a hostile peer. The input is what the peer sends, after a good HELLO (or its
 * acknowledgement) when the first byte is even; its bytes also choose how the stream is cut and what we do in between.
 * Promises: no event for a stream that does not exist, never more data than the window, output and streams bounded.
 */
#pragma once
#include "fuzz.h"
#include "wire/channel.h"
#include <errno.h>
#include <string.h>

#define FUZZ_EPOCH 0x0102030405060708ull
#define FUZZ_OUT_MAX 4096u
#define FUZZ_OUT_BOUND (FUZZ_OUT_MAX + 64u * 1024u)

struct fuzz_stream {
    uint32_t id;
    size_t unread; /* data we got and have not consumed */
};

struct fuzz_state {
    struct channel c;
    struct fuzz_stream streams[CHANNEL_MAX_STREAMS];
    uint32_t random;
};

static uint32_t fuzz_next(struct fuzz_state *f) {
    f->random = f->random * 1664525u + 1013904223u;
    return f->random >> 8;
}

static struct fuzz_stream *fuzz_find(struct fuzz_state *f, uint32_t id) {
    for (size_t i = 0; i < CHANNEL_MAX_STREAMS; i++)
        if (f->streams[i].id == id)
            return &f->streams[i];
    return NULL;
}

static struct fuzz_stream *fuzz_add(struct fuzz_state *f, uint32_t id) {
    struct fuzz_stream *s = fuzz_find(f, 0);
    FUZZ_CHECK(s && !fuzz_find(f, id));
    *s = (struct fuzz_stream){.id = id};
    return s;
}

/* What a caller might do with a stream just now. */
static void fuzz_act(struct fuzz_state *f, struct fuzz_stream *s) {
    static const char data[5000];
    uint32_t r = fuzz_next(f), id = s->id;

    switch (r % 6) {
    case 0:
    case 1: {
        size_t n = s->unread ? 1 + r / 8 % s->unread : 0;
        channel_consume(&f->c, id, n);
        s->unread -= n;
        break;
    }
    case 2: {
        size_t may = channel_sendable(&f->c, id), n = channel_send(&f->c, id, data, r / 8 % sizeof(data));
        FUZZ_CHECK(n <= may);
        break;
    }
    case 3:
        if (r / 8 % 4 == 0 && channel_shutdown(&f->c, id))
            s->id = 0;
        break;
    case 4:
        if (r / 8 % 16 == 0) {
            channel_reset(&f->c, id, CHANNEL_CANCELLED);
            s->id = 0;
        }
        break;
    default:
        channel_sent(&f->c, f->c.out.len ? r / 8 % (f->c.out.len + 1) : 0);
        break;
    }
}

static void fuzz_event(struct fuzz_state *f, const struct channel_event *ev) {
    struct fuzz_stream *s = fuzz_find(f, ev->id);

    switch (ev->type) {
    case CHANNEL_EV_CONNECTED:
    case CHANNEL_EV_LOST:
        memset(f->streams, 0, sizeof(f->streams));
        return;
    case CHANNEL_EV_OPEN:
        s = fuzz_add(f, ev->id);
        channel_accept(&f->c, ev->id, s);
        break;
    case CHANNEL_EV_DATA:
        FUZZ_CHECK(s && ev->id && ev->data.len > 0);
        for (size_t i = 0; i < ev->data.len; i++)
            f->random += ev->data.p[i]; /* all of it can be read */
        s->unread += ev->data.len;
        FUZZ_CHECK(s->unread <= f->c.window);
        break;
    case CHANNEL_EV_SHUTDOWN:
        FUZZ_CHECK(s && ev->id);
        if (ev->ended)
            s->id = 0;
        break;
    case CHANNEL_EV_RESET:
        FUZZ_CHECK(s && ev->id);
        s->id = 0;
        break;
    case CHANNEL_EV_OPENED:
    case CHANNEL_EV_CREDIT:
        FUZZ_CHECK(s && ev->id);
        break;
    }
    if (s && s->id)
        fuzz_act(f, s);
}

static void fuzz_check_bounds(const struct fuzz_state *f) {
    size_t n = 0;
    for (size_t i = 0; i < CHANNEL_MAX_STREAMS; i++)
        n += f->streams[i].id != 0;
    FUZZ_CHECK(f->c.out.len <= FUZZ_OUT_BOUND);
    FUZZ_CHECK(f->c.n_streams == n);
}

static void fuzz_feed(struct fuzz_state *f, const uint8_t *data, size_t size) {
    struct channel_event ev;
    int r = 0;

    while (size > 0 && r >= 0) {
        size_t cut = 1 + fuzz_next(f) % (fuzz_next(f) % 8 ? 64 : 8192);
        struct view in = {data, cut < size ? cut : size};
        size -= in.len;
        data += in.len;
        do {
            while ((r = channel_next(&f->c, &in, &ev)) > 0) {
                fuzz_event(f, &ev);
                fuzz_check_bounds(f);
            }
            if (in.len > 0)
                channel_sent(&f->c, f->c.out.len); /* only a full output may leave input over */
        } while (r == 0 && in.len > 0);
        if (r < 0)
            FUZZ_CHECK(r == -EPROTO && f->c.role == CHANNEL_HOST);
    }
}

static void fuzz_channel(enum channel_role role, const uint8_t *data, size_t size) {
    static struct fuzz_state f;
    struct channel_limits limits = {.window = CHANNEL_MIN_WINDOW, .out_max = FUZZ_OUT_MAX};
    struct channel peer;

    memset(&f, 0, sizeof(f));
    FUZZ_CHECK(channel_init(&f.c, role, &limits) == 0);
    f.random = size > 1 ? data[1] : 1;
    if (role == CHANNEL_HOST)
        channel_connect(&f.c, FUZZ_EPOCH, 1, false);
    if (size > 0 && data[0] % 2 == 0) {
        FUZZ_CHECK(channel_init(&peer, CHANNEL_HOST, &limits) == 0);
        channel_connect(&peer, FUZZ_EPOCH, 1, false);
        if (role == CHANNEL_HOST)
            peer.out.data[0] = CHANNEL_OP_HELLO_ACK;
        fuzz_feed(&f, (const uint8_t *)peer.out.data, peer.out.len);
        channel_done(&peer);
        FUZZ_CHECK(f.c.state == CHANNEL_SYNCED);
        for (uint32_t i = 0, id; role == CHANNEL_HOST && i < 5; i++)
            if (channel_open(&f.c, CHANNEL_PORT_AGENT, NULL, &id) == 0)
                (void)fuzz_add(&f, id);
    }
    if (size > 2)
        fuzz_feed(&f, data + 2, size - 2);
    channel_done(&f.c);
}
