/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: the hash depends on the bytes alone: how much of a file is holes makes no difference, one changed byte does. */
#include "base/cleanup.h"
#include "host/piece_hash.h"
#include "host/stat.h"
#include "unit.h"

static int make(const char *name) {
    int fd = open(unit_path(name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void hash(int fd, char dst[SHA256_HEX_SIZE]) {
    assert_ok(piece_hash_fd(fd, dst, &unit_error));
}

/* Over the digests of the pieces, made the plain way. */
static void expect(int fd, const unsigned char *data, size_t len) {
    char have[SHA256_HEX_SIZE], want[SHA256_HEX_SIZE];
    _cleanup_free_ unsigned char *rows = calloc(len / PIECE_HASH_PIECE + 2, 40);
    size_t n = 0;
    for (size_t at = 0; at < len; at += PIECE_HASH_PIECE) {
        size_t piece = len - at < PIECE_HASH_PIECE ? len - at : PIECE_HASH_PIECE, zeros = 0;
        while (zeros < piece && data[at + zeros] == 0)
            zeros++;
        if (zeros == piece)
            continue;
        for (size_t i = 0; i < 8; i++)
            rows[40 * n + i] = (unsigned char)(at / PIECE_HASH_PIECE >> (8 * i));
        sha256_memory(data + at, piece, rows + 40 * n++ + 8);
    }
    sha256_memory_hex(rows, 40 * n, want);
    hash(fd, have);
    assert_string_equal(have, want);
}

static void test_sizes(void **state) {
    static const size_t sizes[] = {
        0, 1, 4095, 4096, PIECE_HASH_PIECE - 1, PIECE_HASH_PIECE, PIECE_HASH_PIECE + 1, 3 * PIECE_HASH_PIECE + 17};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        _cleanup_close_ int fd = make("plain");
        _cleanup_free_ unsigned char *data = malloc(sizes[i] + 1);
        for (size_t at = 0; at < sizes[i]; at++)
            data[at] = (unsigned char)(at * 31 + at / 4096);
        assert_ok(fd_write_all(fd, data, sizes[i], &unit_error));
        expect(fd, data, sizes[i]);
    }
}

static void test_empty_is_sha256_of_nothing(void **state) {
    _cleanup_close_ int fd = make("empty");
    char have[SHA256_HEX_SIZE];
    (void)state;
    hash(fd, have);
    assert_string_equal(have, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void test_holes_count_as_zeros(void **state) {
    const size_t size = 9 * PIECE_HASH_PIECE + 100;
    _cleanup_close_ int fd = make("sparse");
    _cleanup_free_ unsigned char *data = calloc(1, size);
    static const size_t writes[] = {2 * PIECE_HASH_PIECE + 5000, 5 * PIECE_HASH_PIECE, 9 * PIECE_HASH_PIECE + 50};
    (void)state;
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    expect(fd, data, size);
    for (size_t i = 0; i < ARRAY_SIZE(writes); i++) {
        data[writes[i]] = 7;
        assert_int_equal(pwrite(fd, data + writes[i], 1, (off_t)writes[i]), 1);
        expect(fd, data, size);
    }
}

static void test_meminfo(void **state) {
    uint64_t mib = 0;
    (void)state;
    assert_ok(host_stat_parse_meminfo("MemTotal: 1 kB\nMemAvailable:   2048000 kB\n", &mib, &unit_error));
    assert_int_equal(mib, 2000);
    static const char *const bad[] = {"", "MemAvailable:", "MemAvailable: x kB", "XMemAvailable: 5 kB",
                                      "MemAvailable: 99999999999999999999999999 kB"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_fails(host_stat_parse_meminfo(bad[i], &mib, &unit_error), SP_E_INTERNAL);
}

static void test_stat_of_a_directory(void **state) {
    _cleanup_close_ int fd = open(unit_path("."), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct host_stat st;
    (void)state;
    assert_ok(host_stat_get(fd, &st, &unit_error));
    assert_true(st.store_free_mib <= st.store_total_mib && st.memory_available_mib > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_empty_is_sha256_of_nothing),
        cmocka_unit_test(test_holes_count_as_zeros),
        cmocka_unit_test(test_meminfo),
        cmocka_unit_test(test_stat_of_a_directory),
    };
    return cmocka_run_group_tests(tests, unit_temp_dir, unit_temp_dir_remove);
}
