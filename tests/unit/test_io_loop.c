/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promise: posts from threads run in order on the loop, timers and watches never fire after they were freed, worker
 * jobs are reported exactly once, streams and packets keep their bounds and survive being freed in their own callbacks.
 */
#include "io/packet.h"
#include "io/stream.h"
#include "io/unix_socket.h"
#include "io/worker_pool.h"
#include "io_rig.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

static struct rig rig;
static struct stream *stream;
static struct packet *packets[2];

static int setup(void **state) {
    (void)state;
    rig_loop(&rig);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    stream = stream_free(stream);
    packets[0] = packet_free(packets[0]);
    packets[1] = packet_free(packets[1]);
    rig_done(&rig);
    return 0;
}

/* ---- posts, tasks, timers, watches, signals ---- */

static unsigned order[3001], n_order;

static void note(void *ctx) {
    order[n_order++] = (unsigned)(uintptr_t)ctx;
}

static void *post_many(void *arg) {
    for (uintptr_t i = 0; i < 1000; i++)
        loop_post(rig.loop, note, (void *)((uintptr_t)arg + i));
    return NULL;
}

static void test_posts(void **state) {
    pthread_t threads[3];
    unsigned next[3] = {0, 1000, 2000};
    (void)state;
    n_order = 0;
    for (uintptr_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, (void *)(i * 1000)), 0);
    rig_until(&rig, n_order == 3000);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < 3000; i++)
        assert_int_equal(order[i], next[order[i] / 1000]++);
    loop_post(rig.loop, note, (void *)7); /* run by loop_free */
}

static struct loop_task tasks[3];
static unsigned runs;

static void run_task(void *ctx) {
    runs++;
    if (ctx == &tasks[0]) {
        loop_defer(rig.loop, &tasks[0]); /* the next round, not this one */
        loop_defer_cancel(&tasks[1]);
    }
}

static void test_tasks(void **state) {
    (void)state;
    runs = 0;
    for (int i = 0; i < 3; i++)
        tasks[i] = (struct loop_task){.fn = run_task, .ctx = &tasks[i]};
    for (int i = 0; i < 3; i++)
        loop_defer(rig.loop, &tasks[i]);
    loop_defer(rig.loop, &tasks[2]);
    loop_run_once(rig.loop);
    assert_int_equal(runs, 2); /* the second was cancelled by the first */
    loop_run_once(rig.loop);
    assert_int_equal(runs, 3);
    loop_defer_cancel(&tasks[0]);
    rig_rounds(&rig, 3);
    assert_int_equal(runs, 3);
}

static struct loop_timer *timer;
static void free_timer(void *ctx) {
    (*(unsigned *)ctx)++;
    timer = loop_timer_free(timer);
}

static struct loop_watch *watch;
static void free_watch(unsigned events, void *ctx) {
    *(unsigned *)ctx = events;
    watch = loop_watch_free(watch, true);
}

