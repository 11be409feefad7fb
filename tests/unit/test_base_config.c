/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: one table feeds file, environment, flags, help and docs; every bad value and unknown key is an error that
 * says where and what was meant. */
#include "base/config.h"
#include "unit.h"

struct demo {
    char name[9];
    uint64_t size;
    bool fast;
    char mode[32];
};
#define ROW(field) .key = #field, .offset = offsetof(struct demo, field), .size = sizeof(((struct demo *)0)->field)
static const struct config_row rows[] = {
    {ROW(name), .type = CONFIG_STRING, .fallback = "anon", .min = 1, .max = 8, .doc = "Name shown to people."},
    {ROW(size), .type = CONFIG_U64, .fallback = "10", .min = 5, .max = 20, .doc = "Size in MiB."},
    {ROW(fast), .type = CONFIG_BOOL, .fallback = "false", .doc = "Whether to hurry, which is | not | advised."},
    {ROW(mode), .type = CONFIG_ENUM, .fallback = "auto", .choices = "auto|kvm|tcg", .doc = "How."},
};
#define N ARRAY_SIZE(rows)

static struct demo fresh(void) {
    struct demo d;
    memset(&d, 0xa5, sizeof(d));
    config_defaults(&d, rows, N);
    return d;
}

static void defaults(void **state) {
    struct demo d = fresh();
    (void)state;
    assert_string_equal(d.name, "anon");
    assert_true(d.size == 10);
    assert_false(d.fast);
    assert_string_equal(d.mode, "auto");
}

static void every_limit(void **state) {
    static const char *const refused[][2] = {{"name", ""},     {"name", "123456789"}, {"name", "a\nb"},
                                             {"name", "\xff"}, {"size", "4"},         {"size", "21"},
                                             {"size", ""},     {"size", "1x"},        {"fast", "maybe"},
                                             {"fast", ""},     {"mode", "kv"},        {"mode", "kvmm"},
                                             {"mode", ""},     {"mode", "auto|kvm"}};
    static const char *const accepted[][2] = {{"name", "1"},   {"name", "12345678"}, {"size", "5"},  {"size", "20"},
                                              {"fast", "yes"}, {"fast", "0"},        {"mode", "tcg"}};
    struct demo d = fresh();
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        assert_fails(config_set(&d, rows, N, refused[i][0], refused[i][1], "test", &unit_error), SP_E_INVALID);
        assert_string_equal(unit_error.field, refused[i][0]);
    }
    assert_string_equal(d.name, "anon"); /* untouched */
    for (size_t i = 0; i < ARRAY_SIZE(accepted); i++)
        assert_ok(config_set(&d, rows, N, accepted[i][0], accepted[i][1], "test", &unit_error));
    assert_string_equal(d.name, "12345678");
}

static void text_with_comments(void **state) {
    struct demo d = fresh();
    (void)state;
    assert_ok(
        config_load_text(&d, rows, N, "# comment\n\n  name =  a b = c \r\n\tsize=7\nfast = true", "f", &unit_error));
    assert_string_equal(d.name, "a b = c");
    assert_true(d.size == 7 && d.fast);
    assert_ok(config_load_text(&d, rows, N, "", "f", &unit_error));
}

static void text_errors_say_where(void **state) {
    struct demo d = fresh();
    char long_line[5001];
    (void)state;
    assert_fails(config_load_text(&d, rows, N, "name = a\nsise = 7\n", "space.conf", &unit_error), SP_E_INVALID);
    assert_string_equal(unit_error.text, "space.conf:2: unknown key sise; did you mean size?");
    assert_fails(config_load_text(&d, rows, N, "just words", "f", &unit_error), SP_E_INVALID);
    assert_fails(config_load_text(&d, rows, N, "size = 7\nsize = 8", "f", &unit_error), SP_E_INVALID);
    assert_non_null(strstr(unit_error.text, "twice"));
    assert_fails(config_load_text(&d, rows, N, "= 7", "f", &unit_error), SP_E_INVALID);
    memset(long_line, 'x', 5000);
    long_line[5000] = '\0';
    assert_fails(config_load_text(&d, rows, N, long_line, "f", &unit_error), SP_E_INVALID);
    long_line[4000] = '\0';
    assert_fails(config_load_text(&d, rows, N, long_line, long_line, &unit_error), SP_E_INVALID);
}

