/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: SHA-256 as published (FIPS 180-4 examples), for memory and for files of every size around the chunk. */
#include "base/cleanup.h"
#include "base/digest.h"
#include "unit.h"

static const char of_empty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
static const char of_abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

static void memory_vectors(void **state) {
    char hex[SHA256_HEX_SIZE];
    (void)state;
    sha256_memory_hex("", 0, hex);
    assert_string_equal(hex, of_empty);
    sha256_memory_hex(NULL, 0, hex);
    assert_string_equal(hex, of_empty);
    sha256_memory_hex("abc", 3, hex);
    assert_string_equal(hex, of_abc);
}

static void file_equals_memory(void **state) {
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 200000};
    _cleanup_free_ char *data = calloc(1, 200000);
    char from_file[SHA256_HEX_SIZE], from_memory[SHA256_HEX_SIZE];
    (void)state;
    assert_non_null(data);
    for (size_t i = 0; i < 200000; i++)
        data[i] = (char)(i * 31);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        _cleanup_close_ int fd = open(unit_path("f"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_ok(fd_write_all(fd, data, sizes[i], &unit_error));
        assert_ok(sha256_fd_hex(fd, from_file, &unit_error));
        sha256_memory_hex(data, sizes[i], from_memory);
        assert_string_equal(from_file, from_memory);
        assert_int_equal(lseek(fd, 0, SEEK_CUR), (off_t)sizes[i]); /* the position stays */
    }
}

static void unreadable_is_an_error(void **state) {
    char hex[SHA256_HEX_SIZE] = "untouched";
    (void)state;
    assert_fails(sha256_fd_hex(-1, hex, &unit_error), SP_E_IO);
    assert_string_equal(hex, "untouched");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_vectors),
        cmocka_unit_test_setup_teardown(file_equals_memory, unit_temp_dir, unit_temp_dir_remove),
        cmocka_unit_test(unreadable_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