static void test_handles(void **state) {
    unsigned fired = 0, events = 0;
    (void)state;
    timer = loop_timer_new(rig.loop, free_timer, &fired);
    loop_timer_start(timer, 1, 1);
    rig_until(&rig, fired);
    rig_rounds(&rig, 5);
    assert_int_equal(fired, 1);
    int fd = eventfd(1, EFD_CLOEXEC);
    assert_ok(loop_watch_new(rig.loop, fd, free_watch, &events, &watch, &unit_error));
    rig_rounds(&rig, 3);
    assert_int_equal(events, 0);
    loop_watch_set(watch, LOOP_READABLE);
    rig_until(&rig, events);
    assert_int_equal(events, LOOP_READABLE);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static int last_signal;
static void on_signal(int signum, void *ctx) {
    (void)ctx;
    last_signal = signum;
}

static void test_stop_signal(void **state) {
    (void)state;
    assert_ok(loop_on_stop_signal(rig.loop, on_signal, NULL, &unit_error));
    assert_int_equal(raise(SIGTERM), 0);
    rig_until(&rig, last_signal == SIGTERM);
    assert_int_equal(raise(SIGINT), 0);
    rig_until(&rig, last_signal == SIGINT);
    loop_post_stop(rig.loop);
    loop_run(rig.loop);
}

/* ---- workers ---- */

struct job {
    struct worker_job job;
    int in, out;
    bool ran;
};

static atomic_int contexts;
static unsigned n_done;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static int make_context(void *ctx, void **ret, struct sp_error *err) {
    if (ctx)
        return sp_error_set(err, SP_E_UNAVAILABLE, "no database");
    atomic_fetch_add(&contexts, 1);
    *ret = malloc(1);
    return 0;
}

static void drop_context(void *ctx, void *thread_ctx) {
    (void)ctx;
    free(thread_ctx);
    atomic_fetch_sub(&contexts, 1);
}

static void run_job(struct worker_job *j, void *thread_ctx) {
    struct job *job = (struct job *)j;
    pthread_mutex_lock(&gate);
    job->out = thread_ctx ? job->in * 2 : -1;
    pthread_mutex_unlock(&gate);
}

static void job_done(struct worker_job *j, bool ran) {
    struct job *job = (struct job *)j;
    job->ran = ran;
    n_done++;
}

static void test_workers(void **state) {
    struct worker_pool_options opt = {
        .threads = 3, .queue_max = 5, .name = "test", .thread_init = make_context, .thread_done = drop_context};
    struct worker_pool *pool;
    struct job jobs[64];
    unsigned taken = 0;
    (void)state;
    n_done = 0;
    assert_ok(worker_pool_new(rig.loop, &opt, &pool, &unit_error));
    assert_int_equal(atomic_load(&contexts), 3);
    for (int i = 0; i < 64; i++)
        jobs[i] = (struct job){.job = {.run = run_job, .done = job_done}, .in = i, .out = -2};
    pthread_mutex_lock(&gate); /* nobody gets through: the queue fills */
    while (worker_pool_submit(pool, &jobs[taken].job) == 0)
        taken++;
    assert_true(taken >= 5 && taken <= 8);
    pthread_mutex_unlock(&gate);
    rig_until(&rig, n_done == taken);
    for (unsigned i = 0; i < taken; i++)
        assert_true(jobs[i].ran && jobs[i].out == (int)i * 2);
    pthread_mutex_lock(&gate);
    for (n_done = 0, taken = 0; worker_pool_submit(pool, &jobs[taken].job) == 0;)
        taken++;
    assert_true(worker_pool_load(pool) > 0);
    pthread_mutex_unlock(&gate);
    pool = worker_pool_free(pool);
    assert_int_equal(n_done, taken); /* all were told, run or not */
    assert_int_equal(atomic_load(&contexts), 0);
    opt.ctx = &opt;
    assert_fails(worker_pool_new(rig.loop, &opt, &pool, &unit_error), SP_E_UNAVAILABLE);
}

struct context_job {
    struct worker_job job;
    void *context;
};

static void note_context(struct worker_job *j, void *thread_ctx) {
    ((struct context_job *)j)->context = thread_ctx;
}

static void count_done(struct worker_job *j, bool ran) {
    (void)j;
    n_done += ran;
}

/* Who rested last works next: one job after the other stays on one context, where taking turns would change it each time. */
static void test_one_worker_is_enough_for_one_job_at_a_time(void **state) {
    enum { JOBS = 40 };
    struct worker_pool_options opt = {
        .threads = 4, .queue_max = 4, .name = "test", .thread_init = make_context, .thread_done = drop_context};
    struct context_job jobs[JOBS] = {0};
    struct worker_pool *pool;
    unsigned changes = 0;
    (void)state;
    assert_ok(worker_pool_new(rig.loop, &opt, &pool, &unit_error));
    for (unsigned i = 0; i < JOBS; i++) {
        (void)usleep(2000); /* until the worker of the last one rests */
        jobs[i].job = (struct worker_job){.run = note_context, .done = count_done};
        n_done = 0;
        assert_int_equal(worker_pool_submit(pool, &jobs[i].job), 0);
        rig_until(&rig, n_done == 1);
        changes += i > 0 && jobs[i].context != jobs[i - 1].context;
    }
    pool = worker_pool_free(pool);
    assert_true(changes < JOBS / 4);
}

/* ---- unix sockets ---- */

static void test_unix_paths(void **state) {
    char line[16], byte;
    struct unix_peer peer;
    struct stat st;
    size_t n;
    int listener, a, b;
    const char *path = unit_path("sock");
    (void)state;
    assert_ok(unix_listen(path, SOCK_STREAM, 0620, (uid_t)-1, (gid_t)-1, &listener, &unit_error));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0620);
    assert_fails(unix_listen(path, SOCK_STREAM, 0600, (uid_t)-1, (gid_t)-1, &b, &unit_error), SP_E_CONFLICT);
    assert_ok(unix_accept(listener, deadline_in_ms(1000), &b, &unit_error)); /* the probe of the one above */
    (void)close(b);
    assert_fails(unix_accept(listener, deadline_in_ms(10), &b, &unit_error), SP_E_TIMEOUT);
    assert_ok(unix_connect(path, SOCK_STREAM, deadline_in_ms(1000), &a, &unit_error));
    assert_ok(unix_accept(listener, deadline_in_ms(1000), &b, &unit_error));
    assert_ok(unix_peer(b, &peer, &unit_error));
    assert_true(peer.pid == getpid() && peer.uid == getuid() && peer.gid == getgid());
    assert_ok(sock_write_all(a, "OK 7\nrest", 9, deadline_in_ms(1000), &unit_error));
    assert_ok(sock_read_line(b, line, sizeof(line), deadline_in_ms(1000), &unit_error));
    assert_string_equal(line, "OK 7");
    assert_ok(sock_read_exact(b, line, 4, deadline_in_ms(1000), &unit_error));
    assert_memory_equal(line, "rest", 4);
    assert_fails(sock_read_exact(b, &byte, 1, deadline_in_ms(10), &unit_error), SP_E_TIMEOUT);
    assert_ok(sock_write_all(a, "0123456789abcdefgh", 18, deadline_in_ms(1000), &unit_error));
    assert_fails(sock_read_line(b, line, sizeof(line), deadline_in_ms(1000), &unit_error), SP_E_TOO_LARGE);
    (void)close(a);
    assert_ok(sock_read_some(b, line, sizeof(line), deadline_in_ms(1000), &n, &unit_error));
    assert_fails(sock_read_exact(b, &byte, 1, deadline_in_ms(1000), &unit_error), SP_E_PROTOCOL);
    (void)close(b);
    (void)close(listener); /* the path is stale now */
    assert_fails(unix_connect(path, SOCK_STREAM, deadline_in_ms(100), &a, &unit_error), SP_E_UNAVAILABLE);
    assert_ok(unix_listen(path, SOCK_SEQPACKET, 0600, (uid_t)-1, (gid_t)-1, &listener, &unit_error));
    (void)close(listener);
    assert_fails(unix_connect(unit_path("none"), SOCK_STREAM, deadline_in_ms(100), &a, &unit_error), SP_E_NOT_FOUND);
}

