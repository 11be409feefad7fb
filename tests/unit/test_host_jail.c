/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: a jailed process has the descriptors, files and identity it was given and none besides. Parts need root. */
#include "base/cleanup.h"
#include "host/jail.h"
#include "host/jail_root.h"
#include "host/tap.h"
#include "unit.h"
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

static struct jail_filter filter;

static void need_root(void) {
    if (geteuid() != 0) {
        print_message("# skipped: needs root\n");
        skip();
    }
}

/* Runs fn in a child with these namespaces; its return value is the exit status, 0 good. */
static int in_child(uint64_t namespaces, int (*fn)(void)) {
    int status = -1;
    pid_t pid = jail_fork(&(struct jail_clone){.namespaces = namespaces, .cgroup_fd = -1});
    if (pid == 0)
        _exit(fn());
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define CHECK(n, condition)                                                                                            \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return (n);                                                                                                \
    } while (0)

static int open_memfd(const char *text) {
    int fd = memfd_create(text, MFD_CLOEXEC);
    (void)!write(fd, text, strlen(text));
    return fd;
}

static bool holds(int fd, const char *text) {
    char have[16] = {0};
    return pread(fd, have, sizeof(have) - 1, 0) == (ssize_t)strlen(text) && strcmp(have, text) == 0;
}

/* In every order: a target number may be the number of another source. */
static int place_in_child(void) {
    int a = open_memfd("a"), b = open_memfd("b"), c = open_memfd("c"), d = open_memfd("d");
    int stray = dup(a), keep[] = {d, a};
    (void)stray;
    CHECK(1, dup2(b, 0) == 0 && dup2(c, 1) == 1); /* sources 0 and 1, wanted elsewhere */
    CHECK(2, jail_place_fds((const int[]){1, 0, a}, 3, keep, 2, NULL) == 0);
    CHECK(3, holds(0, "c") && holds(1, "b") && holds(2, "a") && holds(keep[0], "d") && holds(keep[1], "a"));
    CHECK(4, keep[0] == 3 && keep[1] == 4);
    for (int fd = 0; fd < 5; fd++)
        CHECK(5, fcntl(fd, F_GETFD) == (fd < 3 ? 0 : FD_CLOEXEC));
    for (int fd = 5; fd < 1024; fd++)
        CHECK(6, fcntl(fd, F_GETFD) < 0 && errno == EBADF);
    return 0;
}

static void test_place_fds(void **state) {
    (void)state;
    assert_int_equal(in_child(0, place_in_child), 0);
}

