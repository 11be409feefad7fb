/* SPDX-License-Identifier: Apache-2.0 */
/* The validator and the request tables: each type and bound, the named field in each error, unknown fields, limits. */
#include "base/json.h"
#include "model/limits.h"
#include "model/requests.h"
#include "unit.h"

static json_t *parse(const char *text) {
    json_t *j = NULL;
    assert_ok(json_parse(text, strlen(text), 1 << 20, &j, &unit_error));
    return j;
}

static void good(const struct field_table *t, const char *text) {
    json_t *j = parse(text);
    assert_ok(validate_body(t, j, &unit_error));
    json_decref(j);
}

static void bad(const struct field_table *t, const char *text, const char *field, const char *says) {
    json_t *j = parse(text);
    assert_fails(validate_body(t, j, &unit_error), SP_E_INVALID);
    assert_string_equal(unit_error.field, field);
    if (!strstr(unit_error.text, says))
        fail_msg("\"%s\" does not say \"%s\"", unit_error.text, says);
    json_decref(j);
}

static const struct field inner[] = {{.name = "n", .type = FIELD_UINT, .required = true, .min = 1, .max = 5}};
static const struct field fields[] = {
    {.name = "text", .type = FIELD_STRING, .min = 2, .max = 4, .pattern = PATTERN_NAME},
    {.name = "word", .type = FIELD_STRING, .min = 1, .max = 8, .choices = "one|two"},
    {.name = "number", .type = FIELD_UINT, .max = 10},
    {.name = "flag", .type = FIELD_BOOL},
    {.name = "maybe", .type = FIELD_STRING, .nullable = true, .max = 4},
    {.name = "inner", .type = FIELD_OBJECT, .fields = inner, .n_fields = 1},
    {.name = "list", .type = FIELD_STRINGS, .entries = 2, .min = 1, .max = 3},
    {.name = "map", .type = FIELD_MAP, .entries = 2, .key_pattern = PATTERN_ENV_KEY, .max = 4, .total = 8},
    {.name = "any", .type = FIELD_JSON, .total = 20},
};
static const struct field_table table = {.fields = fields, .n_fields = ARRAY_SIZE(fields)};

static void test_types(void **state) {
    (void)state;
    good(&table, "{}");
    good(
        &table,
        "{\"text\": \"ab\", \"word\": \"two\", \"number\": 0, \"flag\": false, \"maybe\": null, \"inner\": {\"n\": 5}, "
        "\"list\": [\"a\"], \"map\": {\"A\": \"\"}, \"any\": {\"x\": [1, null]}}");
    bad(&table, "[]", "", "must be an object");
    bad(&table, "{\"text\": 1}", "text", "must be a string");
    bad(&table, "{\"text\": null}", "text", "must not be null");
    bad(&table, "{\"number\": 1.0}", "number", "whole number");
    bad(&table, "{\"number\": true}", "number", "whole number");
    bad(&table, "{\"flag\": 0}", "flag", "true or false");
    bad(&table, "{\"inner\": []}", "inner", "must be an object");
    bad(&table, "{\"list\": {}}", "list", "array of strings");
    bad(&table, "{\"list\": [null]}", "list.0", "must be a string");
    bad(&table, "{\"map\": []}", "map", "object of strings");
    bad(&table, "{\"map\": {\"A\": null}}", "map.A", "must be a string");
    bad(&table, "{\"any\": 1}", "any", "must be an object");
}

