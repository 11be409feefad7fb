/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: both backends make, fill, kill, empty and remove a group; members and nobody else die. Needs root. */
#include "base/cleanup.h"
#include "host/cgroup.h"
#include "host/jail.h"
#include "unit.h"
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>

#define CGROUP2_MAGIC 0x63677270
#define ID "sbx_unit"

static const struct cgroup_limits limits = {.memory_bytes = 64u << 20, .cpu_percent = 150, .pids = 20};

static char parent[48];

static int set_up(void **state) {
    (void)state;
    (void)text_printf(parent, sizeof(parent), "space-unit-%d", (int)getpid());
    return 0;
}

static void need_root(void) {
    if (geteuid() != 0) {
        print_message("# skipped: needs root\n");
        skip();
    }
}

/* In the group, with a child of its own. */
static pid_t member(struct cgroup_root *root) {
    _cleanup_cgroup_entry_ struct cgroup_entry entry;
    pid_t pid;
    assert_ok(cgroup_entry_open(root, ID, &entry, &unit_error));
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid = jail_fork(&(struct jail_clone){.cgroup_fd = entry.clone_fd});
    if (pid == 0) {
        if (cgroup_entry_join_self(&entry) < 0)
            _exit(1);
        (void)fork();
        (void)!write(ready[1], "x", 1);
        for (;;)
            (void)pause();
    }
    assert_true(pid > 0);
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(read(ready[0], &c, 1), 1);
    (void)close(ready[0]);
    (void)close(ready[1]);
    return pid;
}

static int note_id(void *ctx, const char *id) {
    *(unsigned *)ctx += strcmp(id, ID) == 0;
    return 0;
}

static void life(struct cgroup_root *root) {
    bool empty = false;
    unsigned found = 0;
    int status;
    pid_t pid, bystander = fork();
    if (bystander == 0)
        for (;;)
            (void)pause();

    assert_ok(cgroup_is_empty(root, ID, &empty, &unit_error)); /* not there yet */
    assert_true(empty);
    assert_ok(cgroup_kill(root, ID, &unit_error));
    assert_ok(cgroup_remove(root, ID, &unit_error));
    assert_ok(cgroup_create(root, ID, &limits, &unit_error));
    assert_fails(cgroup_create(root, ID, &limits, &unit_error), SP_E_CONFLICT);
    assert_ok(cgroup_list(root, note_id, &found, &unit_error));
    assert_true(found >= 1);

    pid = member(root);
    assert_ok(cgroup_is_empty(root, ID, &empty, &unit_error));
    assert_false(empty);
    assert_fails(cgroup_remove(root, ID, &unit_error), SP_E_CONFLICT);
    for (int i = 0; !empty && i < 2000; i++) {
        assert_ok(cgroup_kill(root, ID, &unit_error));
        assert_ok(cgroup_is_empty(root, ID, &empty, &unit_error));
        (void)usleep(1000);
    }
    assert_true(empty);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(waitpid(bystander, &status, WNOHANG), 0);
    (void)kill(bystander, SIGKILL);
    (void)waitpid(bystander, NULL, 0);
    for (int i = 0; cgroup_remove(root, ID, &unit_error) < 0 && i < 1000; i++)
        (void)usleep(1000);
    assert_ok(cgroup_remove(root, ID, &unit_error)); /* again: fine */
    found = 0;
    assert_ok(cgroup_list(root, note_id, &found, &unit_error));
    assert_int_equal(found, 0);
}

static void test_of_this_host(void **state) {
    struct cgroup_root *root = NULL;
    (void)state;
    need_root();
    assert_ok(cgroup_root_open(parent, &root, &unit_error));
    print_message("# control groups %s, missing: '%s'\n", cgroup_root_version(root), cgroup_missing_controllers(root));
    life(root);
    cgroup_root_remove(root);
    root = cgroup_root_free(root);
}

/* A v2 tree, wherever the host has one: with or without controllers it can hold, kill and count members. */
static void test_v2(void **state) {
    static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    struct cgroup_root *root = NULL;
    (void)state;
    need_root();
    for (size_t i = 0; i < ARRAY_SIZE(mounts) && !root; i++) {
        struct statfs fs;
        if (statfs(mounts[i], &fs) == 0 && fs.f_type == CGROUP2_MAGIC)
            assert_ok(cgroup_root_open_v2(mounts[i], parent, &root, &unit_error));
    }
    if (!root) {
        print_message("# skipped: no v2 tree is mounted\n");
        skip();
    }
    assert_string_equal(cgroup_root_version(root), "v2");
    life(root);
    cgroup_root_remove(root);
    root = cgroup_root_free(root);
}

static void test_remove_leaves_what_is_used(void **state) {
    struct cgroup_root *root = NULL;
    (void)state;
    need_root();
    assert_ok(cgroup_root_open(parent, &root, &unit_error));
    assert_ok(cgroup_create(root, ID, &limits, &unit_error));
    cgroup_root_remove(root);
    assert_fails(cgroup_create(root, ID, &limits, &unit_error), SP_E_CONFLICT); /* still there */
    assert_ok(cgroup_remove(root, ID, &unit_error));
    cgroup_root_remove(root);
    assert_fails(cgroup_create(root, ID, &limits, &unit_error), SP_E_NOT_FOUND);
    root = cgroup_root_free(root);
    assert_null(cgroup_root_free(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_of_this_host),
        cmocka_unit_test(test_v2),
        cmocka_unit_test(test_remove_leaves_what_is_used),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
