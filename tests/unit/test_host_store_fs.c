/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: a store with reflink copies comes out of any directory, is used again, and leaves no loop device. Needs root. */
#include "base/cleanup.h"
#include "host/reflink.h"
#include "host/store_fs.h"
#include "unit.h"
#include <sys/stat.h>

static char dir[128], image[128];

static void need_root(void) {
    if (geteuid() != 0) {
        print_message("# skipped: needs root\n");
        skip();
    }
    if (access("/usr/sbin/mkfs.btrfs", X_OK) < 0 && access("/sbin/mkfs.btrfs", X_OK) < 0) {
        print_message("# skipped: no mkfs.btrfs\n");
        skip();
    }
}

static int set_up(void **state) {
    if (unit_temp_dir(state) < 0)
        return -1;
    (void)text_copy(dir, sizeof(dir), unit_path("store"));
    (void)text_copy(image, sizeof(image), unit_path("store.img"));
    return mkdir(dir, 0700);
}

static int make(int at, const char *name) {
    int fd = openat(at, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void check_reflink(void) {
    _cleanup_close_ int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int outside = make(AT_FDCWD, unit_path("outside"));
    _cleanup_close_ int a = make(at, "a"), b = make(at, "b");
    char text[5000] = {0}, got[5000];
    assert_true(reflink_is_supported(at));
    memset(text, 'x', sizeof(text) - 1);
    assert_ok(fd_write_all(a, text, sizeof(text), &unit_error));
    assert_ok(reflink_clone(b, a, "b", &unit_error));
    assert_int_equal(pread(b, got, sizeof(got), 0), sizeof(got));
    assert_memory_equal(text, got, sizeof(got));
    assert_fails(reflink_clone(outside, a, "outside", &unit_error), SP_E_UNSUPPORTED);
}

static void test_life(void **state) {
    const struct store_fs fs = {.dir = dir, .image = image, .size_mib = 256};
    enum store_fs_kind kind = STORE_FS_NATIVE;
    struct stat st;
    (void)state;
    need_root();
    {
        _cleanup_close_ int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (reflink_is_supported(at)) {
            print_message("# skipped: the temporary directory has reflink copies itself\n");
            skip();
        }
    }
    assert_ok(store_fs_unmount(&fs, &unit_error)); /* nothing there: fine */
    assert_ok(store_fs_open(&fs, &kind, &unit_error));
    assert_int_equal(kind, STORE_FS_ATTACHED);
    check_reflink();
    assert_ok(store_fs_open(&fs, &kind, &unit_error));
    assert_int_equal(kind, STORE_FS_MOUNTED);
    {
        _cleanup_close_ int busy = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_fails(store_fs_unmount(&fs, &unit_error), SP_E_CONFLICT);
    }
    assert_ok(store_fs_unmount(&fs, &unit_error));
    assert_int_equal(stat(image, &st), 0);
    assert_true(st.st_blocks * 512 < st.st_size); /* sparse */
    assert_ok(store_fs_open(&fs, &kind, &unit_error));
    assert_int_equal(kind, STORE_FS_ATTACHED);
    {
        _cleanup_close_ int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(faccessat(at, "a", F_OK, 0), 0); /* the same store */
    }
    assert_ok(store_fs_unmount(&fs, &unit_error));
}

static void test_broken_image(void **state) {
    const struct store_fs fs = {.dir = dir, .image = image, .size_mib = 256};
    enum store_fs_kind kind;
    (void)state;
    need_root();
    assert_int_equal(truncate(image, 0), 0);
    assert_int_equal(truncate(image, 64 << 20), 0);
    assert_true(store_fs_open(&fs, &kind, &unit_error) < 0); /* is refused, not made anew */
    assert_int_equal(unlink(image), 0);
}

static void test_no_reflink(void **state) {
    _cleanup_close_ int shm = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)state;
    if (shm < 0)
        skip();
    assert_false(reflink_is_supported(shm));
    assert_false(reflink_is_supported(-1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_broken_image),
        cmocka_unit_test(test_no_reflink),
    };
    return cmocka_run_group_tests(tests, set_up, unit_temp_dir_remove);
}
