/* SPDX-License-Identifier: Apache-2.0 */
/* The QMP client against a peer whose words were written before: framing, events, bounds, time, descriptors. */
#include "unit.h"
#include "vmm/qemu/qemu.h"
#include <sys/socket.h>
#include <sys/stat.h>

static int peer = -1; /* the VMM's end */
static struct qmp client;

static int setup(void **state) {
    int fds[2];
    (void)state;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return -1;
    peer = fds[1];
    qmp_init(&client, fds[0]);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    (void)close(client.fd);
    qmp_done(&client);
    if (peer >= 0)
        (void)close(peer);
    peer = -1;
    return 0;
}

static void say(const char *text) {
    assert_int_equal(write(peer, text, strlen(text)), strlen(text));
}

static void hang_up(void) {
    (void)close(peer);
    peer = -1;
}

#define GREETING "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n"
#define OK_1 "{\"return\": {}, \"id\": 1}\r\n"

static void test_negotiates(void **state) {
    char said[256];
    (void)state;
    say(GREETING OK_1);
    assert_ok(qmp_negotiate(&client, deadline_in_ms(1000), &unit_error));
    ssize_t n = recv(peer, said, sizeof(said) - 1, MSG_DONTWAIT);
    assert_true(n > 0);
    said[n] = '\0';
    assert_string_equal(said, "{\"execute\":\"qmp_capabilities\",\"id\":1}\n");
}

static void test_refuses_other_greeting(void **state) {
    (void)state;
    say("{\"hello\": 1}\n");
    assert_fails(qmp_negotiate(&client, deadline_in_ms(1000), unit_err_), SP_E_PROTOCOL);
    assert_fails(qmp_negotiate(&client, deadline_in_ms(1000), unit_err_), SP_E_GONE);
}

static void test_queues_events_before_the_answer(void **state) {
    struct qmp_event e;
    (void)state;
    say("{\"event\": \"STOP\"}\n{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, \"reason\": "
        "\"guest-reset\"}}\n" OK_1);
    assert_ok(qmp_execute(&client, "stop", NULL, -1, deadline_in_ms(1000), NULL, &unit_error));
    assert_true(qmp_next_event(&client, &e));
    assert_string_equal(e.name, "STOP");
    assert_null(e.data);
    assert_true(qmp_next_event(&client, &e));
    assert_string_equal(e.name, "SHUTDOWN");
    assert_non_null(e.data);
    json_decref(e.data);
    assert_false(qmp_next_event(&client, &e));
}

static void test_waits_for_one_event_and_keeps_others(void **state) {
    struct qmp_event e;
    (void)state;
    say("{\"event\": \"A\"}\n{\"event\": \"B\", \"data\": {}}\n{\"event\": \"C\"}\n");
    assert_ok(qmp_wait_event(&client, "B", deadline_in_ms(1000), &e, &unit_error));
    json_decref(e.data);
    assert_ok(qmp_pump(&client, &unit_error));
    assert_true(qmp_next_event(&client, &e));
    assert_string_equal(e.name, "A");
    assert_true(qmp_next_event(&client, &e));
    assert_string_equal(e.name, "C");
}

static void test_error_answer_is_escaped_and_harmless(void **state) {
    (void)state;
    say("{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\\u0007way\"}, \"id\": 1}\n{\"return\": 7, \"id\": "
        "2}\n");
    assert_fails(qmp_execute(&client, "cont", NULL, -1, deadline_in_ms(1000), NULL, unit_err_), SP_E_VMM);
    assert_string_equal(unit_error.text, "qmp cont: no\\x07way");
    json_t *value = NULL;
    assert_ok(qmp_execute(&client, "x", NULL, -1, deadline_in_ms(1000), &value, &unit_error));
    assert_int_equal(json_integer_value(value), 7);
    json_decref(value);
}

static void test_answer_to_something_else_breaks_it(void **state) {
    (void)state;
    say("{\"return\": {}, \"id\": 9}\n");
    assert_fails(qmp_execute(&client, "stop", NULL, -1, deadline_in_ms(1000), NULL, unit_err_), SP_E_PROTOCOL);
    assert_fails(qmp_execute(&client, "stop", NULL, -1, deadline_in_ms(1000), NULL, unit_err_), SP_E_GONE);
}