static void environment(void **state) {
    static const char *const good[] = {"SPACE_SIZE=9", "PATH=/bin", "SPACE_MODE=kvm", "SPACE_UNRELATED_THING=1",
                                       "SPACE_",       "SPACE_=",   "SPACE_NAME",     NULL};
    static const char *const bad_value[] = {"SPACE_SIZE=99", NULL};
    static const char *const typo[] = {"SPACE_SIZEE=9", NULL};
    struct demo d = fresh();
    (void)state;
    assert_ok(config_load_environment(&d, rows, N, good, &unit_error));
    assert_true(d.size == 9);
    assert_string_equal(d.mode, "kvm");
    assert_fails(config_load_environment(&d, rows, N, bad_value, &unit_error), SP_E_INVALID);
    assert_fails(config_load_environment(&d, rows, N, typo, &unit_error), SP_E_INVALID);
    assert_non_null(strstr(unit_error.text, "size"));
}

static int flags(struct demo *d, int *ret_next, int argc, const char *const *args) {
    char copies[8][32], *argv[9] = {NULL};
    assert_true(argc <= 8);
    for (int i = 0; i < argc; i++) {
        assert_true(text_copy(copies[i], sizeof(copies[i]), args[i]));
        argv[i] = copies[i];
    }
    return config_load_flags(d, rows, N, argc, argv, ret_next, &unit_error);
}
#define FLAGS(d, next, ...)                                                                                            \
    flags(d, next, (int)ARRAY_SIZE(((const char *const[]){"prog", __VA_ARGS__})),                                      \
          (const char *const[]){"prog", __VA_ARGS__})

static void flags_in_both_forms(void **state) {
    struct demo d = fresh();
    int next = -1;
    (void)state;
    assert_ok(FLAGS(&d, &next, "--size", "8", "--name=x=y", "run", "--fast"));
    assert_int_equal(next, 4);
    assert_true(d.size == 8 && !d.fast);
    assert_string_equal(d.name, "x=y");
    assert_ok(FLAGS(&d, &next, "--", "--size"));
    assert_int_equal(next, 1);
    assert_ok(FLAGS(&d, &next, "-", "x"));
    assert_int_equal(next, 1);
    assert_ok(FLAGS(&d, &next, "--size", "--mode=tcg") < 0 ? 0 : -1); /* a value is taken as it is, and is bad */
    next = -1;
    assert_fails(FLAGS(&d, &next, "--size"), SP_E_INVALID);
    assert_fails(FLAGS(&d, &next, "--sise", "8"), SP_E_INVALID);
    assert_non_null(strstr(unit_error.text, "did you mean size?"));
    assert_fails(FLAGS(&d, &next, "-s", "8"), SP_E_INVALID);
    assert_fails(FLAGS(&d, &next, "--=8"), SP_E_INVALID);
    assert_int_equal(next, -1);
}

static void prints_and_loads_back(void **state) {
    struct demo d = fresh(), back = fresh();
    struct buf out;
    (void)state;
    buf_init(&out, 4096);
    assert_ok(config_set(&d, rows, N, "name", "a = #b", "t", &unit_error));
    assert_ok(config_set(&d, rows, N, "fast", "on", "t", &unit_error));
    assert_ok(config_print_values(&d, rows, N, &out));
    assert_string_equal(out.data, "name = a = #b\nsize = 10\nfast = true\nmode = auto\n");
    assert_ok(config_load_text(&back, rows, N, out.data, "f", &unit_error));
    assert_string_equal(back.name, "a = #b");
    assert_true(back.fast);
    buf_done(&out);
}

static void help_and_docs(void **state) {
    struct buf out, tiny;
    (void)state;
    buf_init(&out, 4096);
    assert_int_equal(config_print_help(rows, N, &out), 0);
    assert_non_null(strstr(out.data, "  --size  5..20  (default 10)\n      Size in MiB.\n"));
    for (char *line = out.data, *end; (end = strchr(line, '\n')); line = end + 1)
        assert_true(end - line <= 100);
    buf_reset(&out);
    assert_int_equal(config_print_markdown(rows, N, &out), 0);
    assert_non_null(strstr(out.data, "| `mode` | auto\\|kvm\\|tcg | `auto` | How. |\n"));
    assert_non_null(strstr(out.data, "which is \\| not \\| advised."));
    buf_done(&out);
    buf_init(&tiny, 10);
    assert_int_equal(config_print_help(rows, N, &tiny), -SP_E_TOO_LARGE);
    buf_done(&tiny);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(every_limit),
        cmocka_unit_test(text_with_comments),
        cmocka_unit_test(text_errors_say_where),
        cmocka_unit_test(environment),
        cmocka_unit_test(flags_in_both_forms),
        cmocka_unit_test(prints_and_loads_back),
        cmocka_unit_test(help_and_docs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
