/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: settings come from file, environment and flags in that order, derived ones follow, bad ones are named. */
#include "model/settings.h"
#include "unit.h"

static int load(struct settings *s, int *ret_next, const char *const *args, int argc) {
    static char copies[16][256];
    char *argv[17] = {NULL};
    assert_true(argc <= 16);
    for (int i = 0; i < argc; i++) {
        assert_true(text_copy(copies[i], sizeof(copies[i]), args[i]));
        argv[i] = copies[i];
    }
    return settings_load(s, argc, argv, "usage: test", ret_next, &unit_error);
}
#define LOAD(s, next, ...)                                                                                             \
    load(s, next, (const char *const[]){"test", __VA_ARGS__},                                                          \
         (int)ARRAY_SIZE(((const char *const[]){"test", __VA_ARGS__})))

static int clean_environment(void **state) {
    for (size_t i = 0; i < settings_rows_count; i++) {
        char name[80] = "SPACE_";
        for (size_t j = 0; settings_rows[i].key[j]; j++) {
            char c = settings_rows[i].key[j];
            name[6 + j] = (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
            name[7 + j] = '\0';
        }
        (void)unsetenv(name);
    }
    (void)setenv("SPACE_CONFIG", "/dev/null", 1);
    return unit_temp_dir(state);
}

static void every_key_is_documented(void **state) {
    (void)state;
    for (size_t i = 0; i < settings_rows_count; i++) {
        size_t len = strlen(settings_rows[i].doc);
        assert_true(len > 10 && settings_rows[i].doc[len - 1] == '.');
    }
}

static void defaults_and_derived(void **state) {
    struct settings s;
    int next = -1;
    (void)state;
    assert_ok(LOAD(&s, &next, "serve"));
    assert_int_equal(next, 1);
    assert_string_equal(s.state_dir, "/var/lib/space");
    assert_string_equal(s.gateway_url, "http://127.0.0.1:7072");
    assert_string_equal(s.internal_urls, "http://127.0.0.1:7071");
    assert_string_equal(s.internal_token_file, "/var/lib/space/etc/internal_token");
    assert_string_equal(s.kernel_dir, "/var/lib/space/kernels");
    assert_true(s.uid_base == 720000 && s.max_sandboxes == 256);
    assert_ok(LOAD(&s, &next, "--state-dir", "/x", "--gateway-listen=[::1]:99", "--kernel-dir=/k"));
    assert_int_equal(next, 5);
    assert_string_equal(s.kernel_dir, "/k");
    assert_string_equal(s.gateway_url, "http://[::1]:99");
}

static void later_sources_win(void **state) {
    static const char text[] = "node_id = from-file\nlog_level = warn\nqemu = /q\n";
    struct settings s;
    char flag[256];
    int next;
    (void)state;
    assert_ok(file_replace(AT_FDCWD, unit_path("c"), text, sizeof(text) - 1, 0600, &unit_error));
    (void)setenv("SPACE_NODE_ID", "from-environment", 1);
    (void)setenv("SPACE_LOG_LEVEL", "error", 1);
    assert_true(text_printf(flag, sizeof(flag), "--config=%s", unit_path("c")));
    assert_ok(LOAD(&s, &next, "--log-level", "debug", flag, "--max-sandboxes=3", "positional", "--config"));
    assert_int_equal(next, 5);
    assert_string_equal(s.qemu, "/q");
    assert_string_equal(s.node_id, "from-environment");
    assert_string_equal(s.log_level, "debug");
    assert_true(s.max_sandboxes == 3);
    (void)setenv("SPACE_CONFIG", unit_path("c"), 1);
    assert_ok(LOAD(&s, &next, "--max-sandboxes=4"));
    assert_string_equal(s.qemu, "/q");
    assert_ok(LOAD(&s, &next, "--config", "/dev/null"));
    assert_int_equal(next, 3);
    assert_string_equal(s.qemu, "/usr/bin/qemu-system-x86_64");
}

static void bad_settings_are_named(void **state) {
    static const char *const refused[][2] = {
        {"--state-dir=relative", "state_dir"},
        {"--state-dir=/a/../b", "state_dir"},
        {"--state-dir=/a//b", "state_dir"},
        {"--state-dir=/a/", "state_dir"},
        {"--state-dir=/12345678901234567890123456789012345678901234567x", "state_dir"},
        {"--control-listen=127.0.0.1", "control_listen"},
        {"--control-listen=127.0.0.1:0", "control_listen"},
        {"--control-listen=127.0.0.1:65536", "control_listen"},
        {"--internal-listen=::1:80", "internal_listen"},
        {"--gateway-listen=:7072", "gateway_listen"},
        {"--node-id=a/b", "node_id"},
        {"--node-id=.", "node_id"},
        {"--uid-base=0", "uid_base"},
        {"--accelerator=fast", "accelerator"},
        {"--config", "config"},
    };
    struct settings s;
    int next = -1;
    (void)state;
    (void)text_copy(s.node_id, sizeof(s.node_id), "untouched");
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        assert_fails(LOAD(&s, &next, refused[i][0]), SP_E_INVALID);
        assert_string_equal(unit_error.field, refused[i][1]);
    }
    assert_fails(LOAD(&s, &next, "--config=/no/such/file"), SP_E_NOT_FOUND);
    assert_int_equal(next, -1);
    assert_string_equal(s.node_id, "untouched");
}

/* What `space up` writes for its daemons reads back the same. */
static void values_round_trip(void **state) {
    struct settings s, back;
    struct buf out;
    char flag[256];
    int next;
    (void)state;
    buf_init(&out, 65536);
    assert_ok(LOAD(&s, &next, "--state-dir=/srv/space", "--max-sandboxes=7"));
    assert_ok(config_print_values(&s, settings_rows, settings_rows_count, &out));
    assert_ok(file_replace(AT_FDCWD, unit_path("c"), out.data, out.len, 0600, &unit_error));
    assert_true(text_printf(flag, sizeof(flag), "--config=%s", unit_path("c")));
    assert_ok(LOAD(&back, &next, flag));
    assert_string_equal(back.state_dir, s.state_dir);
    assert_string_equal(back.gateway_url, s.gateway_url);
    assert_true(back.max_sandboxes == 7);
    buf_done(&out);
}

#define CLEAN(f) cmocka_unit_test_setup_teardown(f, clean_environment, unit_temp_dir_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        CLEAN(every_key_is_documented), CLEAN(defaults_and_derived), CLEAN(later_sources_win),
        CLEAN(bad_settings_are_named),  CLEAN(values_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