static void test_silence_runs_into_the_deadline(void **state) {
    (void)state;
    assert_fails(qmp_execute(&client, "stop", NULL, -1, deadline_in_ms(20), NULL, unit_err_), SP_E_TIMEOUT);
}

static void test_flood_of_events_runs_into_the_deadline(void **state) {
    (void)state;
    for (int i = 0; i < 200; i++)
        say("{\"event\": \"NOISE\"}\n");
    assert_fails(qmp_execute(&client, "stop", NULL, -1, deadline_in_ms(50), NULL, unit_err_), SP_E_TIMEOUT);
    assert_true(client.n_events <= QMP_EVENTS_MAX);
    assert_true(client.events_dropped >= 200 - QMP_EVENTS_MAX);
}

static void test_full_queue_keeps_what_is_final(void **state) {
    struct qmp_event e;
    bool seen = false;
    (void)state;
    say("{\"event\": \"SHUTDOWN\"}\n");
    for (int i = 0; i < 100; i++)
        say("{\"event\": \"STOP\"}\n");
    for (int i = 0; i < 4; i++)
        assert_ok(qmp_pump(&client, &unit_error));
    assert_int_equal(client.n_events, QMP_EVENTS_MAX);
    while (qmp_next_event(&client, &e))
        seen = seen || strcmp(e.name, "SHUTDOWN") == 0;
    assert_true(seen);
}

static void test_end_of_file(void **state) {
    struct qmp_event e;
    (void)state;
    say("{\"event\": \"SHUTDOWN\"}\n{\"half");
    hang_up();
    assert_fails(qmp_pump(&client, unit_err_), SP_E_GONE);
    assert_true(qmp_next_event(&client, &e)); /* what came before still counts */
    assert_string_equal(e.name, "SHUTDOWN");
}

static void test_long_line_is_refused(void **state) {
    struct qmp_parser p;
    struct sp_error err = {0};
    char chunk[65536];
    json_t *message = NULL;
    int r = 0;
    (void)state;
    qmp_parser_init(&p);
    memset(chunk, 'x', sizeof(chunk));
    for (size_t fed = 0; fed <= QMP_LINE_MAX && r == 0; fed += sizeof(chunk)) {
        r = qmp_parser_feed(&p, chunk, sizeof(chunk), &err);
        assert_int_equal(r == 0 ? qmp_parser_next(&p, &message, &err) : 0, 0);
    }
    assert_int_equal(r, -SP_E_PROTOCOL);
    qmp_parser_done(&p);
}

static void test_parser_takes_any_cut(void **state) {
    static const char text[] = "\n{\"event\":\"A\"}\r\n\r\n{\"return\":[1,2]}\n{\"a\":{\"b\":1}}\n";
    (void)state;
    for (size_t cut = 1; cut < sizeof(text); cut++) {
        struct qmp_parser p;
        json_t *message;
        unsigned seen = 0;
        qmp_parser_init(&p);
        for (size_t at = 0; at < sizeof(text) - 1; at += cut) {
            size_t n = sizeof(text) - 1 - at < cut ? sizeof(text) - 1 - at : cut;
            assert_int_equal(qmp_parser_feed(&p, text + at, n, NULL), 0);
            while (qmp_parser_next(&p, &message, NULL) > 0) {
                json_decref(message);
                seen++;
            }
        }
        assert_int_equal(seen, 3);
        qmp_parser_done(&p);
    }
}

static void test_parser_refuses_what_is_no_object(void **state) {
    static const char *const bad[] = {"[]\n", "1\n", "nonsense\n", "{\"a\":1}{\n", "{\"a\":1,\"a\":2}\n", "\"\xff\"\n"};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct qmp_parser p;
        json_t *message = NULL;
        qmp_parser_init(&p);
        assert_int_equal(qmp_parser_feed(&p, bad[i], strlen(bad[i]), NULL), 0);
        assert_int_equal(qmp_parser_next(&p, &message, NULL), -SP_E_PROTOCOL);
        qmp_parser_done(&p);
    }
}

