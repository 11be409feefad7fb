/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: what tables show of times, sizes and timings is short and right, and nonsense from a server is shown as none. */
#include "base/clock.h"
#include "cli/view.h"
#include "unit.h"
#include <string.h>

static void test_seconds(void **state) {
    static const struct {
        uint64_t s;
        const char *text;
    } rows[] = {{0, "0s"},       {59, "59s"},       {60, "1m"},       {3599, "59m"},
                {3600, "1h00m"}, {86399, "23h59m"}, {86400, "1d00h"}, {8 * 86400 + 7200, "8d02h"}};
    char text[VIEW_SIZE];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(view_seconds(text, rows[i].s), rows[i].text);
    assert_true(strlen(view_seconds(text, UINT64_MAX)) > 0);
}

static void test_bytes(void **state) {
    static const struct {
        uint64_t n;
        const char *text;
    } rows[] = {{0, "0"},
                {1, "1K"},
                {1023, "1K"},
                {800 << 10, "800K"},
                {35u << 20, "35M"},
                {1536u << 20, "1.5G"},
                {20ull << 30, "20G"},
                {5ull << 40, "5.0T"}};
    char text[VIEW_SIZE];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(view_bytes(text, rows[i].n), rows[i].text);
    assert_true(strlen(view_bytes(text, UINT64_MAX)) > 0);
}

static void test_time(void **state) {
    static const char *const bad[] = {"", "yesterday", "2026-01-31", "2026-01-31T12:00:00+01:00",
                                      "1901-01-01T00:00:00Z"};
    uint64_t s = 0;
    (void)state;
    assert_true(view_time("1970-01-02T00:00:01Z", &s));
    assert_int_equal(s, 86401);
    assert_true(view_time("2026-01-31T12:00:00.123Z", &s));
    assert_int_equal(s, 1769860800);
    assert_false(view_time(NULL, &s));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(view_time(bad[i], &s));
}

static void test_fields(void **state) {
    json_t *o = json_pack("{s:s, s:s, s:i, s:s, s:i}", "ok", "1970-01-01T00:00:00Z", "bad", "x", "n", 2048, "text", "y",
                          "less", -1);
    (void)state;
    view_set_age(o, "age", "ok");
    assert_true(strchr(json_string_value(json_object_get(o, "age")), 'd'));
    view_set_age(o, "age", "bad");
    assert_string_equal(json_string_value(json_object_get(o, "age")), "-");
    view_set_age(o, "age", "missing");
    assert_string_equal(json_string_value(json_object_get(o, "age")), "-");
    view_set_bytes(o, "bytes", "n");
    assert_string_equal(json_string_value(json_object_get(o, "bytes")), "2K");
    view_set_bytes(o, "bytes", "text");
    assert_string_equal(json_string_value(json_object_get(o, "bytes")), "-");
    view_set_bytes(o, "bytes", "less");
    assert_string_equal(json_string_value(json_object_get(o, "bytes")), "-");
    json_decref(o);
}

static void test_timings(void **state) {
    json_t *o = json_pack("{s:{s:f, s:i, s:s}}", "timings", "stop_ms", 1.26, "control_total_ms", 21, "odd", "x");
    json_t *many = json_object(), *none = json_object();
    char key[64];
    (void)state;
    view_set_timings(o, "t");
    assert_string_equal(json_string_value(json_object_get(o, "t")), "control_total 21.0, stop 1.3");
    json_object_set_new(o, "timings", many);
    for (int i = 0; i < 100; i++) { /* as much as fits, whole entries */
        (void)snprintf(key, sizeof key, "a_step_with_a_long_name_%d_ms", i);
        json_object_set_new(many, key, json_real(i));
    }
    view_set_timings(o, "t");
    assert_true(strlen(json_string_value(json_object_get(o, "t"))) < 190);
    view_set_timings(none, "t");
    assert_null(json_object_get(none, "t"));
    json_decref(o);
    json_decref(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seconds), cmocka_unit_test(test_bytes),   cmocka_unit_test(test_time),
        cmocka_unit_test(test_fields),  cmocka_unit_test(test_timings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
