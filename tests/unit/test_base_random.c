/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: ids have one form, differ, and are checked strictly; secrets compare over their whole length. */
#include "base/random.h"
#include "unit.h"

static void ids_are_valid_and_differ(void **state) {
    char a[ID_SIZE], b[ID_SIZE];
    (void)state;
    for (int i = 0; i < 1000; i++) {
        id_generate(a, "sbx");
        id_generate(b, "sbx");
        assert_int_equal(strlen(a), 30);
        assert_true(id_is_valid(a, "sbx"));
        assert_string_not_equal(a, b);
    }
    id_generate(a, "abcd");
    assert_int_equal(strlen(a), ID_SIZE - 1);
}

static void bad_ids_are_refused(void **state) {
    static const char *const refused[] = {
        "",
        "sbx",
        "sbx_",
        "op_01234567890123456789012345",
        "sbx_0123456789012345678901234",   /* one digit short */
        "sbx_012345678901234567890123456", /* one too many */
        "sbx_81234567890123456789012345",  /* over 128 bits */
        "sbx_0123456789012345678901234i",  /* not in the alphabet */
        "sbx_0123456789012345678901234A",
        "sbx_0123456789012345678901234/",
        "SBX_01234567890123456789012345",
    };
    (void)state;
    assert_true(id_is_valid("sbx_01234567890123456789012345", "sbx"));
    assert_true(id_is_valid("sbx_7zzzzzzzzzzzzzzzzzzzzzzzzz", "sbx"));
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        assert_false(id_is_valid(refused[i], "sbx"));
}

static void bytes_fill_everything(void **state) {
    uint8_t block[4096] = {0};
    unsigned zeros = 0;
    (void)state;
    random_bytes(block, sizeof(block));
    random_bytes(block, 0);
    for (size_t i = 0; i < sizeof(block); i++)
        zeros += block[i] == 0;
    assert_true(zeros < 100);
}

static void secrets_compare(void **state) {
    (void)state;
    assert_true(secret_equal("abc", "abc", 3));
    assert_true(secret_equal("a", "b", 0));
    assert_false(secret_equal("abc", "abd", 3));
    assert_false(secret_equal("xbc", "abc", 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_valid_and_differ),
        cmocka_unit_test(bad_ids_are_refused),
        cmocka_unit_test(bytes_fill_everything),
        cmocka_unit_test(secrets_compare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
