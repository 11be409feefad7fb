/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: reads and writes are whole or an error, replaced files are old or new, passed descriptors never leak. */
#include "base/cleanup.h"
#include "unit.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

static unsigned open_descriptors(void) {
    _cleanup_closedir_ DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    return n;
}

static void *write_a_lot(void *arg) {
    static char data[1 << 20];
    int fd = *(int *)arg;
    memset(data, 'x', sizeof(data));
    return fd_write_all(fd, data, sizeof(data), NULL) == 0 ? arg : NULL;
}

static void whole_writes_and_reads(void **state) {
    _cleanup_free_ char *got = malloc(1 << 20);
    pthread_t thread;
    void *result;
    int p[2];
    (void)state;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_int_equal(pthread_create(&thread, NULL, write_a_lot, &p[1]), 0);
    assert_ok(fd_read_exact(p[0], got, 1 << 20, &unit_error));
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_non_null(result);
    assert_int_equal(got[(1 << 20) - 1], 'x');
    (void)close(p[1]);
    assert_fails(fd_read_exact(p[0], got, 1, &unit_error), SP_E_PROTOCOL);
    assert_ok(fd_read_exact(p[0], got, 0, &unit_error));
    (void)close(p[0]);
    assert_fails(fd_write_all(-1, "x", 1, &unit_error), SP_E_IO);
}

static void a_socket_timeout_is_a_timeout(void **state) {
    struct timeval tv = {.tv_usec = 20000};
    char c;
    int s[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
    assert_int_equal(setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)), 0);
    assert_fails(fd_read_exact(s[0], &c, 1, &unit_error), SP_E_TIMEOUT);
    assert_int_equal(fd_set_nonblocking(s[1], true), 0);
    assert_true(fcntl(s[1], F_GETFL) & O_NONBLOCK);
    assert_int_equal(fd_set_nonblocking(s[1], false), 0);
    assert_false(fcntl(s[1], F_GETFL) & O_NONBLOCK);
    assert_int_equal(fd_set_nonblocking(-1, true), -EBADF);
    (void)close(s[0]);
    (void)close(s[1]);
}

static void file_limit_is_exact(void **state) {
    char *data = NULL;
    size_t len = 99;
    (void)state;
    assert_ok(file_replace(AT_FDCWD, unit_path("f"), "12345", 5, 0600, &unit_error));
    assert_ok(file_read(AT_FDCWD, unit_path("f"), 5, &data, &len, &unit_error));
    assert_string_equal(data, "12345");
    assert_int_equal(len, 5);
    free(data);
    data = NULL;
    assert_fails(file_read(AT_FDCWD, unit_path("f"), 4, &data, &len, &unit_error), SP_E_TOO_LARGE);
    assert_fails(file_read(AT_FDCWD, unit_path("none"), 4, &data, &len, &unit_error), SP_E_NOT_FOUND);
    assert_fails(file_read(AT_FDCWD, unit_dir_path, 4, &data, &len, &unit_error), SP_E_IO);
    assert_null(data);
    assert_int_equal(len, 5);
    assert_ok(file_read(AT_FDCWD, "/proc/self/status", 65536, &data, NULL, &unit_error)); /* says size 0 */
    assert_true(strlen(data) > 100);
    free(data);
}

static void big_files_are_read_whole(void **state) {
    _cleanup_free_ char *data = malloc(300000), *got = NULL;
    size_t len;
    (void)state;
    memset(data, 'q', 300000);
    assert_ok(file_replace(AT_FDCWD, unit_path("big"), data, 300000, 0600, &unit_error));
    assert_ok(file_read(AT_FDCWD, unit_path("big"), 300000, &got, &len, &unit_error));
    assert_int_equal(len, 300000);
    assert_memory_equal(got, data, len);
}

static unsigned entries(const char *path) {
    _cleanup_closedir_ DIR *d = opendir(path);
    unsigned n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    return n - 2;
}