static void test_passes_a_descriptor(void **state) {
    char text[256];
    int got[2], pipe_fds[2];
    size_t len = 0, n = ARRAY_SIZE(got);
    struct stat sent, received;
    (void)state;
    assert_int_equal(pipe(pipe_fds), 0);
    say(OK_1);
    assert_ok(qmp_execute(&client, "getfd", json_pack("{s:s}", "fdname", "devices"), pipe_fds[0], deadline_in_ms(1000),
                          NULL, &unit_error));
    assert_ok(fd_recv_message(peer, text, sizeof(text), &len, got, &n, &unit_error));
    assert_int_equal(n, 1);
    assert_int_equal(fstat(pipe_fds[0], &sent), 0);
    assert_int_equal(fstat(got[0], &received), 0);
    assert_int_equal(sent.st_ino, received.st_ino);
    (void)close(got[0]);
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
}

static void test_events_mean_what_they_say(void **state) {
    struct qmp_event e = {.name = "BLOCK_IO_ERROR"};
    struct vmm_event ev;
    (void)state;
    e.data = json_pack("{s:s, s:b, s:s}", "action", "stop", "nospace", 1, "reason", "No space left\n");
    assert_true(qemu_event_from_qmp(&e, &ev));
    assert_int_equal(ev.kind, VMM_EVENT_IO_ERROR);
    assert_true(ev.no_space && ev.stopped && !ev.by_guest);
    assert_string_equal(ev.detail, "No space left\\x0a");
    json_decref(e.data);
    e = (struct qmp_event){.name = "RTC_CHANGE"};
    assert_false(qemu_event_from_qmp(&e, &ev));
    e = (struct qmp_event){.name = "RESET", .data = json_pack("{s:i}", "reason", 3)};
    assert_true(qemu_event_from_qmp(&e, &ev)); /* a number where a word belongs */
    assert_string_equal(ev.detail, "");
    json_decref(e.data);
    assert_int_equal(qemu_status_from_name("running"), VMM_STATUS_RUNNING);
    assert_int_equal(qemu_status_from_name("io-error"), VMM_STATUS_STALLED);
    assert_int_equal(qemu_status_from_name("inmigrate"), VMM_STATUS_INCOMING);
    assert_int_equal(qemu_status_from_name("?"), VMM_STATUS_OTHER);
}

static void test_reads_the_apic_timer(void **state) {
    bool masked = false;
    (void)state;
    assert_true(
        qemu_lapic_timer_masked("LVT1\t 0x00010400 masked NMI\r\nLVTT\t 0x000100ec active-hi edge  masked  Fixed\r\n",
                                &masked));
    assert_true(masked);
    assert_true(qemu_lapic_timer_masked("LVTT\t 0x000000ec active-hi edge  one-shot Fixed (vec 236)\r\nLVT0 masked\r\n",
                                        &masked));
    assert_false(masked);
    assert_true(
        qemu_lapic_timer_masked("LVTT\t 0x000500ec active-hi edge  masked tsc-deadline Fixed (vec 236)\r\n", &masked));
    assert_false(masked); /* stopped, not given up */
    assert_true(qemu_lapic_timer_masked("LVTTHMR\t 0x00010000 active-hi edge  masked Fixed (vec 0)\r\n"
                                        "LVTT\t 0x000000ec active-hi edge  one-shot Fixed (vec 236)\r\n",
                                        &masked));
    assert_false(masked); /* the thermal sensor's line is another */
    assert_false(qemu_lapic_timer_masked("", &masked));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_negotiates, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refuses_other_greeting, setup, teardown),
        cmocka_unit_test_setup_teardown(test_queues_events_before_the_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_waits_for_one_event_and_keeps_others, setup, teardown),
        cmocka_unit_test_setup_teardown(test_error_answer_is_escaped_and_harmless, setup, teardown),
        cmocka_unit_test_setup_teardown(test_answer_to_something_else_breaks_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_silence_runs_into_the_deadline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flood_of_events_runs_into_the_deadline, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_queue_keeps_what_is_final, setup, teardown),
        cmocka_unit_test_setup_teardown(test_end_of_file, setup, teardown),
        cmocka_unit_test(test_long_line_is_refused),
        cmocka_unit_test(test_parser_takes_any_cut),
        cmocka_unit_test(test_parser_refuses_what_is_no_object),
        cmocka_unit_test_setup_teardown(test_passes_a_descriptor, setup, teardown),
        cmocka_unit_test(test_events_mean_what_they_say),
        cmocka_unit_test(test_reads_the_apic_timer),
    };
    return cmocka_run_group_tests_name("qmp", tests, NULL, NULL);
}
