/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: every code has a name and a status, and an error's text is always one line of valid UTF-8 that fits. */
#include "base/json.h"
#include "unit.h"
#include <errno.h>

static void codes_are_complete(void **state) {
    (void)state;
    for (int c = SP_OK + 1; c < SP_E_COUNT_; c++) {
        enum sp_code code = (enum sp_code)c, back;
        int http = sp_code_http_status(code);
        assert_non_null(sp_code_name(code));
        assert_true(http >= 400 && http <= 599);
        assert_in_range(sp_code_exit_status(code), 1, 125);
        assert_true(sp_code_from_name(sp_code_name(code), &back));
        assert_int_equal(back, code);
    }
    assert_true(sp_code_is_retryable(SP_E_QUOTA));
    assert_false(sp_code_is_retryable(SP_E_INVALID));
    assert_int_not_equal(sp_code_exit_status(SP_OK), 0);
}

static void unknown_codes_are_internal(void **state) {
    enum sp_code code = SP_E_GUEST;
    (void)state;
    assert_false(sp_code_from_name("no_such", &code));
    assert_int_equal(code, SP_E_GUEST);
    assert_int_equal(sp_code_http_status((enum sp_code)999), 500);
    assert_string_equal(sp_code_name((enum sp_code) - 1), "internal");
}

static void setters_fill_everything(void **state) {
    struct sp_error e;
    (void)state;
    assert_int_equal(sp_error_set(&e, SP_E_CONFLICT, "is %s", "busy"), -SP_E_CONFLICT);
    assert_string_equal(e.text, "is busy");
    assert_string_equal(e.op, "");
    assert_int_equal(sp_error_field(&e, SP_E_INVALID, "resources.vcpus", "too many"), -SP_E_INVALID);
    assert_string_equal(e.field, "resources.vcpus");
    assert_int_equal(sp_error_errno(&e, ENOSPC, "write", "disk"), -SP_E_NO_SPACE);
    assert_int_equal(e.err_no, ENOSPC);
    assert_string_equal(e.op, "write");
    assert_string_equal(e.field, "");
    assert_int_equal(sp_error_errno(&e, -ENOENT, "open", "x"), -SP_E_NOT_FOUND);
    assert_int_equal(e.err_no, ENOENT);
    assert_int_equal(sp_error_errno(&e, ETIMEDOUT, "read", "x"), -SP_E_TIMEOUT);
    assert_int_equal(sp_error_errno(&e, EDQUOT, "write", "x"), -SP_E_NO_SPACE);
    assert_int_equal(sp_error_errno(&e, EPERM, "open", "x"), -SP_E_IO);
}

static void null_error_is_allowed(void **state) {
    (void)state;
    assert_int_equal(sp_error_set(NULL, SP_E_IO, "x"), -SP_E_IO);
    assert_int_equal(sp_error_field(NULL, SP_E_INVALID, "f", "x"), -SP_E_INVALID);
    assert_int_equal(sp_error_errno(NULL, ENOENT, "op", "x"), -SP_E_NOT_FOUND);
    assert_true(sp_error_wrap(NULL, "x") < 0);
}

static void wrap_adds_context(void **state) {
    struct sp_error e;
    char long_text[400];
    (void)state;
    (void)sp_error_errno(&e, ENOSPC, "write", "disk.img");
    assert_int_equal(sp_error_wrap(&e, "create %s", "sbx_1"), -SP_E_NO_SPACE);
    assert_string_equal(e.text, "create sbx_1: disk.img");
    assert_int_equal(e.err_no, ENOSPC);
    assert_string_equal(e.op, "write");
    memset(long_text, 'a', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    (void)sp_error_wrap(&e, "%s", long_text);
    assert_int_equal(strlen(e.text), sizeof(e.text) - 1);
    assert_string_equal(e.text + sizeof(e.text) - 3, ": ");
}

static void argument_may_be_the_error_itself(void **state) {
    struct sp_error e;
    (void)state;
    (void)sp_error_field(&e, SP_E_INVALID, "name", "inner");
    (void)sp_error_field(&e, SP_E_CONFLICT, e.field, "outer(%s)", e.text);
    assert_string_equal(e.text, "outer(inner)");
    assert_string_equal(e.field, "name");
}

static void text_is_cleaned(void **state) {
    struct sp_error e;
    char long_text[400] = "";
    (void)state;
    (void)sp_error_set(&e, SP_E_IO, "a\nb\x1b[31m\x7f");
    assert_string_equal(e.text, "a b?[31m?");
    (void)sp_error_set(&e, SP_E_IO, "ok \xc3\xa4");
    assert_string_equal(e.text, "ok \xc3\xa4");
    (void)sp_error_set(&e, SP_E_IO, "bad \xff\xc3");
    assert_string_equal(e.text, "bad ??");
    for (size_t pad = 0; pad < 4; pad++) { /* a sequence cut at each of its bytes goes away whole */
        memset(long_text, 'x', 252 + pad);
        memcpy(long_text + 252 + pad, "\xf0\x9f\x98\x80\xf0\x9f\x98\x80", 9);
        (void)sp_error_set(&e, SP_E_IO, "%s", long_text);
        assert_true(text_is_utf8(e.text, strlen(e.text)));
        assert_null(strchr(e.text, '?'));
        assert_true(strlen(e.text) >= 251);
    }
}

static void formats_for_people(void **state) {
    struct sp_error e;
    char s[400], small[8];
    (void)state;
    (void)sp_error_errno(&e, ENOENT, "open", "/x");
    assert_string_equal(sp_error_format(&e, s, sizeof(s)), "open: /x (No such file or directory)");
    assert_string_equal(sp_error_format(&e, small, sizeof(small)), "open: /");
    (void)sp_error_set(&e, SP_E_GONE, "deleted");
    assert_string_equal(sp_error_format(&e, s, sizeof(s)), "deleted");
    (void)sp_error_format(&e, small, 0);
}

static void crosses_processes_as_json(void **state) {
    struct sp_error e, back;
    _cleanup_json_ json_t *j = NULL, *newer = NULL, *wrong = NULL;
    (void)state;
    (void)sp_error_errno(&e, ENOSPC, "write", "disk \xff");
    (void)text_copy(e.field, sizeof(e.field), "f");
    j = sp_error_encode(&e);
    assert_ok(sp_error_decode(j, &back, &unit_error));
    assert_memory_equal(&e.code, &back.code, sizeof(e.code));
    assert_int_equal(back.err_no, ENOSPC);
    assert_string_equal(back.op, e.op);
    assert_string_equal(back.field, e.field);
    assert_string_equal(back.text, e.text);
    newer = json_pack("{s:s}", "code", "code_of_a_newer_version");
    assert_ok(sp_error_decode(newer, &back, &unit_error));
    assert_int_equal(back.code, SP_E_INTERNAL);
    wrong = json_pack("{s:i}", "code", 4);
    assert_fails(sp_error_decode(wrong, &back, &unit_error), SP_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_complete),        cmocka_unit_test(unknown_codes_are_internal),
        cmocka_unit_test(setters_fill_everything),   cmocka_unit_test(null_error_is_allowed),
        cmocka_unit_test(wrap_adds_context),         cmocka_unit_test(argument_may_be_the_error_itself),
        cmocka_unit_test(text_is_cleaned),           cmocka_unit_test(formats_for_people),
        cmocka_unit_test(crosses_processes_as_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