static void test_backlog_and_packets(void **state) {
    int pair[2];
    char data[8];
    size_t n;
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_ok(packet_send(pair[0], "one", 3, deadline_in_ms(100), &unit_error));
    assert_ok(packet_send(pair[0], "two++longer", 11, deadline_in_ms(100), &unit_error));
    assert_ok(packet_recv(pair[1], data, sizeof(data), deadline_in_ms(100), &n, &unit_error));
    assert_int_equal(n, 3);
    assert_fails(packet_recv(pair[1], data, sizeof(data), deadline_in_ms(100), &n, &unit_error), SP_E_TOO_LARGE);
    assert_fails(packet_recv(pair[1], data, sizeof(data), deadline_in_ms(10), &n, &unit_error), SP_E_TIMEOUT);
    int r = 0;
    while (r == 0) /* nobody reads: full at some point, then the deadline */
        r = packet_send(pair[0], data, sizeof(data), deadline_in_ms(10), &unit_error);
    assert_int_equal(r, -SP_E_TIMEOUT);
    (void)close(pair[0]);
    (void)close(pair[1]);
}

/* ---- packets on the loop ---- */

static unsigned messages, ends;
static enum sp_code packet_code;
static bool free_in_callback;

static void on_message(void *ctx, const char *data, size_t len) {
    (void)ctx;
    assert_int_equal(strlen(data), len);
    messages++;
    if (free_in_callback)
        packets[1] = packet_free(packets[1]);
}

