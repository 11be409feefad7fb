/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises: bytes arrive in order and whole whatever the cuts; nobody sends beyond credit; a peer that breaks a rule
 * loses the stream or the connection, never more; nothing of an old epoch gets through; output is bounded.
 */
#include "unit.h"
#include "wire/channel.h"
#include <errno.h>

struct pair {
    struct channel host, guest;
};

static void pair_init(struct pair *p, const struct channel_limits *limits) {
    assert_int_equal(channel_init(&p->host, CHANNEL_HOST, limits), 0);
    assert_int_equal(channel_init(&p->guest, CHANNEL_GUEST, NULL), 0);
}

static void pair_done(struct pair *p) {
    channel_done(&p->host);
    channel_done(&p->guest);
}

/* Moves at most n bytes from one end's output to the other; returns the first event, or an event of type -1. */
static struct channel_event move_some(struct channel *from, struct channel *to, size_t n) {
    static uint8_t copy[1 << 20];
    struct channel_event ev, first = {.type = (enum channel_event_type) - 1};
    struct view in;
    bool seen = false;

    if (n > from->out.len)
        n = from->out.len;
    memcpy(copy, from->out.data, n);
    channel_sent(from, n);
    in = (struct view){copy, n};
    while (channel_next(to, &in, &ev) > 0) {
        if (ev.type == CHANNEL_EV_OPEN)
            channel_accept(to, ev.id, NULL);
        if (!seen)
            first = ev;
        seen = true;
    }
    return first;
}

static struct channel_event move(struct channel *from, struct channel *to) {
    return move_some(from, to, SIZE_MAX);
}

static void connect_pair(struct pair *p, uint64_t epoch) {
    channel_connect(&p->host, epoch, 7, false);
    assert_int_equal(move(&p->host, &p->guest).type, CHANNEL_EV_CONNECTED);
    assert_int_equal(move(&p->guest, &p->host).type, CHANNEL_EV_CONNECTED);
    assert_int_equal(p->guest.generation, 7);
    assert_true(p->guest.epoch == epoch);
}

static uint32_t open_stream(struct pair *p) {
    uint32_t id = 0;
    assert_int_equal(channel_open(&p->host, CHANNEL_PORT_AGENT, NULL, &id), 0);
    struct channel_event ev = move(&p->host, &p->guest);
    assert_int_equal(ev.type, CHANNEL_EV_OPEN);
    assert_int_equal(ev.port, CHANNEL_PORT_AGENT);
    assert_int_equal(move(&p->guest, &p->host).type, CHANNEL_EV_OPENED);
    return id;
}

static void put_raw(struct buf *b, uint8_t op, uint32_t epoch, uint32_t id, uint32_t arg) {
    (void)buf_append_byte(b, op);
    (void)buf_append(b, "\0\0\0", 3);
    (void)buf_put_u32(b, epoch);
    (void)buf_put_u32(b, id);
    (void)buf_put_u32(b, arg);
}

/* Feeds raw frames; returns channel_next's result and the event. */
static int feed(struct channel *c, struct buf *raw, struct channel_event *ev) {
    struct view in = {(const uint8_t *)raw->data, raw->len};
    int r = channel_next(c, &in, ev);
    buf_consume(raw, raw->len - in.len);
    return r;
}

static void smaller_offer_counts(void **state) {
    struct pair p;
    (void)state;
    pair_init(&p, &(struct channel_limits){.window = 8192, .max_frame = 512});
    connect_pair(&p, 99);
    assert_int_equal(p.guest.window, 8192);
    assert_int_equal(p.guest.max_frame, 512);
    assert_int_equal(p.host.window, 8192);
    pair_done(&p);
}

static void bytes_arrive_whatever_the_cuts(void **state) {
    struct pair p;
    struct channel_event ev;
    uint8_t sent[20000], got[20000];
    size_t n_sent = 0, n_got = 0;
    uint32_t id;
    (void)state;

    for (size_t i = 0; i < sizeof(sent); i++)
        sent[i] = (uint8_t)(i * 31 + i / 256);
    pair_init(&p, &(struct channel_limits){.window = 4096, .max_frame = 256});
    connect_pair(&p, 5);
    id = open_stream(&p);
    for (unsigned step = 1; n_got < sizeof(sent); step = step % 97 + 1) {
        n_sent += channel_send(&p.host, id, sent + n_sent, sizeof(sent) - n_sent);
        size_t n = step < p.host.out.len ? step : p.host.out.len;
        struct view in = {(const uint8_t *)p.host.out.data, n};
        while (channel_next(&p.guest, &in, &ev) > 0) {
            assert_int_equal(ev.type, CHANNEL_EV_DATA);
            memcpy(got + n_got, ev.data.p, ev.data.len);
            n_got += ev.data.len;
            channel_consume(&p.guest, id, ev.data.len);
        }
        assert_int_equal(in.len, 0);
        channel_sent(&p.host, n);
        (void)move(&p.guest, &p.host);
    }
    assert_memory_equal(sent, got, sizeof(sent));
    pair_done(&p);
}

