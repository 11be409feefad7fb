/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: every log line is one JSON object, whatever is logged; floods are cut and the number dropped is said. */
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "unit.h"
#include <errno.h>

static int real_stderr = -1, capture = -1;

static int begin_capture(void **state) {
    (void)state;
    if (unit_temp_dir(state) < 0)
        return -1;
    capture = open(unit_path("log"), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    real_stderr = dup(STDERR_FILENO);
    return capture < 0 || dup2(capture, STDERR_FILENO) < 0 ? -1 : 0;
}

static int end_capture(void **state) {
    (void)dup2(real_stderr, STDERR_FILENO);
    real_stderr = close_fd(real_stderr);
    capture = close_fd(capture);
    return unit_temp_dir_remove(state);
}

/* The lines so far, as a JSON array; empties the log. */
static json_t *take_lines(void) {
    _cleanup_free_ char *text = NULL;
    json_t *lines = json_array();
    size_t len;
    assert_ok(file_read(AT_FDCWD, unit_path("log"), 1 << 20, &text, &len, &unit_error));
    assert_int_equal(ftruncate(capture, 0), 0);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *j = NULL;
        assert_ok(json_parse(line, (size_t)(end - line), 16384, &j, &unit_error));
        assert_int_equal(json_array_append_new(lines, j), 0);
    }
    assert_true(len == 0 || text[len - 1] == '\n');
    return lines;
}

static const char *field(const json_t *lines, size_t i, const char *key) {
    const char *s = json_string_value(json_object_get(json_array_get(lines, i), key));
    return s ? s : "(none)";
}

static void a_line_has_its_fields(void **state) {
    _cleanup_json_ json_t *lines = NULL;
    (void)state;
    log_init("space-test", LOG_L_INFO);
    errno = EBUSY;
    log_event(LOG_L_INFO, "sandbox_started", "sandbox_id", "sbx_1", "note", "q\"\\\n\x1b\xc3\xa4\xff", "none",
              (const char *)NULL, NULL);
    assert_int_equal(errno, EBUSY);
    log_event(LOG_L_DEBUG, "not_shown", NULL);
    lines = take_lines();
    assert_int_equal(json_array_size(lines), 1);
    assert_string_equal(field(lines, 0, "program"), "space-test");
    assert_string_equal(field(lines, 0, "level"), "info");
    assert_string_equal(field(lines, 0, "event"), "sandbox_started");
    assert_string_equal(field(lines, 0, "sandbox_id"), "sbx_1");
    assert_string_equal(field(lines, 0, "note"), "q\"\\\n\x1b\\xc3\\xa4\\xff");
    assert_string_equal(field(lines, 0, "none"), "");
    assert_int_equal(strlen(field(lines, 0, "time")), 24);
}

static void an_error_brings_its_parts(void **state) {
    _cleanup_json_ json_t *lines = NULL;
    struct sp_error e;
    (void)state;
    (void)sp_error_errno(&e, ENOSPC, "write", "disk.img");
    log_error(LOG_L_ERROR, "create_failed", &e, "sandbox_id", "sbx_2", NULL);
    (void)sp_error_field(&e, SP_E_INVALID, "name", "too long");
    log_error(LOG_L_WARN, "refused", &e, NULL);
    lines = take_lines();
    assert_string_equal(field(lines, 0, "sandbox_id"), "sbx_2");
    assert_string_equal(field(lines, 0, "code"), "no_space");
    assert_string_equal(field(lines, 0, "op"), "write");
    assert_string_equal(field(lines, 0, "text"), "disk.img");
    assert_string_equal(field(lines, 0, "errno"), "No space left on device");
    assert_string_equal(field(lines, 1, "field"), "name");
    assert_string_equal(field(lines, 1, "errno"), "(none)");
}

static void levels(void **state) {
    _cleanup_json_ json_t *lines = NULL;
    enum log_level level = LOG_L_INFO;
    (void)state;
    assert_true(log_level_from_name("debug", &level) && level == LOG_L_DEBUG);
    assert_true(log_level_from_name("error", &level) && level == LOG_L_ERROR);
    assert_false(log_level_from_name("loud", &level));
    log_set_level(LOG_L_ERROR);
    log_event(LOG_L_WARN, "w", NULL);
    log_set_level(LOG_L_DEBUG);
    log_event(LOG_L_DEBUG, "d", NULL);
    log_set_level(LOG_L_INFO);
    lines = take_lines();
    assert_int_equal(json_array_size(lines), 1);
    assert_string_equal(field(lines, 0, "event"), "d");
}

static void long_lines_are_cut_and_say_so(void **state) {
    _cleanup_json_ json_t *lines = NULL;
    char value[6001];
    (void)state;
    for (size_t i = 0; i < 6000; i += 3)
        memcpy(value + i, "\xe2\x82\xac", 3); /* cut between characters */
    value[6000] = '\0';
    log_event(LOG_L_INFO, "long_value", "v", value, NULL);
    memset(value, '\x01', 6000); /* every byte becomes six */
    log_event(LOG_L_INFO, "many_long", "a", value, "b", value, "c", value, "d", value, "e", value, "f", "short", NULL);
    lines = take_lines();
    assert_int_equal(json_array_size(lines), 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(json_is_true(json_object_get(json_array_get(lines, i), "truncated")));
    assert_true(strlen(field(lines, 0, "v")) > 1000);
    assert_string_equal(field(lines, 1, "f"), "short");
}

static void floods_are_counted(void **state) {
    size_t shown = 0, dropped = 0;
    (void)state;
    for (int i = 0; i < 500; i++)
        log_event(LOG_L_INFO, "flood", NULL);
    (void)usleep(1100 * 1000);
    log_event(LOG_L_INFO, "flood", NULL);
    log_event(LOG_L_INFO, "other", NULL);
    {
        _cleanup_json_ json_t *lines = take_lines();
        for (size_t i = 0; i < json_array_size(lines); i++) {
            json_t *count = json_object_get(json_array_get(lines, i), "dropped");
            shown += strcmp(field(lines, i, "event"), "flood") == 0;
            dropped += (size_t)json_integer_value(count);
        }
        assert_string_equal(field(lines, json_array_size(lines) - 1, "event"), "other");
    }
    assert_in_range(shown, 51, 151); /* 50 in each second touched, and the last */
    assert_int_equal(shown + dropped, 501);
}

/* More kinds of events than the table has slots: the rest share one, nothing breaks. */
static void a_full_rate_table_still_logs(void **state) {
    _cleanup_json_ json_t *lines = NULL;
    char too_long[100];
    (void)state;
    for (int i = 0; i < 300; i++) {
        char event[32];
        assert_true(text_printf(event, sizeof(event), "event_%d", i));
        log_event(LOG_L_INFO, event, NULL);
    }
    memset(too_long, 'e', sizeof(too_long) - 1);
    too_long[sizeof(too_long) - 1] = '\0';
    log_event(LOG_L_INFO, too_long, NULL);
    lines = take_lines();
    assert_in_range(json_array_size(lines), 255, 301);
}

#define CAPTURED(f) cmocka_unit_test_setup_teardown(f, begin_capture, end_capture)

int main(void) {
    const struct CMUnitTest tests[] = {
        CAPTURED(a_line_has_its_fields),
        CAPTURED(an_error_brings_its_parts),
        CAPTURED(levels),
        CAPTURED(long_lines_are_cut_and_say_so),
        CAPTURED(floods_are_counted),
        CAPTURED(a_full_rate_table_still_logs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
