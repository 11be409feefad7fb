/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: what the writer makes is an archive that other programs read back, and wrong use is refused. */
#include "base/buf.h"
#include "unit.h"
#include "wire/cpio.h"
#include <errno.h>

static int append(void *arg, const void *data, size_t len) {
    return buf_append(arg, data, len);
}

static void build(struct buf *b) {
    struct cpio c;
    buf_init(b, 1 << 20);
    cpio_init(&c, append, b);
    assert_int_equal(cpio_guest_skeleton(&c), 0);
    assert_int_equal(cpio_file(&c, "init", 0755, 5), 0);
    assert_int_equal(cpio_data(&c, "he", 2), 0);
    assert_int_equal(cpio_data(&c, "llo", 3), 0);
    assert_int_equal(cpio_file(&c, "modules/empty.ko", 0644, 0), 0);
    assert_int_equal(cpio_symlink(&c, "dev/fd", "/proc/self/fd"), 0);
    assert_int_equal(cpio_finish(&c), 0);
    assert_int_equal(c.written, b->len);
    assert_int_equal(b->len % 512, 0);
}

/* A small reader of the format, written from its description. */
static const char *find(const struct buf *b, const char *name, uint32_t *ret_mode, const char **ret_data) {
    size_t at = 0;
    while (at + 110 <= b->len && memcmp(b->data + at, "070701", 6) == 0) {
        char field[9] = {0};
        uint32_t v[13];
        for (size_t i = 0; i < 13; i++) {
            memcpy(field, b->data + at + 6 + 8 * i, 8);
            v[i] = (uint32_t)strtoul(field, NULL, 16);
        }
        const char *entry = b->data + at + 110;
        size_t data = (at + 110 + v[11] + 3) / 4 * 4;
        if (strcmp(entry, name) == 0) {
            *ret_mode = v[1];
            *ret_data = b->data + data;
            return entry;
        }
        at = (data + v[6] + 3) / 4 * 4;
    }
    return NULL;
}

static void entries_are_found(void **state) {
    struct buf b, again;
    uint32_t mode;
    const char *data;
    (void)state;
    build(&b);
    assert_non_null(find(&b, "dev/console", &mode, &data));
    assert_int_equal(mode, 020600);
    assert_non_null(find(&b, "newroot", &mode, &data));
    assert_int_equal(mode, 040755);
    assert_non_null(find(&b, "init", &mode, &data));
    assert_int_equal(mode, 0100755);
    assert_memory_equal(data, "hello", 5);
    assert_non_null(find(&b, "dev/fd", &mode, &data));
    assert_memory_equal(data, "/proc/self/fd", 13);
    assert_non_null(find(&b, "TRAILER!!!", &mode, &data));
    build(&again);
    assert_int_equal(b.len, again.len);
    assert_memory_equal(b.data, again.data, b.len);
    buf_done(&again);
    buf_done(&b);
}

static void wrong_use_is_refused(void **state) {
    static const char *const names[] = {"", "/abs", "a//b", "a/../b", ".", "a/"};
    struct buf b;
    struct cpio c;
    (void)state;
    buf_init(&b, 1 << 16);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        cpio_init(&c, append, &b);
        assert_int_equal(cpio_directory(&c, names[i], 0755), -EINVAL);
        assert_int_equal(cpio_finish(&c), -EINVAL); /* sticky */
    }
    cpio_init(&c, append, &b);
    assert_int_equal(cpio_file(&c, "a", 0644, 3), 0);
    assert_int_equal(cpio_data(&c, "toolong", 7), -EINVAL);
    cpio_init(&c, append, &b);
    assert_int_equal(cpio_file(&c, "a", 0644, 3), 0);
    assert_int_equal(cpio_directory(&c, "b", 0755), -EINVAL); /* data is missing */
    cpio_init(&c, append, &b);
    assert_int_equal(cpio_file(&c, "a", 0644, 1ull << 32), -EINVAL);
    buf_done(&b);
    buf_init(&b, 64);
    cpio_init(&c, append, &b);
    assert_int_equal(cpio_directory(&c, "a", 0755), -E2BIG);
    buf_done(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_found),
        cmocka_unit_test(wrong_use_is_refused),
    };
    return cmocka_run_group_tests_name("cpio", tests, NULL, NULL);
}
