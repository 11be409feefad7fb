/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: JSON from outside is bounded in size and depth, has no duplicate keys, and errors name the field. */
#include "base/json.h"
#include "unit.h"

static json_t *parse(const char *text) {
    json_t *j = NULL;
    assert_ok(json_parse(text, strlen(text), 65536, &j, &unit_error));
    return j;
}

static int try_parse(const char *text, json_t **ret) {
    return json_parse(text, strlen(text), 65536, ret, &unit_error);
}

static void parses_and_prints(void **state) {
    _cleanup_json_ json_t *j = parse(" {\"b\": [1, true, null], \"a\": \"\\u00e4\"} ");
    _cleanup_free_ char *s = json_print(j);
    (void)state;
    assert_string_equal(s, "{\"b\":[1,true,null],\"a\":\"\xc3\xa4\"}");
}

static void refuses_what_is_not_one_value(void **state) {
    static const char *const refused[] = {"",           " ",       "{",
                                          "{}{}",       "{} x",    "{\"a\":1,\"a\":2}",
                                          "[1,]",       "{'a':1}", "[\"\\u0000\"]",
                                          "[\"\xff\"]", "[1e999]", "[99999999999999999999]",
                                          "// c\n{}",   "nul",     "[01]"};
    json_t *j = NULL;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        assert_fails(try_parse(refused[i], &j), SP_E_INVALID);
    assert_null(j);
}

static void size_limit_is_exact(void **state) {
    json_t *j = NULL;
    (void)state;
    assert_ok(json_parse("[12]", 4, 4, &j, &unit_error));
    json_decref(j);
    j = NULL;
    assert_fails(json_parse("[12]", 4, 3, &j, &unit_error), SP_E_TOO_LARGE);
    assert_null(j);
}

static void depth_limit_is_exact(void **state) {
    char text[80] = "";
    json_t *j = NULL;
    (void)state;
    memset(text, '[', 32);
    memset(text + 32, ']', 32);
    assert_ok(try_parse(text, &j));
    json_decref(j);
    memset(text, '[', 33);
    memset(text + 33, ']', 33);
    assert_fails(try_parse(text, &j), SP_E_INVALID);
    j = NULL; /* brackets inside strings are no nesting */
    assert_ok(try_parse("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[\", \"\\\\\"]", &j));
    json_decref(j);
}

static void strings_are_bounded(void **state) {
    _cleanup_json_ json_t *j = parse("{\"s\":\"abc\",\"n\":1,\"z\":null}");
    const char *s = "untouched";
    (void)state;
    assert_ok(json_get_string(j, "", "s", 3, 3, &s, &unit_error));
    assert_string_equal(s, "abc");
    assert_fails(json_get_string(j, "", "s", 4, 9, &s, &unit_error), SP_E_INVALID);
    assert_fails(json_get_string(j, "top", "s", 0, 2, &s, &unit_error), SP_E_INVALID);
    assert_string_equal(unit_error.field, "top.s");
    assert_string_equal(unit_error.text, "top.s must have 0 to 2 bytes, has 3");
    assert_fails(json_get_string(j, "", "n", 0, 9, &s, &unit_error), SP_E_INVALID);
    assert_fails(json_get_string(j, "", "missing", 0, 9, &s, &unit_error), SP_E_INVALID);
    assert_fails(json_get_string(j, "", "z", 0, 9, &s, &unit_error), SP_E_INVALID);
    assert_string_equal(s, "abc");
    assert_ok(json_get_opt_string(j, "", "z", 0, 9, "fallback", &s, &unit_error));
    assert_string_equal(s, "fallback");
    assert_ok(json_get_opt_string(j, "", "missing", 0, 9, NULL, &s, &unit_error));
    assert_null(s);
    assert_fails(json_get_opt_string(j, "", "n", 0, 9, NULL, &s, &unit_error), SP_E_INVALID);
}

static void numbers_are_bounded(void **state) {
    _cleanup_json_ json_t *j =
        parse("{\"n\":5,\"neg\":-1,\"real\":5.0,\"s\":\"5\",\"big\":9223372036854775807,\"t\":true}");
    uint64_t n = 77;
    (void)state;
    assert_ok(json_get_u64(j, "", "n", 5, 5, &n, &unit_error));
    assert_true(n == 5);
    assert_ok(json_get_u64(j, "", "big", 0, UINT64_MAX, &n, &unit_error));
    assert_true(n == INT64_MAX);
    n = 77;
    assert_fails(json_get_u64(j, "", "n", 6, 9, &n, &unit_error), SP_E_INVALID);
    assert_fails(json_get_u64(j, "", "n", 0, 4, &n, &unit_error), SP_E_INVALID);
    assert_fails(json_get_u64(j, "", "neg", 0, UINT64_MAX, &n, &unit_error), SP_E_INVALID);
    assert_fails(json_get_u64(j, "", "real", 0, 9, &n, &unit_error), SP_E_INVALID);
    assert_fails(json_get_u64(j, "", "s", 0, 9, &n, &unit_error), SP_E_INVALID);
    assert_fails(json_get_u64(j, "", "t", 0, 9, &n, &unit_error), SP_E_INVALID);
    assert_fails(json_get_u64(j, "", "missing", 0, 9, &n, &unit_error), SP_E_INVALID);
    assert_fails(json_get_opt_u64(j, "", "s", 0, 9, 3, &n, &unit_error), SP_E_INVALID);
    assert_true(n == 77);
    assert_ok(json_get_opt_u64(j, "", "missing", 5, 9, 3, &n, &unit_error));
    assert_true(n == 3);
}

