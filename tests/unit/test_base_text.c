/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: text helpers accept exactly what they say, at every limit, and never write past their destination. */
#include "unit.h"

static void numbers_are_strict(void **state) {
    static const char *const refused[] = {
        "", "-1", "+1", " 1", "1 ", "0x1", "1e3", "18446744073709551616", "99999999999999999999999", "1.0", "\xd9\xa1"};
    uint64_t n = 77;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        assert_false(text_to_u64(refused[i], 0, UINT64_MAX, &n));
    assert_true(n == 77);
    assert_true(text_to_u64("18446744073709551615", 0, UINT64_MAX, &n) && n == UINT64_MAX);
    assert_true(text_to_u64("007", 7, 7, &n) && n == 7);
    assert_false(text_to_u64("6", 7, 9, &n));
    assert_false(text_to_u64("10", 7, 9, &n));
    assert_true(text_to_u64("9", 7, 9, &n) && n == 9);
}

static void copies_fit_or_fail(void **state) {
    char d[4] = "zzz";
    (void)state;
    assert_true(text_copy(d, sizeof(d), "abc"));
    assert_string_equal(d, "abc");
    assert_false(text_copy(d, sizeof(d), "abcd"));
    assert_string_equal(d, "");
    assert_false(text_copy(d, 0, ""));
    assert_true(text_printf(d, sizeof(d), "%d", 123));
    assert_string_equal(d, "123");
    assert_false(text_printf(d, sizeof(d), "%d", 1234));
    assert_string_equal(d, "");
    assert_false(text_printf(d, 0, "%d", 1));
}

static void prefix(void **state) {
    (void)state;
    assert_true(text_starts_with("sbx_1", "sbx_"));
    assert_true(text_starts_with("a", ""));
    assert_false(text_starts_with("sbx", "sbx_"));
}

static void utf8_is_checked_to_the_letter(void **state) {
    static const char *const good[] = {"",
                                       "a",
                                       "\xc2\x80",
                                       "\xdf\xbf",
                                       "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "\xef\xbf\xbf",
                                       "\xf0\x90\x80\x80",
                                       "\xf4\x8f\xbf\xbf",
                                       "a\xc3\xa4z"};
    static const char *const wrong[] = {"\x80",
                                        "\xc0\x80",
                                        "\xc1\xbf",
                                        "\xc2",
                                        "\xc2z",
                                        "\xe0\x9f\xbf",
                                        "\xed\xa0\x80",
                                        "\xe2\x82",
                                        "\xf0\x8f\xbf\xbf",
                                        "\xf4\x90\x80\x80",
                                        "\xf5\x80\x80\x80",
                                        "\xff",
                                        "\xf0\x90\x80",
                                        "\xf0\x90\x80z"};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        assert_true(text_is_utf8(good[i], strlen(good[i])));
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        assert_false(text_is_utf8(wrong[i], strlen(wrong[i])));
    assert_true(text_is_utf8("a\0b", 3));
}

static void escapes_for_logs(void **state) {
    char d[64];
    (void)state;
    assert_string_equal(text_escape(d, sizeof(d), "a\\b\n\xff\0c", 7), "a\\\\b\\x0a\\xff\\x00c");
    assert_string_equal(text_escape(d, sizeof(d), "", 0), "");
    for (size_t size = 1; size < 20; size++) { /* cut at every place: never over the end, never half an escape */
        memset(d, 'Z', sizeof(d));
        (void)text_escape(d, size, "ab\n\ncdefghijklmnopq", 19);
        assert_true(strlen(d) < size);
        assert_true(text_is_utf8(d, strlen(d)));
        assert_int_equal(d[size], 'Z');
        if (size >= 4)
            assert_string_equal(d + strlen(d) - 3, "…");
    }
    assert_string_equal(text_escape(d, 8, "abcdefg", 7), "abcdefg");
    assert_string_equal(text_escape(d, 8, "abcdefgh", 8), "abcd…");
}

