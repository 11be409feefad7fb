/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space-vm's middle: guest.sock clients and the agent's calls over the channel, with the guest played by the channel
 * engine's other role (or by raw bytes when it is hostile) on the VMM's socket. No VMM runs.
 */
#include "unit.h"
#include "vm/vm.h"
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct vm vm;
static struct vmm fake;
static int guest_fd = -1; /* the guest's end of the channel */
static struct channel guest;
static char socket_path[128];
/* What the fake guest saw. */
static struct {
    unsigned opens, shutdowns, resets;
    uint32_t last_id;
    size_t bytes;
    bool greedy; /* never gives credit back */
    bool refuse; /* every port */
    bool echo;
} seen;

static void fake_free(struct vmm *v) {
    (void)v;
}
static bool fake_no_event(struct vmm *v, struct vmm_event *ret) {
    (void)v;
    (void)ret;
    return false;
}
static int fake_pump(struct vmm *v, struct sp_error *err) {
    (void)v;
    (void)err;
    return 0;
}
static const struct vmm_driver fake_driver = {.name = "fake",
                                              .pump = fake_pump,
                                              .next_event = fake_no_event,
                                              .free = fake_free};

static int listener(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(text_copy(address.sun_path, sizeof(address.sun_path), socket_path));
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 64), 0);
    return fd;
}

static int setup(void **state) {
    int fds[2], quiet[2];
    if (unit_temp_dir(state) < 0)
        return -1;
    (void)text_copy(socket_path, sizeof(socket_path), unit_path("guest.sock"));
    memset(&vm, 0, sizeof(vm));
    memset(&seen, 0, sizeof(seen));
    assert_ok(vm_init(&vm, &unit_error));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, quiet), 0);
    guest_fd = fds[1];
    fake = (struct vmm){
        .driver = &fake_driver, .fd_guest = fds[0], .fd_control = quiet[0], .fd_console = -1, .fd_log = -1};
    vm.driver = &fake_driver;
    vm.vmm = &fake;
    vm.config.fd_control = -1;
    vm.config.fd_guest = listener();
    vm.config.generation = 7;
    (void)text_copy(vm.config.id, sizeof(vm.config.id), "sbx_test");
    vm.state = VM_RUNNING;
    close(quiet[1]);
    vm.control_closed = true;
    assert_int_equal(channel_init(&guest, CHANNEL_GUEST, NULL), 0);
    bridge_connect(&vm);
    return 0;
}

static int teardown(void **state) {
    (void)close(fake.fd_guest);
    (void)close(fake.fd_control);
    (void)close(vm.config.fd_guest);
    vm_done(&vm);
    channel_done(&guest);
    (void)close(guest_fd);
    return unit_temp_dir_remove(state);
}

/* --- the fake guest ------------------------------------------------------------------------------------------------ */

static void guest_event(const struct channel_event *ev) {
    switch (ev->type) {
    case CHANNEL_EV_OPEN:
        seen.opens++;
        seen.last_id = ev->id;
        if (seen.refuse)
            channel_reset(&guest, ev->id, CHANNEL_REFUSED);
        else
            channel_accept(&guest, ev->id, &seen);
        break;
    case CHANNEL_EV_DATA:
        seen.bytes += ev->data.len;
        if (seen.echo)
            (void)channel_send(&guest, ev->id, ev->data.p, ev->data.len);
        if (!seen.greedy)
            channel_consume(&guest, ev->id, ev->data.len);
        break;
    case CHANNEL_EV_SHUTDOWN:
        seen.shutdowns++;
        break;
    case CHANNEL_EV_RESET:
        seen.resets++;
        break;
    default:
        break;
    }
}