static void credit_limits_the_sender(void **state) {
    struct pair p;
    static uint8_t data[300000];
    uint32_t id;
    (void)state;

    pair_init(&p, &(struct channel_limits){.window = 8192});
    connect_pair(&p, 5);
    id = open_stream(&p);
    assert_int_equal(channel_send(&p.host, id, data, sizeof(data)), 8192);
    assert_int_equal(channel_send(&p.host, id, data, sizeof(data)), 0);
    (void)move(&p.host, &p.guest);
    channel_consume(&p.guest, id, 2000); /* under a quarter: not worth a frame yet */
    assert_int_equal(p.guest.out.len, 0);
    channel_consume(&p.guest, id, 100);
    assert_int_equal(move(&p.guest, &p.host).type, CHANNEL_EV_CREDIT);
    assert_int_equal(channel_sendable(&p.host, id), 2100);
    assert_false(channel_send_all(&p.host, id, &(struct view){data, 2101}, 1));
    assert_true(channel_send_all(&p.host, id, (struct view[]){{data, 100}, {data, 0}, {data, 2000}}, 3));
    assert_int_equal(channel_sendable(&p.host, id), 0);
    pair_done(&p);
}

static void output_is_bounded(void **state) {
    struct pair p;
    static uint8_t data[300000];
    uint32_t ids[CHANNEL_MAX_STREAMS], id;
    (void)state;

    pair_init(&p, &(struct channel_limits){.out_max = 16384});
    connect_pair(&p, 5);
    for (size_t i = 0; i < CHANNEL_MAX_STREAMS; i++)
        ids[i] = open_stream(&p);
    assert_int_equal(channel_open(&p.host, 1, NULL, &id), -EMFILE);
    for (size_t i = 0; i < CHANNEL_MAX_STREAMS; i++)
        (void)channel_send(&p.host, ids[i], data, sizeof(data));
    assert_in_range(p.host.out.len, 16000, 16384);
    for (size_t i = 0; i < CHANNEL_MAX_STREAMS; i++) {
        (void)channel_shutdown(&p.host, ids[i]);
        channel_reset(&p.host, ids[i], CHANNEL_CANCELLED);
    }
    assert_int_equal(channel_open(&p.host, 1, NULL, &id), -EAGAIN);
    assert_true(channel_wants_input(&p.host));
    pair_done(&p);
}

static void input_waits_while_answers_pile_up(void **state) {
    struct pair p;
    struct channel_event ev;
    struct buf raw;
    uint32_t id = 1;
    (void)state;

    pair_init(&p, NULL);
    connect_pair(&p, 5);
    buf_init(&raw, 1 << 20);
    while (channel_wants_input(&p.guest) && id < 100000) {
        put_raw(&raw, CHANNEL_OP_OPEN, 5, id, 77);
        put_raw(&raw, CHANNEL_OP_RESET, 5, id, 1);
        id += 2;
        while (feed(&p.guest, &raw, &ev) > 0)
            if (ev.type == CHANNEL_EV_OPEN)
                channel_reset(&p.guest, ev.id, CHANNEL_REFUSED);
    }
    assert_true(id < 100000);
    put_raw(&raw, CHANNEL_OP_OPEN, 5, id, 77);
    size_t kept = raw.len; /* by the caller */
    assert_int_equal(feed(&p.guest, &raw, &ev), 0);
    assert_int_equal(raw.len, kept);
    channel_sent(&p.guest, p.guest.out.len);
    assert_int_equal(feed(&p.guest, &raw, &ev), 1);
    assert_int_equal(ev.type, CHANNEL_EV_OPEN);
    buf_done(&raw);
    pair_done(&p);
}