static void replace_sets_mode_and_leaves_no_temp(void **state) {
    struct stat st;
    _cleanup_close_ int dir = open(unit_dir_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)state;
    (void)umask(077);
    assert_ok(file_replace(dir, "f", "old", 3, 0600, &unit_error));
    assert_ok(file_replace(dir, "f", "newer", 5, 0644, &unit_error));
    assert_int_equal(stat(unit_path("f"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0644);
    assert_int_equal(st.st_size, 5);
    /* The target is a directory: the rename fails, the old things and nothing else are there. */
    assert_int_equal(mkdir(unit_path("d"), 0700), 0);
    assert_fails(file_replace(dir, "d", "x", 1, 0600, &unit_error), SP_E_IO);
    assert_non_null(strstr(unit_error.text, "replace d"));
    assert_fails(file_replace(dir, "none/f", "x", 1, 0600, &unit_error), SP_E_NOT_FOUND);
    assert_fails(file_replace(dir, "f/", "x", 1, 0600, &unit_error), SP_E_IO);
    assert_int_equal(entries(unit_dir_path), 2);
    (void)umask(022);
}

static void full_disk_is_no_space(void **state) {
    _cleanup_close_ int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    (void)state;
    if (fd < 0)
        skip();
    assert_fails(fd_write_all(fd, "x", 1, &unit_error), SP_E_NO_SPACE);
}

static void directories_are_ensured(void **state) {
    struct stat st;
    (void)state;
    assert_ok(dir_ensure(AT_FDCWD, unit_path("d"), 0711, (uid_t)-1, (gid_t)-1, &unit_error));
    assert_ok(dir_ensure(AT_FDCWD, unit_path("d"), 0750, (uid_t)-1, (gid_t)-1, &unit_error));
    assert_int_equal(stat(unit_path("d"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0750);
    if (geteuid() == 0) {
        assert_ok(dir_ensure(AT_FDCWD, unit_path("d"), 0750, 12345, 54321, &unit_error));
        assert_int_equal(stat(unit_path("d"), &st), 0);
        assert_true(st.st_uid == 12345 && st.st_gid == 54321);
    }
    assert_int_equal(symlink("d", unit_path("link")), 0);
    assert_fails(dir_ensure(AT_FDCWD, unit_path("link"), 0700, (uid_t)-1, (gid_t)-1, &unit_error), SP_E_IO);
    assert_ok(file_replace(AT_FDCWD, unit_path("f"), "", 0, 0600, &unit_error));
    assert_fails(dir_ensure(AT_FDCWD, unit_path("f"), 0700, (uid_t)-1, (gid_t)-1, &unit_error), SP_E_IO);
    assert_fails(dir_ensure(AT_FDCWD, unit_path("no/d"), 0700, (uid_t)-1, (gid_t)-1, &unit_error), SP_E_NOT_FOUND);
}

static void descriptors_are_passed(void **state, int type) {
    int s[2], send[2], got[2] = {-1, -1};
    size_t len = 0, n = 2;
    char data[16];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, s), 0);
    assert_int_equal(pipe2(send, O_CLOEXEC), 0);
    assert_ok(fd_send_message(s[0], "hello", 5, send, 2, &unit_error));
    assert_ok(fd_recv_message(s[1], data, sizeof(data), &len, got, &n, &unit_error));
    assert_int_equal(len, 5);
    assert_int_equal(n, 2);
    assert_memory_equal(data, "hello", 5);
    assert_true(fcntl(got[0], F_GETFD) & FD_CLOEXEC);
    assert_ok(fd_write_all(send[1], "x", 1, &unit_error));
    assert_ok(fd_read_exact(got[0], data, 1, &unit_error));
    assert_int_equal(data[0], 'x');
    n = 2;
    assert_ok(fd_send_message(s[0], "none", 4, NULL, 0, &unit_error));
    assert_ok(fd_recv_message(s[1], data, sizeof(data), &len, got, &n, &unit_error));
    assert_int_equal(n, 0);
    (void)close(s[0]);
    assert_ok(fd_recv_message(s[1], data, sizeof(data), &len, NULL, NULL, &unit_error));
    assert_int_equal(len, 0);
    for (size_t i = 0; i < 2; i++) {
        (void)close(send[i]);
        (void)close(got[i]);
    }
    (void)close(s[1]);
}

static void descriptors_over_stream(void **state) {
    descriptors_are_passed(state, SOCK_STREAM);
}

static void descriptors_over_seqpacket(void **state) {
    descriptors_are_passed(state, SOCK_SEQPACKET);
}

static void surplus_descriptors_are_closed(void **state) {
    int s[2], many[16], got[2];
    size_t len = 77, n;
    char data[4];
    unsigned before;
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
    for (size_t i = 0; i < 16; i++)
        many[i] = s[0];
    before = open_descriptors();
    n = 2;
    assert_ok(fd_send_message(s[0], "a", 1, many, 3, &unit_error));
    assert_fails(fd_recv_message(s[1], data, sizeof(data), &len, got, &n, &unit_error), SP_E_PROTOCOL);
    assert_ok(fd_send_message(s[0], "a", 1, many, 16, &unit_error));
    assert_fails(fd_recv_message(s[1], data, sizeof(data), &len, NULL, NULL, &unit_error), SP_E_PROTOCOL);
    assert_ok(fd_send_message(s[0], "too long", 8, many, 1, &unit_error)); /* a cut message brings nothing in */
    n = 2;
    assert_fails(fd_recv_message(s[1], data, sizeof(data), &len, got, &n, &unit_error), SP_E_PROTOCOL);
    assert_int_equal(n, 2);
    assert_int_equal(len, 77);
    assert_int_equal(open_descriptors(), before);
    (void)close(s[0]);
    (void)close(s[1]);
}

static void a_gone_peer_is_an_error_not_a_signal(void **state) {
    int s[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
    (void)close(s[1]);
    assert_fails(fd_send_message(s[0], "x", 1, NULL, 0, &unit_error), SP_E_IO);
    assert_int_equal(unit_error.err_no, EPIPE);
    (void)close(s[0]);
}

#define IN_TEMP_DIR(f) cmocka_unit_test_setup_teardown(f, unit_temp_dir, unit_temp_dir_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_writes_and_reads),
        cmocka_unit_test(a_socket_timeout_is_a_timeout),
        IN_TEMP_DIR(file_limit_is_exact),
        IN_TEMP_DIR(big_files_are_read_whole),
        IN_TEMP_DIR(replace_sets_mode_and_leaves_no_temp),
        cmocka_unit_test(full_disk_is_no_space),
        IN_TEMP_DIR(directories_are_ensured),
        cmocka_unit_test(descriptors_over_stream),
        cmocka_unit_test(descriptors_over_seqpacket),
        cmocka_unit_test(surplus_descriptors_are_closed),
        cmocka_unit_test(a_gone_peer_is_an_error_not_a_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
