/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: removing a tree takes what is in it and nothing else, whatever its shape, with bounded descriptors. */
#include "base/cleanup.h"
#include "unit.h"
#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void touch(const char *path) {
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
}

static void missing_is_fine(void **state) {
    (void)state;
    assert_ok(dir_remove_tree(AT_FDCWD, unit_path("none"), &unit_error));
    assert_ok(dir_remove_tree(AT_FDCWD, unit_path("none/deeper"), &unit_error));
}

static void a_file_is_removed(void **state) {
    (void)state;
    touch(unit_path("f"));
    assert_ok(dir_remove_tree(AT_FDCWD, unit_path("f"), &unit_error));
    assert_int_equal(access(unit_path("f"), F_OK), -1);
}

static void links_are_not_followed(void **state) {
    (void)state;
    assert_int_equal(mkdir(unit_path("keep"), 0700), 0);
    touch(unit_path("keep/f"));
    assert_int_equal(mkdir(unit_path("t"), 0700), 0);
    assert_int_equal(mkdir(unit_path("t/d"), 0700), 0);
    assert_int_equal(symlink("../keep", unit_path("t/link")), 0);
    assert_int_equal(symlink("/", unit_path("t/d/root")), 0);
    assert_int_equal(symlink("keep", unit_path("top")), 0);
    assert_ok(dir_remove_tree(AT_FDCWD, unit_path("t"), &unit_error));
    assert_ok(dir_remove_tree(AT_FDCWD, unit_path("top"), &unit_error)); /* the link itself */
    assert_int_equal(access(unit_path("keep/f"), F_OK), 0);
    assert_int_equal(access(unit_path("t"), F_OK), -1);
}

static void many_entries(void **state) {
    (void)state;
    assert_int_equal(mkdir(unit_path("t"), 0700), 0);
    for (int i = 0; i < 1500; i++) {
        char name[32];
        assert_true(text_printf(name, sizeof(name), "t/%d", i));
        touch(unit_path(name));
    }
    assert_ok(dir_remove_tree(AT_FDCWD, unit_path("t"), &unit_error));
}

/* Deeper than any path may be long, and with few descriptors allowed. */
static void very_deep_trees(void **state) {
    struct rlimit old, few;
    int dir = open(unit_dir_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)state;
    for (int i = 0; i < 400; i++) {
        int next;
        assert_int_equal(mkdirat(dir, "deep-directory", 0700), 0);
        next = openat(dir, "deep-directory", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        (void)close(dir);
        dir = next;
    }
    (void)close(dir);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = 128;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_ok(dir_remove_tree(AT_FDCWD, unit_path("deep-directory"), &unit_error));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(access(unit_path("deep-directory"), F_OK), -1);
}

/* In a child with a mount namespace of its own: even a bind mount of the same file system stops it. */
static int mounts_child(void) {
    struct sp_error err = {0};
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return 77;
    if (mount(unit_path("keep"), unit_path("t/m"), NULL, MS_BIND, NULL) < 0)
        return 77;
    if (dir_remove_tree(AT_FDCWD, unit_path("t"), &err) == 0)
        return 1;
    return access(unit_path("keep/f"), F_OK) == 0 && access(unit_path("t/other"), F_OK) < 0 ? 0 : 2;
}

static void mounts_are_not_crossed(void **state) {
    int status = 0;
    pid_t pid;
    (void)state;
    assert_int_equal(mkdir(unit_path("keep"), 0700), 0);
    touch(unit_path("keep/f"));
    assert_int_equal(mkdir(unit_path("t"), 0700), 0);
    assert_int_equal(mkdir(unit_path("t/m"), 0700), 0);
    touch(unit_path("t/other"));
    pid = fork();
    if (pid == 0)
        _exit(mounts_child());
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define IN_TEMP_DIR(f) cmocka_unit_test_setup_teardown(f, unit_temp_dir, unit_temp_dir_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_TEMP_DIR(missing_is_fine), IN_TEMP_DIR(a_file_is_removed), IN_TEMP_DIR(links_are_not_followed),
        IN_TEMP_DIR(many_entries),    IN_TEMP_DIR(very_deep_trees),   IN_TEMP_DIR(mounts_are_not_crossed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