static void on_packet_end(void *ctx, const struct sp_error *err) {
    (void)ctx;
    ends++;
    packet_code = err ? err->code : SP_OK;
}

static const struct packet_events packet_callbacks = {.on_message = on_message, .on_end = on_packet_end};

static void make_packets(size_t max) {
    int pair[2];
    messages = ends = 0;
    free_in_callback = false;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_ok(packet_new(rig.loop, pair[0], 100, 10, &packet_callbacks, NULL, &packets[0], &unit_error));
    assert_ok(packet_new(rig.loop, pair[1], max, 10, &packet_callbacks, NULL, &packets[1], &unit_error));
}

static void test_packets(void **state) {
    char big[101] = {0};
    unsigned sent = 0;
    (void)state;
    make_packets(100);
    assert_int_equal(packet_write(packets[0], big, 101), -SP_E_TOO_LARGE);
    while (packet_write(packets[0], "0123456789", 10) == 0)
        sent++;
    assert_true(sent > 10 && packet_write(packets[0], "x", 1) == -SP_E_UNAVAILABLE);
    rig_until(&rig, messages == sent);
    packets[0] = packet_free(packets[0]);
    rig_until(&rig, ends == 1);
    assert_int_equal(packet_code, SP_OK);
    assert_int_equal(packet_write(packets[1], "x", 1), -SP_E_GONE);
    packets[1] = packet_free(packets[1]);
    make_packets(4);
    assert_int_equal(packet_write(packets[0], "12345", 5), 0);
    rig_until(&rig, ends == 1);
    assert_int_equal(packet_code, SP_E_TOO_LARGE);
    packets[0] = packet_free(packets[0]);
    packets[1] = packet_free(packets[1]);
    make_packets(4);
    free_in_callback = true;
    assert_int_equal(packet_write(packets[0], "1", 1), 0);
    assert_int_equal(packet_write(packets[0], "2", 1), 0);
    rig_until(&rig, !packets[1]);
    assert_int_equal(messages, 1);
    packets[0] = packet_free(packets[0]);
}

/* ---- streams ---- */

static struct {
    size_t shown, taken, take;
    unsigned ends, drains;
    enum stream_end end;
    bool free_in_read;
} st;

static size_t on_read(void *ctx, const char *data, size_t len) {
    (void)ctx;
    (void)data;
    st.shown = len;
    size_t n = len < st.take ? len : st.take;
    st.taken += n;
    st.take -= n;
    if (st.free_in_read)
        stream = stream_free(stream);
    return n;
}

static void on_end(void *ctx, enum stream_end end) {
    (void)ctx;
    st.ends++;
    st.end = end;
}

static void on_drain(void *ctx) {
    (void)ctx;
    st.drains++;
}

static const struct stream_events stream_callbacks = {.on_read = on_read, .on_end = on_end, .on_drain = on_drain};

static int make_stream(const struct stream_options *opt) {
    int pair[2];
    memset(&st, 0, sizeof(st));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_ok(stream_new(rig.loop, pair[0], opt, &stream_callbacks, NULL, &stream, &unit_error));
    return pair[1];
}