static void test_bounds(void **state) {
    (void)state;
    good(&table, "{\"text\": \"abcd\", \"number\": 10}");
    bad(&table, "{\"text\": \"a\"}", "text", "2 to 4 bytes, has 1");
    bad(&table, "{\"text\": \"abcde\"}", "text", "has 5");
    bad(&table, "{\"text\": \"a b\"}", "text", "letters");
    bad(&table, "{\"word\": \"on\"}", "word", "one|two");
    bad(&table, "{\"word\": \"one|two\"}", "word", "one of");
    bad(&table, "{\"number\": 11}", "number", "from 0 to 10, is 11");
    bad(&table, "{\"number\": -1}", "number", "is -1");
    bad(&table, "{\"inner\": {}}", "inner.n", "required");
    bad(&table, "{\"inner\": {\"n\": 6}}", "inner.n", "from 1 to 5");
    bad(&table, "{\"list\": [\"a\", \"b\", \"c\"]}", "list", "at most 2 items");
    bad(&table, "{\"list\": [\"a\", \"abcd\"]}", "list.1", "1 to 3");
    bad(&table, "{\"map\": {\"A\": \"\", \"B\": \"\", \"C\": \"\"}}", "map", "at most 2 entries");
    bad(&table, "{\"map\": {\"1\": \"\"}}", "map.1", "key");
    bad(&table, "{\"map\": {\"AAA\": \"1234\", \"BB\": \"\"}}", "map", "at most 8 bytes");
    bad(&table, "{\"any\": {\"0123456789\": \"0123456789\"}}", "any", "at most 20 bytes");
}

static void test_unknown_fields(void **state) {
    (void)state;
    bad(&table, "{\"txet\": \"ab\"}", "txet", "did you mean text?");
    bad(&table, "{\"inner\": {\"n\": 1, \"m\": 2}}", "inner.m", "no known field");
    bad(&table, "{\"completely_else\": 1}", "completely_else", "is no known field");
    bad(&table, "{\"\": 1}", "", "no known field");
    bad(&table, "{\"\\u0007\": 1}", "\\x07", "no known field"); /* shown escaped */
}

static void test_whole_bodies(void **state) {
    const struct field_table missing = {.fields = inner, .n_fields = 1, .may_be_missing = true};
    const struct field_table some = {.fields = fields, .n_fields = ARRAY_SIZE(fields), .not_empty = true, .total = 10};
    (void)state;
    assert_ok(validate_body(&missing, NULL, &unit_error));
    assert_fails(validate_body(&table, NULL, &unit_error), SP_E_INVALID);
    bad(&some, "{}", "", "at least one field");
    bad(&some, "{\"list\": [\"abc\", \"def\"], \"flag\": true}", "", "at most 10 bytes of text");
}