static void other_types(void **state) {
    _cleanup_json_ json_t *j = parse("{\"t\":true,\"f\":false,\"o\":{},\"a\":[1,2],\"n\":0}");
    json_t *v = NULL;
    bool b = false;
    (void)state;
    assert_ok(json_get_opt_bool(j, "", "t", false, &b, &unit_error));
    assert_true(b);
    assert_ok(json_get_opt_bool(j, "", "f", true, &b, &unit_error));
    assert_false(b);
    assert_ok(json_get_opt_bool(j, "", "missing", true, &b, &unit_error));
    assert_true(b);
    assert_fails(json_get_opt_bool(j, "", "n", true, &b, &unit_error), SP_E_INVALID);
    assert_ok(json_get_opt_object(j, "", "o", &v, &unit_error));
    assert_true(json_is_object(v));
    assert_ok(json_get_opt_object(j, "", "missing", &v, &unit_error));
    assert_null(v);
    assert_fails(json_get_opt_object(j, "", "a", &v, &unit_error), SP_E_INVALID);
    assert_ok(json_get_opt_array(j, "", "a", 2, &v, &unit_error));
    assert_int_equal(json_array_size(v), 2);
    assert_fails(json_get_opt_array(j, "", "a", 1, &v, &unit_error), SP_E_INVALID);
    assert_fails(json_get_opt_array(j, "", "o", 9, &v, &unit_error), SP_E_INVALID);
    assert_ok(json_get_opt_array(j, "", "missing", 1, &v, &unit_error));
    assert_null(v);
}

static void a_value_that_is_no_object(void **state) {
    static const char *const names[] = {"a", NULL};
    _cleanup_json_ json_t *j = parse("[1]");
    const char *s;
    uint64_t n;
    bool b;
    json_t *v;
    (void)state;
    assert_fails(json_get_opt_string(j, "resources", "x", 0, 9, "", &s, &unit_error), SP_E_INVALID);
    assert_string_equal(unit_error.field, "resources");
    assert_string_equal(unit_error.text, "resources must be an object");
    assert_fails(json_get_opt_u64(j, "", "x", 0, 9, 0, &n, &unit_error), SP_E_INVALID);
    assert_string_equal(unit_error.text, "the body must be an object");
    assert_fails(json_get_opt_bool(j, "", "x", 0, &b, &unit_error), SP_E_INVALID);
    assert_fails(json_get_opt_object(j, "", "x", &v, &unit_error), SP_E_INVALID);
    assert_fails(json_get_opt_array(NULL, "", "x", 1, &v, &unit_error), SP_E_INVALID);
    assert_fails(json_check_keys(j, "", names, &unit_error), SP_E_INVALID);
}

static void unknown_keys_name_the_nearest(void **state) {
    static const char *const names[] = {"vcpus", "memory_mib", NULL};
    _cleanup_json_ json_t *good = parse("{\"vcpus\":1}"), *typo = parse("{\"vcpu\":1}"),
                          *hostile = parse("{\"\\u001b[31m\\u00ff\":1}");
    char long_key[400];
    _cleanup_json_ json_t *long_one = json_object();
    (void)state;
    assert_ok(json_check_keys(good, "", names, &unit_error));
    assert_fails(json_check_keys(typo, "resources", names, &unit_error), SP_E_INVALID);
    assert_string_equal(unit_error.field, "resources.vcpu");
    assert_non_null(strstr(unit_error.text, "did you mean vcpus?"));
    assert_fails(json_check_keys(hostile, "", names, &unit_error), SP_E_INVALID);
    assert_null(strchr(unit_error.text, '\x1b'));
    memset(long_key, 'k', sizeof(long_key) - 1);
    long_key[sizeof(long_key) - 1] = '\0';
    assert_int_equal(json_object_set_new(long_one, long_key, json_true()), 0);
    assert_fails(json_check_keys(long_one, "", names, &unit_error), SP_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses_and_prints),
        cmocka_unit_test(refuses_what_is_not_one_value),
        cmocka_unit_test(size_limit_is_exact),
        cmocka_unit_test(depth_limit_is_exact),
        cmocka_unit_test(strings_are_bounded),
        cmocka_unit_test(numbers_are_bounded),
        cmocka_unit_test(other_types),
        cmocka_unit_test(a_value_that_is_no_object),
        cmocka_unit_test(unknown_keys_name_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