static void test_stream_holds_what_is_not_taken(void **state) {
    struct stream_options opt = {.in_max = 100};
    char block[150];
    (void)state;
    int peer = make_stream(&opt);
    memset(block, 'x', sizeof(block));
    assert_int_equal(send(peer, block, sizeof(block), 0), sizeof(block));
    rig_rounds(&rig, 5);
    assert_int_equal(st.shown, 0); /* paused from the start */
    stream_resume(stream);
    rig_until(&rig, stream_held(stream) == 100);
    st.take = 30;
    stream_kick(stream);
    rig_until(&rig, st.taken == 30);
    rig_until(&rig, stream_held(stream) == 100); /* refilled from the socket */
    st.take = 1000;
    stream_kick(stream);
    rig_until(&rig, st.taken == 150);
    (void)close(peer);
    rig_until(&rig, st.ends == 1);
    assert_int_equal(st.end, STREAM_EOF);
    stream = stream_free(stream);
    peer = make_stream(&opt); /* gone while everything is full */
    stream_resume(stream);
    assert_int_equal(send(peer, block, sizeof(block), 0), sizeof(block));
    rig_until(&rig, stream_held(stream) == 100);
    (void)close(peer);
    rig_until(&rig, st.ends == 1);
    assert_int_equal(st.end, STREAM_HANGUP);
    stream = stream_free(stream);
    peer = make_stream(NULL);
    st.free_in_read = true;
    stream_resume(stream);
    assert_int_equal(send(peer, block, sizeof(block), 0), sizeof(block));
    rig_until(&rig, !stream);
    (void)close(peer);
}

static void test_stream_queue_is_bounded(void **state) {
    struct stream_options opt = {.out_max = 50000, .low_water = 10000};
    char block[10000];
    size_t sent = 0, got = 0;
    (void)state;
    int peer = make_stream(&opt);
    memset(block, 'y', sizeof(block));
    assert_int_equal(stream_write(stream, block, 0), 0);
    while (stream_write(stream, block, sizeof(block)) == 0)
        sent += sizeof(block);
    assert_true(stream_queued(stream) > 40000 && stream_queued(stream) <= 50000);
    stream_shutdown(stream);
    assert_int_equal(stream_write(stream, block, 1), -SP_E_GONE);
    for (ssize_t n = 1; n != 0;) {
        n = recv(peer, block, sizeof(block), MSG_DONTWAIT);
        got += n > 0 ? (size_t)n : 0;
        loop_run_once(rig.loop);
    }
    assert_int_equal(got, sent); /* all of it before the FIN */
    assert_true(st.drains >= 1);
    stream = stream_free(stream);
    (void)close(peer);
    peer = make_stream(&opt);
    (void)close(peer);
    (void)stream_write(stream, block, 1); /* a dead peer shows later, not here */
    assert_int_equal(st.ends, 0);
    rig_until(&rig, st.ends >= 1);
    assert_int_equal(st.end, STREAM_ERROR);
    assert_string_not_equal(stream_error(stream)->text, "");
    stream = stream_free(stream);
}

static void test_addresses(void **state) {
    static const char *const bad[] = {"",       "x",     ":80",          "1.2.3.4",   "1.2.3.4:", "1.2.3.4:65536",
                                      "::1:80", "[::1]", "a.example:80", "1.2.3.4:-1"};
    char text[ADDRESS_SIZE];
    struct sockaddr_storage sa;
    socklen_t len;
    int fd, second;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_fails(address_parse(bad[i], &sa, &len, &unit_error), SP_E_INVALID);
    assert_ok(address_parse("[::1]:70", &sa, &len, &unit_error));
    assert_string_equal(address_format(text, &sa, len), "[::1]:70");
    assert_ok(listen_tcp("localhost:0", &fd, &unit_error));
    assert_true(text_starts_with(address_local(text, fd), "127.0.0.1:"));
    assert_fails(listen_tcp(text, &second, &unit_error), SP_E_CONFLICT);
    (void)close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_posts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tasks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_handles, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop_signal, setup, teardown),
        cmocka_unit_test_setup_teardown(test_workers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_worker_is_enough_for_one_job_at_a_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unix_paths, unit_temp_dir, unit_temp_dir_remove),
        cmocka_unit_test(test_backlog_and_packets),
        cmocka_unit_test_setup_teardown(test_packets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stream_holds_what_is_not_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stream_queue_is_bounded, setup, teardown),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