static void half_close_both_ways(void **state) {
    struct pair p;
    uint32_t id;
    (void)state;

    pair_init(&p, NULL);
    connect_pair(&p, 5);
    id = open_stream(&p);
    assert_int_equal(channel_send(&p.host, id, "x", 1), 1);
    assert_false(channel_shutdown(&p.host, id));
    assert_int_equal(channel_send(&p.host, id, "x", 1), 0);
    (void)move(&p.host, &p.guest);
    assert_int_equal(channel_send(&p.guest, id, "y", 1), 1);
    assert_true(channel_shutdown(&p.guest, id));
    assert_int_equal(p.guest.n_streams, 0);
    assert_int_equal(move_some(&p.guest, &p.host, 17).type, CHANNEL_EV_DATA);
    struct channel_event ev = move(&p.guest, &p.host);
    assert_int_equal(ev.type, CHANNEL_EV_SHUTDOWN);
    assert_true(ev.ended);
    assert_int_equal(p.host.n_streams, 0);
    channel_consume(&p.host, id, 1); /* a stale id does nothing */
    assert_int_equal(p.host.out.len, 0);
    pair_done(&p);
}

static void fault_in_a_stream_ends_that_stream(void **state) {
    static const struct {
        uint8_t op;
        uint32_t arg, reason;
    } cases[] = {
        {CHANNEL_OP_DATA, 5000, CHANNEL_CREDIT},
        {CHANNEL_OP_CREDIT, 1, CHANNEL_CREDIT},
        {CHANNEL_OP_CREDIT, UINT32_MAX, CHANNEL_CREDIT},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct pair p;
        struct channel_event ev;
        struct buf raw;
        char junk[5000] = {0};
        pair_init(&p, &(struct channel_limits){.window = 4096});
        connect_pair(&p, 5);
        uint32_t id = open_stream(&p), other = open_stream(&p);
        buf_init(&raw, 20000);
        put_raw(&raw, cases[i].op, 5, id, cases[i].arg);
        if (cases[i].op == CHANNEL_OP_DATA)
            (void)buf_append(&raw, junk, cases[i].arg);
        put_raw(&raw, CHANNEL_OP_SHUTDOWN, 5, other, 0);
        assert_int_equal(feed(&p.host, &raw, &ev), 1);
        assert_int_equal(ev.type, CHANNEL_EV_RESET);
        assert_int_equal(ev.reason, cases[i].reason);
        assert_int_equal(feed(&p.host, &raw, &ev), 1);
        assert_int_equal(ev.type, CHANNEL_EV_SHUTDOWN);
        assert_int_equal(ev.id, other);
        buf_done(&raw);
        pair_done(&p);
    }
}