static void hex_round_trips(void **state) {
    char s[9];
    uint8_t raw[4] = {9, 9, 9, 9};
    (void)state;
    text_hex(s, "\x00\x7f\xab\xff", 4);
    assert_string_equal(s, "007fabff");
    assert_true(text_unhex(raw, 4, "007FABff"));
    assert_memory_equal(raw, "\x00\x7f\xab\xff", 4);
    assert_false(text_unhex(raw, 4, "007fabf"));
    assert_false(text_unhex(raw, 4, "007fabff0"));
    assert_false(text_unhex(raw, 4, "007fabfg"));
    assert_memory_equal(raw, "\x00\x7f\xab\xff", 4);
    assert_true(text_unhex(raw, 0, ""));
    assert_false(text_unhex(raw, SIZE_MAX, "00"));
}

/* RFC 4648 section 10. */
static void base64_vectors(void **state) {
    static const char *const rows[][2] = {{"", ""},
                                          {"f", "Zg=="},
                                          {"fo", "Zm8="},
                                          {"foo", "Zm9v"},
                                          {"foob", "Zm9vYg=="},
                                          {"fooba", "Zm9vYmE="},
                                          {"foobar", "Zm9vYmFy"},
                                          {"\xff\xfe\xfd", "//79"}};
    char d[16];
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        size_t len = strlen(rows[i][0]);
        assert_int_equal(text_base64(d, rows[i][0], len), text_base64_len(len));
        assert_string_equal(d, rows[i][1]);
    }
    assert_true(text_base64_len(SIZE_MAX / 2) > SIZE_MAX / 2);
}

static void base64_decodes_strictly(void **state) {
    static const char *const refused[] = {"Z",    "Zg",       "Zg=",   "Zg===", "=",    "====",
                                          "Z===", "Zg==Zg==", "Zm 8=", "Zm8\n", "Zm-_", "Z=g="};
    uint8_t raw[6] = {0};
    size_t len = 99;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        assert_false(text_unbase64(raw, sizeof(raw), refused[i], strlen(refused[i]), &len));
    assert_int_equal(len, 99);
    assert_true(text_unbase64(raw, 6, "Zm9vYmFy", 8, &len) && len == 6);
    assert_memory_equal(raw, "foobar", 6);
    assert_false(text_unbase64(raw, 5, "Zm9vYmFy", 8, &len)); /* no room */
    assert_true(text_unbase64(raw, 1, "Zg==", 4, &len) && len == 1);
    assert_true(text_unbase64(raw, 0, "", 0, &len) && len == 0);
}

static void nearest_name(void **state) {
    static const char *const names[] = {"memory_mib", "disk_mib", "vcpus"};
    char far[80];
    (void)state;
    assert_int_equal(text_distance("kitten", "sitting"), 3);
    assert_int_equal(text_distance("", "abc"), 3);
    assert_int_equal(text_distance("abc", "abc"), 0);
    assert_string_equal(text_nearest("memroy_mib", names, 3), "memory_mib");
    assert_string_equal(text_nearest("vcpu", names, 3), "vcpus");
    assert_null(text_nearest("something", names, 3));
    assert_null(text_nearest("x", NULL, 0));
    memset(far, 'a', 79);
    far[79] = '\0';
    assert_true(text_distance(far, far) > 64);
    assert_null(text_nearest(far, names, 3));
}

static void wipes(void **state) {
    char s[8] = "secret!";
    static const char zero[8];
    (void)state;
    text_wipe(s, sizeof(s));
    assert_memory_equal(s, zero, sizeof(s));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_strict),
        cmocka_unit_test(copies_fit_or_fail),
        cmocka_unit_test(prefix),
        cmocka_unit_test(utf8_is_checked_to_the_letter),
        cmocka_unit_test(escapes_for_logs),
        cmocka_unit_test(hex_round_trips),
        cmocka_unit_test(base64_vectors),
        cmocka_unit_test(nearest_name),
        cmocka_unit_test(wipes),
        cmocka_unit_test(base64_decodes_strictly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