static int filter_in_child(void) {
    CHECK(1, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(2, jail_filter_load(&filter) == 0);
    CHECK(3, socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EAFNOSUPPORT);
    CHECK(4, socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
    CHECK(5, unshare(CLONE_NEWUSER) < 0 && errno == EPERM);
    CHECK(6, jail_fork(&(struct jail_clone){.cgroup_fd = -1}) == -ENOSYS); /* clone3 */
    pid_t pid = fork();                                                    /* clone, without namespaces */
    if (pid == 0)
        _exit(0);
    CHECK(7, pid > 0 && waitpid(pid, NULL, 0) == pid);
    return 0;
}

static void test_filter(void **state) {
    (void)state;
    assert_true(filter.program.len > 10);
    assert_int_equal(in_child(0, filter_in_child), 0);
}

static int drop_in_child(void) {
    const struct jail_identity identity = {
        .uid = 1820000, .file_size_max = 4096, .descriptors_max = 32, .processes_max = 4, .filter = &filter};
    CHECK(1, jail_drop(&identity, NULL) == 0);
    CHECK(2, getuid() == 1820000 && geteuid() == 1820000 && getgid() == 1820000 && getgroups(0, NULL) == 0);
    CHECK(3, setresuid(0, 0, 0) < 0 && setgid(0) < 0);
    CHECK(4, prctl(PR_CAPBSET_READ, 0, 0, 0, 0) == 0 && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    CHECK(5, prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2);
    CHECK(6, open("/etc/shadow", O_RDONLY | O_CLOEXEC) < 0);
    return 0;
}

static void test_drop(void **state) {
    (void)state;
    need_root();
    assert_int_equal(in_child(0, drop_in_child), 0);
}

static int source_mount = -1, source_mount_rw = -1;

static int root_in_child(void) {
    const struct jail_item items[] = {
        {JAIL_BIND_DIR, "usr", .source = "/usr"},
        {JAIL_LINK_OR_DIR, "lib", .source = "/lib"},
        {JAIL_LINK_OR_DIR, "none", .source = "/there/is/none"},
        {JAIL_DIR, "d"},
        {JAIL_FILE, "d/ro", .mount_fd = source_mount},
        {JAIL_FILE, "d/rw", .mount_fd = source_mount_rw},
        {JAIL_DEV, "dev"},
        {JAIL_DEVICE, "dev/null", .device = makedev(1, 3), .mode = 0666},
        {JAIL_PROC, "proc"},
    };
    struct sp_error err = {0};
    if (jail_root_enter(items, ARRAY_SIZE(items), "/tmp", &err) < 0) {
        print_message("# %s: %s\n", err.op, err.text);
        return 1;
    }
    CHECK(2, access("/etc", F_OK) < 0 && access("/tmp", F_OK) < 0 && access("/none", F_OK) < 0);
    CHECK(3, open("/new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600) < 0 && errno == EROFS);
    CHECK(4, open("/usr/new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600) < 0 && errno == EROFS);
    CHECK(5, open("/dev/new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600) < 0 && errno == EROFS);
    CHECK(6, open("/d/ro", O_RDWR | O_CLOEXEC) < 0 && errno == EROFS);
    CHECK(7, open("/d/ro", O_RDONLY | O_CLOEXEC) >= 0);
    CHECK(8, open("/d/rw", O_RDWR | O_CLOEXEC) >= 0);
    CHECK(9, open("/dev/null", O_RDWR | O_CLOEXEC) >= 0);
    CHECK(10, access("/proc/1/stat", F_OK) == 0 && access("/proc/2", F_OK) < 0 && access("/proc/sys", F_OK) < 0);
    CHECK(11, chdir("..") == 0 && access("etc", F_OK) < 0);
    return 0;
}

static void test_root(void **state) {
    _cleanup_close_ int fd = -1;
    (void)state;
    need_root();
    fd = open(unit_path("file"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_ok(jail_file_mount(fd, "file", false, false, &source_mount, &unit_error));
    assert_ok(jail_file_mount(fd, "file", true, false, &source_mount_rw, &unit_error));
    assert_int_equal(in_child(CLONE_NEWNS | CLONE_NEWPID, root_in_child), 0);
    source_mount = close_fd(source_mount);
    source_mount_rw = close_fd(source_mount_rw);
    assert_int_equal(access("/etc", F_OK), 0); /* nothing of it came out */
}

static int tap_in_child(void) {
    static const char frame[10 + 60]; /* behind an empty virtio header */
    int fd = -1;
    CHECK(1, tap_create("tap0", &fd, NULL) == 0);
    CHECK(2, write(fd, frame, sizeof(frame)) < 0 && errno == EIO); /* down: nothing goes in */
    CHECK(3, tap_create("a-name-that-is-too-long", &fd, NULL) < 0);
    return 0;
}

static void test_tap(void **state) {
    (void)state;
    need_root();
    assert_int_equal(in_child(CLONE_NEWNET, tap_in_child), 0);
}

static int set_up(void **state) {
    return jail_filter_build(&filter, NULL) < 0 ? -1 : unit_temp_dir(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place_fds), cmocka_unit_test(test_filter), cmocka_unit_test(test_drop),
        cmocka_unit_test(test_root),      cmocka_unit_test(test_tap),
    };
    return cmocka_run_group_tests(tests, set_up, unit_temp_dir_remove);
}