static void broken_framing_from_the_guest_is_final(void **state) {
    static const struct {
        uint8_t op;
        uint32_t id, arg;
    } cases[] = {
        {0, 0, 0},
        {CHANNEL_OP_HELLO, 0, 40},
        {CHANNEL_OP_HELLO_ACK, 0, 40},
        {CHANNEL_OP_OPEN, 3, 1},
        {CHANNEL_OP_OPENED, 3, 0}, /* never opened */
        {CHANNEL_OP_DATA, 1, 0},
        {CHANNEL_OP_DATA, 1, 32769},
        {CHANNEL_OP_DATA, 2, 1},
        {CHANNEL_OP_CREDIT, 1, 0},
        {CHANNEL_OP_SHUTDOWN, 1, 1},
        {CHANNEL_OP_RESET, 0, 1},
        {9, 1, 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct pair p;
        struct channel_event ev;
        struct buf raw;
        pair_init(&p, NULL);
        connect_pair(&p, 5);
        (void)open_stream(&p);
        buf_init(&raw, 100);
        put_raw(&raw, cases[i].op, 5, cases[i].id, cases[i].arg);
        assert_int_equal(feed(&p.host, &raw, &ev), -EPROTO);
        put_raw(&raw, CHANNEL_OP_CREDIT, 5, 1, 1);
        assert_int_equal(feed(&p.host, &raw, &ev), -EPROTO);
        assert_false(channel_wants_input(&p.host));
        buf_done(&raw);
        pair_done(&p);
    }
}

static void guest_looks_for_the_next_hello(void **state) {
    struct pair p;
    struct channel_event ev;
    struct buf raw;
    (void)state;

    pair_init(&p, NULL);
    connect_pair(&p, 5);
    (void)open_stream(&p);
    buf_init(&raw, 1000);
    /* The bad header ends with the first bytes of a real HELLO. */
    (void)buf_append(&raw, "\0\0\0\0\0\0\0\0\0\0\0", 11);
    channel_connect(&p.host, 0x1122334455667788, 8, false);
    (void)buf_append(&raw, p.host.out.data, p.host.out.len);
    assert_int_equal(feed(&p.guest, &raw, &ev), 1);
    assert_int_equal(ev.type, CHANNEL_EV_LOST);
    assert_int_equal(p.guest.n_streams, 0);
    assert_int_equal(feed(&p.guest, &raw, &ev), 1);
    assert_int_equal(ev.type, CHANNEL_EV_CONNECTED);
    assert_int_equal(p.guest.generation, 8);
    buf_done(&raw);
    pair_done(&p);
}

static void resync_reaches_a_guest_inside_a_frame(void **state) {
    struct pair p;
    uint32_t id;
    char data[10000] = {1};
    (void)state;

    pair_init(&p, NULL);
    connect_pair(&p, 5);
    id = open_stream(&p);
    assert_int_equal(channel_send(&p.host, id, data, sizeof(data)), sizeof(data));
    (void)move_some(&p.host, &p.guest, 100); /* the old host dies here */
    channel_connect(&p.host, 6, 9, true);
    (void)move(&p.host, &p.guest);
    assert_int_equal(p.guest.state, CHANNEL_SYNCED);
    assert_int_equal(p.guest.epoch, 6);
    assert_int_equal(move(&p.guest, &p.host).type, CHANNEL_EV_CONNECTED);
    pair_done(&p);
}

static void host_takes_only_its_own_acknowledgement(void **state) {
    struct pair p;
    struct channel_event ev;
    struct buf raw;
    (void)state;

    pair_init(&p, NULL);
    connect_pair(&p, 5);
    (void)open_stream(&p);
    buf_init(&raw, 4096);
    (void)buf_append(&raw, "tail of an old frame", 20);
    channel_connect(&p.host, 41, 1, false);
    (void)move(&p.host, &p.guest);
    (void)buf_append(&raw, p.guest.out.data, p.guest.out.len); /* an old acknowledgement */
    channel_connect(&p.host, 42, 1, false);
    (void)move(&p.host, &p.guest);
    (void)buf_append(&raw, p.guest.out.data, p.guest.out.len);
    assert_int_equal(channel_open(&p.host, 1, NULL, &(uint32_t){0}), -ENOTCONN);
    assert_int_equal(feed(&p.host, &raw, &ev), 1);
    assert_int_equal(ev.type, CHANNEL_EV_CONNECTED);
    assert_int_equal(raw.len, 0);
    buf_done(&raw);
    pair_done(&p);
}

static void frames_of_an_old_epoch_are_dropped(void **state) {
    struct pair p;
    struct channel_event ev;
    struct buf raw;
    (void)state;

    pair_init(&p, NULL);
    connect_pair(&p, 5);
    uint32_t id = open_stream(&p);
    buf_init(&raw, 4096);
    put_raw(&raw, CHANNEL_OP_DATA, 4, id, 5);
    (void)buf_append(&raw, "stale", 5);
    put_raw(&raw, CHANNEL_OP_RESET, 4, id, 1);
    put_raw(&raw, CHANNEL_OP_DATA, 5, id, 5);
    (void)buf_append(&raw, "fresh", 5);
    assert_int_equal(feed(&p.guest, &raw, &ev), 1);
    assert_int_equal(ev.type, CHANNEL_EV_DATA);
    assert_memory_equal(ev.data.p, "fresh", 5);
    buf_done(&raw);
    pair_done(&p);
}

static void hello_ends_every_stream(void **state) {
    struct pair p;
    (void)state;

    pair_init(&p, NULL);
    connect_pair(&p, 5);
    for (int i = 0; i < 10; i++)
        (void)open_stream(&p);
    connect_pair(&p, 6);
    assert_int_equal(p.host.n_streams, 0);
    assert_int_equal(p.guest.n_streams, 0);
    assert_int_equal(open_stream(&p), 1); /* ids start again */
    channel_disconnect(&p.guest);
    assert_int_equal(p.guest.out.len, 0);
    connect_pair(&p, 7);
    pair_done(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smaller_offer_counts),
        cmocka_unit_test(bytes_arrive_whatever_the_cuts),
        cmocka_unit_test(credit_limits_the_sender),
        cmocka_unit_test(output_is_bounded),
        cmocka_unit_test(input_waits_while_answers_pile_up),
        cmocka_unit_test(half_close_both_ways),
        cmocka_unit_test(fault_in_a_stream_ends_that_stream),
        cmocka_unit_test(broken_framing_from_the_guest_is_final),
        cmocka_unit_test(guest_looks_for_the_next_hello),
        cmocka_unit_test(resync_reaches_a_guest_inside_a_frame),
        cmocka_unit_test(host_takes_only_its_own_acknowledgement),
        cmocka_unit_test(frames_of_an_old_epoch_are_dropped),
        cmocka_unit_test(hello_ends_every_stream),
    };
    return cmocka_run_group_tests_name("channel", tests, NULL, NULL);
}