static void guest_turn(void) {
    static uint8_t in[65536];
    struct channel_event ev;
    ssize_t n;
    while ((n = recv(guest_fd, in, sizeof(in), MSG_DONTWAIT)) > 0) {
        struct view view = {.p = in, .len = (size_t)n};
        while (channel_next(&guest, &view, &ev) > 0)
            guest_event(&ev);
        assert_int_equal(view.len, 0);
    }
    while (guest.out.len > 0 && (n = send(guest_fd, guest.out.data, guest.out.len, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
        channel_sent(&guest, (size_t)n);
}

/* Both sides until nothing moves for a while. */
static void settle(void) {
    for (int quiet = 0; quiet < 3;) {
        struct deadline soon = deadline_in_ms(5);
        size_t before = seen.bytes + seen.opens + seen.shutdowns + seen.resets + guest.out.len;
        vm_turn(&vm, &soon);
        guest_turn();
        quiet = before == seen.bytes + seen.opens + seen.shutdowns + seen.resets + guest.out.len ? quiet + 1 : 0;
    }
}

/* --- the client ---------------------------------------------------------------------------------------------------------- */

static int client(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)text_copy(address.sun_path, sizeof(address.sun_path), socket_path);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void say(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static const char *hear(int fd) {
    static char text[256];
    ssize_t n = recv(fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return n < 0 ? "(nothing)" : text;
}

static int stream(void) {
    int fd = client();
    say(fd, "CONNECT 1\n");
    settle();
    assert_true(text_starts_with(hear(fd), "OK "));
    return fd;
}

static unsigned clients_busy(void) {
    unsigned n = 0;
    for (size_t i = 0; i < VM_CLIENTS_MAX; i++)
        n += vm.clients[i].state != CLIENT_FREE;
    return n;
}

/* --- streams ------------------------------------------------------------------------------------------------------------------ */

static void test_connects_and_echoes(void **state) {
    (void)state;
    seen.echo = true;
    settle();
    assert_true(vm.connected);
    int fd = client();
    say(fd, "CONNECT 1\nhello"); /* data behind the line belongs to the stream */
    settle();
    assert_true(text_starts_with(hear(fd), "OK 1\n"));
    settle();
    const char *heard = hear(fd);
    assert_true(strcmp(heard, "hello") == 0 || strcmp(heard, "(nothing)") == 0);
    assert_int_equal(seen.bytes, 5);
    (void)close(fd);
}

static void test_half_close_both_ways(void **state) {
    (void)state;
    settle();
    int fd = stream();
    say(fd, "bye");
    (void)shutdown(fd, SHUT_WR);
    settle();
    assert_int_equal(seen.bytes, 3);
    assert_int_equal(seen.shutdowns, 1);
    assert_int_equal(seen.resets, 0);
    (void)channel_send(&guest, seen.last_id, "answer", 6);
    (void)channel_shutdown(&guest, seen.last_id);
    settle();
    assert_string_equal(hear(fd), "answer");
    assert_string_equal(hear(fd), ""); /* end of file */
    assert_int_equal(clients_busy(), 0);
    assert_int_equal(vm.channel.n_streams, 0);
    (void)close(fd);
}

static void test_abrupt_close_resets(void **state) {
    (void)state;
    settle();
    int fd = stream();
    say(fd, "last words");
    (void)close(fd);
    settle();
    assert_int_equal(seen.bytes, 10); /* what was sent before still arrives */
    assert_int_equal(seen.resets, 1);
    assert_int_equal(seen.shutdowns, 0); /* and never looks complete */
    assert_int_equal(clients_busy(), 0);
}

static void test_guest_reset_closes_the_client(void **state) {
    (void)state;
    settle();
    int fd = stream();
    channel_reset(&guest, seen.last_id, CHANNEL_CANCELLED);
    settle();
    assert_string_equal(hear(fd), "");
    assert_int_equal(clients_busy(), 0);
    (void)close(fd);
}

static void test_refusals(void **state) {
    static const char *const bad[] = {"CONNECT 0\n",
                                      "CONNECT\n",
                                      "CONNECT x\n",
                                      "GET / HTTP/1.1\r\n\r\n",
                                      "CONNECT -1\n",
                                      "CONNECT 4294967296\n",
                                      "CONNECT 1 \n",
                                      "\n",
                                      "CONNECT 000000000000000000000000000000000000000001"};
    (void)state;
    settle();
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        int fd = client();
        say(fd, bad[i]);
        settle();
        assert_true(text_starts_with(hear(fd), "ERR invalid "));
        (void)close(fd);
    }
    seen.refuse = true;
    int fd = client();
    say(fd, "CONNECT 99\n");
    settle();
    assert_true(text_starts_with(hear(fd), "ERR refused "));
    (void)close(fd);
    vm.state = VM_BOOTING;
    fd = client();
    settle();
    assert_true(text_starts_with(hear(fd), "ERR not_running booting"));
    (void)close(fd);
    assert_int_equal(clients_busy(), 0);
}

static void test_line_in_pieces(void **state) {
    (void)state;
    settle();
    int fd = client();
    for (const char *p = "CONNECT 1\n"; *p; p++) {
        assert_int_equal(send(fd, p, 1, 0), 1);
        settle();
    }
    assert_true(text_starts_with(hear(fd), "OK "));
    (void)close(fd);
}

static void test_stream_limit(void **state) {
    int fds[CHANNEL_MAX_STREAMS + 1];
    (void)state;
    settle();
    for (size_t i = 0; i < CHANNEL_MAX_STREAMS; i++)
        fds[i] = stream();
    fds[CHANNEL_MAX_STREAMS] = client();
    say(fds[CHANNEL_MAX_STREAMS], "CONNECT 1\n");
    settle();
    assert_true(text_starts_with(hear(fds[CHANNEL_MAX_STREAMS]), "ERR too_many_streams "));
    for (size_t i = 0; i <= CHANNEL_MAX_STREAMS; i++)
        (void)close(fds[i]);
    settle();
    assert_int_equal(clients_busy(), 0);
    assert_int_equal(vm.channel.n_streams, 0);
}

static void test_connection_limit(void **state) {
    int fds[VM_CLIENTS_MAX + 1];
    (void)state;
    settle();
    for (size_t i = 0; i <= VM_CLIENTS_MAX; i++) {
        fds[i] = client();
        if (i % 32 == 31)
            settle();
    }
    settle();
    assert_true(text_starts_with(hear(fds[VM_CLIENTS_MAX]), "ERR too_many_streams "));
    assert_int_equal(clients_busy(), VM_CLIENTS_MAX);
    for (size_t i = 0; i <= VM_CLIENTS_MAX; i++)
        (void)close(fds[i]);
    settle();
    assert_int_equal(clients_busy(), 0);
}

/* --- back-pressure ----------------------------------------------------------------------------------------------------------------- */

/* A guest that takes nothing: the client's socket fills up, we hold no more than the channel's window and output. */
static void test_slow_guest_stops_the_client(void **state) {
    static char block[65536];
    size_t sent = 0;
    (void)state;
    settle();
    seen.greedy = true;
    int fd = stream();
    for (int still = 0; still < 5;) {
        ssize_t n = send(fd, block, sizeof(block), MSG_DONTWAIT | MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
        still = n > 0 ? 0 : still + 1;
        settle();
        assert_true(sent < 8 * 1024 * 1024);
    }
    assert_int_equal(seen.bytes, guest.window); /* exactly its credit */
    assert_true(vm.channel.out.len <= 256 * 1024);
    (void)close(fd);
    settle();
}

/* A client that reads nothing: at most a window is held for it, another stream goes on. */
static void test_slow_client_stops_the_guest(void **state) {
    static char block[32768];
    size_t sent = 0;
    (void)state;
    settle();
    int slow = stream();
    uint32_t slow_id = seen.last_id;
    for (int still = 0; still < 5;) {
        size_t n = channel_send(&guest, slow_id, block, sizeof(block));
        sent += n;
        still = n > 0 ? 0 : still + 1;
        settle();
        assert_true(sent < 8 * 1024 * 1024);
    }
    for (size_t i = 0; i < VM_CLIENTS_MAX; i++)
        assert_true(vm.clients[i].out.len <= vm.channel.window);
    int other = stream();
    (void)channel_send(&guest, seen.last_id, "through", 7);
    settle();
    assert_string_equal(hear(other), "through");
    size_t got = 0;
    for (int still = 0; still < 5;) { /* now it reads: not a byte is missing */
        ssize_t n = recv(slow, block, sizeof(block), MSG_DONTWAIT);
        got += n > 0 ? (size_t)n : 0;
        still = n > 0 ? 0 : still + 1;
        settle();
    }
    assert_int_equal(got, sent);
    (void)close(slow);
    (void)close(other);
}

/* --- hostile guests --------------------------------------------------------------------------------------------------------------------- */

static void test_nonsense_before_hello_is_dropped(void **state) {
    static char junk[70000];
    (void)state;
    for (size_t i = 0; i < sizeof(junk); i++)
        junk[i] = (char)(i * 31);
    (void)!write(guest_fd, junk, sizeof(junk));
    struct deadline soon = deadline_in_ms(5);
    for (int i = 0; i < 10; i++)
        vm_turn(&vm, &soon);
    assert_false(vm.connected);
    assert_int_equal(vm.state, VM_RUNNING);
}

static void test_broken_frame_fails_the_vm(void **state) {
    static const uint8_t frame[16] = {99, 1, 1, 1};
    (void)state;
    settle();
    int fd = stream();
    (void)!write(guest_fd, frame, sizeof(frame));
    struct deadline soon = deadline_in_ms(20);
    vm_turn(&vm, &soon);
    assert_int_equal(vm.state, VM_FAILED);
    assert_string_equal(vm_reason_name(vm.reason), "guest_protocol");
    assert_string_equal(hear(fd), "");
    assert_int_equal(clients_busy(), 0);
    (void)close(fd);
}

/* --- calls ---------------------------------------------------------------------------------------------------------------------------------- */

static void ask_ping(void) {
    call_begin(&vm.call, REC_PING);
    call_send(&vm, &vm.call, deadline_in_ms(300));
}

static void answer(enum record_type type) {
    _cleanup_buf_ struct buf b = {0};
    buf_init(&b, 4096);
    size_t mark = record_begin(&b, type);
    if (type == REC_ERROR) {
        (void)record_put_string(&b, TAG_CODE, "frozen");
        (void)record_put_string(&b, TAG_MESSAGE, "not\nnow");
    }
    assert_int_equal(record_end(&b, mark), 0);
    assert_int_equal(channel_send(&guest, seen.last_id, b.data, b.len), b.len);
    settle();
}

static void test_call_is_answered(void **state) {
    (void)state;
    settle();
    ask_ping();
    settle();
    assert_int_equal(seen.opens, 1);
    answer(REC_OK);
    assert_int_equal(vm.call.state, CALL_DONE);
    assert_int_equal(vm.call.answer_type, REC_OK);
    assert_int_equal(vm.channel.n_streams, 0); /* its stream is given back */
}

static void test_call_is_refused(void **state) {
    (void)state;
    settle();
    ask_ping();
    settle();
    answer(REC_ERROR);
    assert_int_equal(vm.call.state, CALL_FAILED);
    assert_int_equal(vm.call.error.code, SP_E_GUEST);
    assert_non_null(strstr(vm.call.error.text, "frozen: not\\x0anow"));
}

static void test_call_lacks_fields_or_breaks(void **state) {
    (void)state;
    settle();
    ask_ping();
    settle();
    answer(REC_PONG); /* without a single field */
    assert_int_equal(vm.call.error.code, SP_E_PROTOCOL);
    ask_ping();
    settle();
    (void)channel_send(&guest, seen.last_id, "\xff\xff\xff\xff\x01\x00\x00\x00", 8);
    settle();
    assert_int_equal(vm.call.error.code, SP_E_PROTOCOL);
    ask_ping();
    settle();
    (void)channel_shutdown(&guest, seen.last_id);
    settle();
    assert_int_equal(vm.call.error.code, SP_E_GUEST);
    assert_int_equal(vm.channel.n_streams, 0);
}

static void test_call_runs_into_its_deadline(void **state) {
    (void)state;
    settle();
    ask_ping();
    struct deadline late = deadline_in_ms(1000);
    while (call_is_pending(&vm.call) && !deadline_passed(late)) {
        struct deadline soon = deadline_in_ms(50);
        vm_turn(&vm, &soon);
        guest_turn();
    }
    assert_int_equal(vm.call.error.code, SP_E_TIMEOUT);
    assert_int_equal(vm.channel.n_streams, 0);
}

/* --- console ------------------------------------------------------------------------------------------------------------------------------------ */

static void test_console_keeps_the_end(void **state) {
    static struct console c;
    static char block[VM_CONSOLE_RING + 1000], tail[VM_CONSOLE_RING];
    (void)state;
    memset(&c, 0, sizeof(c));
    console_append(&c, "abc", 3);
    assert_int_equal(console_tail(&c, tail, sizeof(tail)), 3);
    assert_memory_equal(tail, "abc", 3);
    for (int i = 0; i < 30000; i++)
        console_append(&c, "0123456", 7);
    assert_int_equal(console_tail(&c, tail, sizeof(tail)), VM_CONSOLE_RING);
    assert_memory_equal(tail + VM_CONSOLE_RING - 7, "0123456", 7);
    assert_int_equal(console_tail(&c, tail, 3), 3);
    assert_memory_equal(tail, "456", 3);
    memset(block, 'x', sizeof(block));
    block[sizeof(block) - 1] = 'y';
    console_append(&c, block, sizeof(block));
    assert_int_equal(console_tail(&c, tail, 2), 2);
    assert_memory_equal(tail, "xy", 2);
    assert_int_equal(c.total, 3 + 30000 * 7 + sizeof(block));
}

int main(void) {
#define ON_VM(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ON_VM(test_connects_and_echoes),
        ON_VM(test_half_close_both_ways),
        ON_VM(test_abrupt_close_resets),
        ON_VM(test_guest_reset_closes_the_client),
        ON_VM(test_refusals),
        ON_VM(test_line_in_pieces),
        ON_VM(test_stream_limit),
        ON_VM(test_connection_limit),
        ON_VM(test_slow_guest_stops_the_client),
        ON_VM(test_slow_client_stops_the_guest),
        ON_VM(test_nonsense_before_hello_is_dropped),
        ON_VM(test_broken_frame_fails_the_vm),
        ON_VM(test_call_is_answered),
        ON_VM(test_call_is_refused),
        ON_VM(test_call_lacks_fields_or_breaks),
        ON_VM(test_call_runs_into_its_deadline),
        cmocka_unit_test(test_console_keeps_the_end),
    };
    return cmocka_run_group_tests_name("vm_bridge", tests, NULL, NULL);
}