static void test_patterns(void **state) {
    static const struct {
        enum pattern p;
        const char *text;
        bool fits;
    } rows[] = {
        {PATTERN_NAME, "a", true},
        {PATTERN_NAME, "", false},
        {PATTERN_NAME, "_a", false},
        {PATTERN_NAME, "A.b_c-9", true},
        {PATTERN_NAME, "a\xc3\xa4", false},
        {PATTERN_TEMPLATE_NAME, "Seed", false},
        {PATTERN_ENV_KEY, "_A1", true},
        {PATTERN_ENV_KEY, "1A", false},
        {PATTERN_ABSOLUTE_PATH, "/", true},
        {PATTERN_ABSOLUTE_PATH, "", false},
        {PATTERN_ABSOLUTE_PATH, "a/", false},
        {PATTERN_USER, "1000", true},
        {PATTERN_USER, "root;", false},
        {PATTERN_METADATA_KEY, "a/b.c", true},
        {PATTERN_METADATA_KEY, "a b", false},
        {PATTERN_DIGEST, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", true},
        {PATTERN_DIGEST, "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef", false},
        {PATTERN_NODE_ID, "node-1.x", true},
        {PATTERN_NODE_ID, "a_b", false},
        {PATTERN_ANY, "", true},
        {PATTERN_SANDBOX_ID, "sbx_00000000000000000000000000", true},
        {PATTERN_TENANT_ID, "ten_x", false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (pattern_matches(rows[i].p, rows[i].text) != rows[i].fits)
            fail_msg("row %zu: \"%s\"", i, rows[i].text);
}

static void test_template_references(void **state) {
    struct template_ref r;
    (void)state;
    assert_true(template_ref_parse("seed", &r));
    assert_string_equal(r.name, "seed");
    assert_string_equal(r.tag, "latest");
    assert_string_equal(r.digest, "");
    assert_true(template_ref_parse("a.b:V1", &r));
    assert_string_equal(r.tag, "V1");
    assert_true(template_ref_parse("s@0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", &r));
    assert_string_equal(r.tag, "");
    assert_int_equal(strlen(r.digest), 64);
    static const char *const wrong[] = {"", ":", "@", "a:", "a@", "a:b:c", "a@b", "A", "a/b", "a:b@c", "a b"};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        assert_false(template_ref_parse(wrong[i], &r));
}

static void test_request_tables(void **state) {
    (void)state;
    good(&request_sandbox_create,
         "{\"template\": \"seed:latest\", \"metadata\": {\"a\": \"\"}, \"env\": {\"A\": \"b\"}}");
    good(&request_sandbox_create,
         "{\"snapshot_id\": \"snp_00000000000000000000000000\", \"lifecycle\": {\"max_life_s\": "
         "null, \"checkpoint\": {\"every_s\": 60, \"content\": \"disk\", \"keep_daily\": 7}}}");
    good(&request_snapshot_create, "{\"content\": \"full\"}");
    bad(&request_snapshot_create, "{\"content\": \"memory\"}", "content", "full");
    bad(&request_sandbox_create, "{\"template\": \"seed\", \"lifecycles\": {}}", "lifecycles",
        "did you mean lifecycle");
    bad(&request_sandbox_create, "{\"lifecycle\": {\"checkpoint\": {}}}", "lifecycle.checkpoint.every_s", "required");
    bad(&request_fork, "{\"count\": 101}", "count", "from 1 to 100");
    assert_ok(validate_body(&request_empty, NULL, &unit_error));
    bad(&request_empty, "{\"x\": 1}", "x", "no known");
    good(&request_sandbox_update, "{\"name\": null, \"metadata\": {\"a\": null}}");
    bad(&request_sandbox_update, "{}", "", "at least one");
    good(&request_session_create, "{\"command\": \"sh\", \"pty\": {\"cols\": 1, \"rows\": 4096}}");
    assert_ok(validate_body(&request_token_rotate, NULL, &unit_error));
}

static void test_manifest(void **state) {
    json_t *fine = parse("{\"resources\": {\"vcpus\": 2, \"memory_mib\": 128, \"else\": 1}, \"x\": {}}");
    json_t *wrong = parse("{\"resources\": {\"vcpus\": \"2\"}}"), *odd = parse("{\"resources\": []}");
    (void)state;
    assert_ok(request_check_manifest(fine, &unit_error));
    assert_ok(request_check_manifest(odd, &unit_error));
    assert_fails(request_check_manifest(wrong, &unit_error), SP_E_INVALID);
    assert_string_equal(unit_error.field, "manifest.resources.vcpus");
    json_decref(fine);
    json_decref(wrong);
    json_decref(odd);
}

static void test_limits(void **state) {
    _cleanup_buf_ struct buf out = {0};
    (void)state;
    buf_init(&out, 1 << 20);
    assert_int_equal(limits_print_markdown(&out), 0);
    for (unsigned l = 0; l < LIMIT_COUNT_; l++) {
        const struct limit_row *row = limit_row((enum limit)l);
        assert_true(row->value > 0);
        assert_non_null(strstr(out.data, row->name));
    }
    assert_int_equal(limit_row(LIMIT_env_entries)->value, LIMIT_VALUE(env_entries));
    /* What a session says goes to the guest in one record. */
    assert_true(LIMIT_VALUE(command_total_bytes) + LIMIT_VALUE(cwd_bytes) + LIMIT_VALUE(user_bytes) +
                    8 * (LIMIT_VALUE(args_items) + LIMIT_VALUE(env_entries)) + 512 <
                65536);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),          cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_unknown_fields), cmocka_unit_test(test_whole_bodies),
        cmocka_unit_test(test_patterns),       cmocka_unit_test(test_template_references),
        cmocka_unit_test(test_request_tables), cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
