/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest channel (spec/guest-protocol.md §1) as a sans-I/O engine for both ends: bytes in → events, calls → bytes
 * in `out`. It owns the framing, epochs, the search for a HELLO, credit in both directions and every limit; it does not
 * read, write, wait or know records. Payload is never copied on the way in (events point into the caller's input) and
 * nothing is allocated after channel_init().
 *
 * Use, both roles:
 *     channel_init(&c, CHANNEL_HOST, &limits);            then host: channel_connect(&c, epoch, generation, resync)
 *     n = read(fd, buf, sizeof buf);  in = {buf, n};
 *     while ((r = channel_next(&c, &in, &ev)) > 0) { ... act on ev ... }      r < 0: the peer broke the protocol
 *     n = write(fd, c.out.data, c.out.len);  channel_sent(&c, n);
 * Poll for input only while channel_wants_input(); what is left in `in` when it says no must be fed again first.
 * Streams are named by id, which is never reused within an epoch, so a stale id is harmless: calls on it do nothing.
 */
#pragma once
#include "base/buf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHANNEL_MAGIC "SPACE-CHANNEL-1\n" /* 16 bytes on the wire, without the NUL */
#define CHANNEL_HEADER_SIZE 16u
#define CHANNEL_HELLO_SIZE 40u
#define CHANNEL_MAX_STREAMS 128u
#define CHANNEL_MAX_FRAME 32768u /* largest payload of a DATA frame */
#define CHANNEL_MIN_FRAME 256u
#define CHANNEL_MAX_WINDOW (1024u * 1024u)
#define CHANNEL_MIN_WINDOW 4096u
#define CHANNEL_DEFAULT_WINDOW (256u * 1024u)
#define CHANNEL_RESYNC_SIZE (CHANNEL_MAX_FRAME + CHANNEL_HEADER_SIZE + CHANNEL_HELLO_SIZE)

#define CHANNEL_PORT_AGENT 1u

enum channel_role { CHANNEL_HOST, CHANNEL_GUEST };

enum channel_op {
    CHANNEL_OP_HELLO = 1,
    CHANNEL_OP_HELLO_ACK = 2,
    CHANNEL_OP_OPEN = 3,
    CHANNEL_OP_OPENED = 4,
    CHANNEL_OP_DATA = 5,
    CHANNEL_OP_CREDIT = 6,
    CHANNEL_OP_SHUTDOWN = 7,
    CHANNEL_OP_RESET = 8,
};

enum channel_reason {
    CHANNEL_REFUSED = 1, /* no such port */
    CHANNEL_TOO_MANY = 2,
    CHANNEL_PROTOCOL = 3,
    CHANNEL_CREDIT = 4, /* the peer sent more than it was allowed */
    CHANNEL_CANCELLED = 5,
    CHANNEL_EPOCH = 6, /* ended by a HELLO or a lost connection */
};

enum channel_event_type {
    CHANNEL_EV_CONNECTED, /* guest: a HELLO came, every earlier stream is gone; host: the guest acknowledged ours */
    CHANNEL_EV_OPEN,      /* guest: stream `id` for `port` wants channel_accept() or channel_reset(CHANNEL_REFUSED) */
    CHANNEL_EV_OPENED,    /* host: the guest accepted the stream */
    CHANNEL_EV_DATA,   /* `data` (≥ 1 byte, in the caller's input); give it back by channel_consume() when used up */
    CHANNEL_EV_CREDIT, /* the peer consumed something: channel_sendable() grew */
    CHANNEL_EV_SHUTDOWN, /* the peer sends no more; `ended`: we had shut down too, the stream is gone */
    CHANNEL_EV_RESET,    /* the stream is gone, `reason` says why (also when we reset it for a fault of the peer) */
    CHANNEL_EV_LOST,     /* guest: the host broke the framing; every stream is gone, silence until the next HELLO */
};

struct channel_event {
    enum channel_event_type type;
    uint32_t id;
    uint32_t port;   /* OPEN */
    uint32_t reason; /* RESET */
    bool ended;      /* SHUTDOWN */
    void *user;      /* as given to channel_open / channel_accept; NULL for CONNECTED, LOST and OPEN */
    struct view data;
};

struct channel_limits {
    uint32_t window;    /* offered; the smaller of both ends counts. 0: default */
    uint32_t max_frame; /* offered; the smaller of both ends counts. 0: default */
    size_t out_max;     /* data bytes queued in `out` before channel_sendable() says 0. 0: 128 KiB */
};

struct channel_stream { /* private */
    uint32_t id;        /* 0: free slot */
    uint32_t send_credit;
    uint32_t recv_credit;
    uint32_t owed; /* consumed, not yet given back as CREDIT */
    bool waiting;  /* host: no OPENED yet; guest: not accepted yet */
    bool sent_end; /* we sent SHUTDOWN */
    bool got_end;  /* the peer did */
    void *user;
};

enum channel_state { CHANNEL_IDLE, CHANNEL_SEARCHING, CHANNEL_SYNCED, CHANNEL_BROKEN };

struct channel {
    struct buf out; /* to be written to the port; take from the front by channel_sent() */
    enum channel_state state;
    uint64_t epoch;             /* of the connection, 0 before the first */
    uint64_t generation;        /* of the last HELLO */
    uint32_t window, max_frame; /* agreed; the offer before that */
    uint32_t n_streams;
    /* private: */
    enum channel_role role;
    uint32_t offer_window, offer_frame;
    size_t out_max;
    uint32_t last_id; /* highest id opened in this epoch */
    uint32_t hint;    /* slot of the last stream found */
    bool owing;       /* some CREDIT waits for room in out */
    uint8_t head[CHANNEL_HEADER_SIZE + CHANNEL_HELLO_SIZE];
    uint32_t head_len;
    uint32_t body_left; /* of the DATA frame being read */
    uint32_t body_id;   /* its stream, 0: skip the payload */
    struct channel_stream streams[CHANNEL_MAX_STREAMS];
};

/* 0 or -ENOMEM. limits may be NULL for the defaults. A guest searches for a HELLO from here on. */
int channel_init(struct channel *c, enum channel_role role, const struct channel_limits *limits);
void channel_done(struct channel *c);

/* Host: a new connection. Forgets every stream (without events), drops unsent output and queues HELLO. `resync`: the
 * guest may be inside a frame (it was neither booted nor quiesced by us), so padding that ends any frame goes first.
 * epoch must be random and not 0. */
void channel_connect(struct channel *c, uint64_t epoch, uint64_t generation, bool resync);
/* Forgets every stream and all output without telling the peer, and drops input until a HELLO (guest) or until
 * channel_connect (host): what both ends do after QUIESCED. */
void channel_disconnect(struct channel *c);

/* The next event out of `in`, which is advanced. 1: *ret is filled; 0: more input (or room in `out`) is needed;
 * -EPROTO: host only, the guest broke the framing and the channel is dead (a guest searches for the next HELLO
 * instead). Bytes left in `in` after 0 mean that `out` has to drain first. */
int channel_next(struct channel *c, struct view *in, struct channel_event *ret);
bool channel_wants_input(const struct channel *c);

/* Host: 0 and *ret_id; -ENOTCONN before CONNECTED, -EMFILE at the stream limit, -EAGAIN while `out` is full. Data may
 * follow at once; OPENED or RESET comes as an event. */
int channel_open(struct channel *c, uint32_t port, void *user, uint32_t *ret_id);
/* Guest: answers CHANNEL_EV_OPEN. */
void channel_accept(struct channel *c, uint32_t id, void *user);

/* How many bytes channel_send() would take now: credit and room in `out`; 0 for a stream that is gone or shut down. */
size_t channel_sendable(const struct channel *c, uint32_t id);
/* Queues DATA frames for as much as fits; returns the number of bytes taken. */
size_t channel_send(struct channel *c, uint32_t id, const void *data, size_t len);
/* All of the parts, or nothing (false). For records, which must not be cut by a later decision. */
bool channel_send_all(struct channel *c, uint32_t id, const struct view *parts, size_t n);
/* The receiver used n bytes of DATA: they become CREDIT (batched). More than was received is a programming error. */
void channel_consume(struct channel *c, uint32_t id, size_t n);
/* Half close. True when the peer had shut down too: the stream is gone. */
bool channel_shutdown(struct channel *c, uint32_t id);
void channel_reset(struct channel *c, uint32_t id, enum channel_reason reason);
/* The stream's user pointer, NULL when the id is unknown. */
void *channel_user(const struct channel *c, uint32_t id);

/* n bytes of c->out.data were written to the port. */
void channel_sent(struct channel *c, size_t n);
