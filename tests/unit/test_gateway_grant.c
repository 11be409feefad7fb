/* SPDX-License-Identifier: Apache-2.0 */
/* Attach answers, the ATTACH record out of them, their cache; limits of sessions; problem documents of control. */
#include "gateway/grant.h"
#include "gateway/session_table.h"
#include "io/internal_client.h"
#include "unit.h"
#include "wire/record.h"

#define SESSION "ses_00000000000000000000000001"
#define ANSWER                                                                                                         \
    "{\"session_id\":\"" SESSION "\",\"sandbox_id\":\"sbx_00000000000000000000000002\",\"process_id\":"                \
    "\"prc_00000000000000000000000003\",\"node_id\":\"local\",\"command\":\"sh\",\"args\":[\"-c\",\"x\"],"             \
    "\"env\":{\"A\":\"1\"},\"cwd\":\"/tmp\",\"user\":\"u\",\"pty\":{\"cols\":80,\"rows\":24},\"stdin\":true,"          \
    "\"timeout_s\":3,\"on_disconnect\":\"kill\",\"may_start\":true,\"sandbox_state\":\"running\"}"

static json_t *answer_with(const char *key, json_t *value) {
    json_t *answer = NULL;
    assert_ok(json_parse(ANSWER, strlen(ANSWER), 65536, &answer, &unit_error));
    if (key && value)
        json_object_set_new(answer, key, value);
    else if (key)
        json_object_del(answer, key);
    return answer;
}

static struct grant *grant_of(json_t *answer) {
    struct grant *g = NULL;
    assert_ok(grant_parse(answer, SESSION, &g, &unit_error));
    json_decref(answer);
    return g;
}

static void test_attach_record(void **state) {
    const struct cursor from = {{1, 2, 3}};
    struct grant *g = grant_of(answer_with(NULL, NULL));
    struct record_reader reader = {0};
    struct record rec;
    struct buf out;
    struct view in, cursor, arg;
    char text[64];
    (void)state;
    buf_init(&out, 100000);
    assert_ok(grant_put_attach(g, &from, &out, &unit_error));
    in = (struct view){.p = (const uint8_t *)out.data, .len = out.len};
    assert_int_equal(record_next(&reader, &in, &rec), 1);
    assert_int_equal(rec.type, REC_ATTACH);
    assert_int_equal(record_get_string(&rec, TAG_PROCESS_ID, text, sizeof(text)), 1);
    assert_string_equal(text, "prc_00000000000000000000000003");
    assert_int_equal(record_count(&rec, TAG_ARGV), 3);
    cursor = rec.payload;
    assert_true(record_list_next(&cursor, TAG_ENV, &arg) && arg.len == 3 && memcmp(arg.p, "A=1", 3) == 0);
    assert_int_equal(record_get_u64_or(&rec, TAG_PTY_COLS, 0), 80);
    assert_int_equal(record_get_u64_or(&rec, TAG_TIMEOUT_MS, 0), 3000);
    assert_int_equal(record_get_u64_or(&rec, TAG_ON_DISCONNECT, 9), DISCONNECT_KILL);
    assert_int_equal(record_get_u64_or(&rec, TAG_STDERR_FROM, 0), 2);
    record_reader_done(&reader);
    buf_done(&out);
    grant_unref(g);
}

static void test_malformed_answers(void **state) {
    static const char *const ids[] = {"session_id", "sandbox_id", "process_id", "node_id"};
    struct grant *g = NULL;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
        json_t *missing = answer_with(ids[i], NULL), *number = answer_with(ids[i], json_integer(1));
        json_t *path = answer_with(ids[i], json_string("../../etc"));
        assert_fails(grant_parse(missing, SESSION, &g, &unit_error), SP_E_PROTOCOL);
        assert_fails(grant_parse(number, SESSION, &g, &unit_error), SP_E_PROTOCOL);
        if (i < 3)
            assert_fails(grant_parse(path, SESSION, &g, &unit_error), SP_E_PROTOCOL);
        json_decref(missing);
        json_decref(number);
        json_decref(path);
    }
    assert_null(g);
}

static void test_commands_that_do_not_fit(void **state) {
    const struct cursor from = {{0, 0, 0}};
    char *text = calloc(1, 70001);
    struct buf out;
    (void)state;
    memset(text, 'x', 70000);
    buf_init(&out, 200000);
    struct grant *large = grant_of(answer_with("args", json_pack("[s%]", text, (size_t)65600)));
    struct grant *number = grant_of(answer_with("args", json_pack("[i]", 1)));
    struct grant *env = grant_of(answer_with("env", json_pack("{s:i}", "A", 1)));
    struct grant *pty = grant_of(answer_with("pty", json_pack("{s:i}", "cols", 1)));
    assert_fails(grant_put_attach(large, &from, &out, &unit_error), SP_E_TOO_LARGE);
    assert_fails(grant_put_attach(number, &from, &out, &unit_error), SP_E_PROTOCOL);
    assert_fails(grant_put_attach(env, &from, &out, &unit_error), SP_E_PROTOCOL);
    assert_fails(grant_put_attach(pty, &from, &out, &unit_error), SP_E_PROTOCOL);
    assert_int_equal(out.len, 0);
    assert_false(out.failed);
    grant_unref(large);
    grant_unref(number);
    grant_unref(env);
    grant_unref(pty);
    buf_done(&out);
    free(text);
}

static void test_cache(void **state) {
    struct grant_cache *cache = grant_cache_new();
    struct grant *g = grant_of(answer_with(NULL, NULL)), *found;
    struct grant_key key = {.session_id = SESSION, .token = {1, 2, 3}}, other = key;
    (void)state;
    other.token[31] = 9; /* the same slot */
    assert_null(grant_cache_get(cache, &key, 0));
    grant_cache_put(cache, &key, g, 1000);
    found = grant_cache_get(cache, &key, 1000 + GRANT_CACHE_TTL_MS - 1);
    assert_non_null(found);
    assert_null(found->spec);
    assert_string_equal(found->process_id, g->process_id);
    grant_unref(found);
    assert_null(grant_cache_get(cache, &other, 1000));
    assert_null(grant_cache_get(cache, &key, 1000 + GRANT_CACHE_TTL_MS));
    assert_null(grant_cache_get(cache, &key, 1000)); /* gone, not only old */
    grant_cache_put(cache, &key, g, 1000);
    grant_cache_put(cache, &other, g, 1000);
    assert_null(grant_cache_get(cache, &key, 1000));
    grant_unref(g);
    grant_cache_free(cache);
}

static void test_session_limits(void **state) {
    static const unsigned max[SESSION_USES] = {2, 1};
    struct session_table *t = session_table_new(max);
    struct session_entry *a, *b, *c;
    (void)state;
    a = session_enter(t, "one", SESSION_STREAM);
    b = session_enter(t, "one", SESSION_STREAM);
    assert_true(a && a == b);
    assert_null(session_enter(t, "one", SESSION_STREAM));
    c = session_enter(t, "one", SESSION_CALL);
    assert_ptr_equal(a, c);
    assert_null(session_enter(t, "one", SESSION_CALL));
    assert_non_null(session_enter(t, "two", SESSION_CALL));
    assert_int_equal(session_table_sessions(t), 2);
    session_leave(t, a, SESSION_STREAM);
    session_leave(t, a, SESSION_STREAM);
    assert_int_equal(session_table_sessions(t), 2);
    session_leave(t, a, SESSION_CALL);
    assert_int_equal(session_table_sessions(t), 1);
    assert_int_equal(session_table_open(t, SESSION_CALL), 1);
    session_table_free(t);
}

static void test_answers_of_control(void **state) {
    static const struct {
        int status;
        const char *body, *code;
        enum sp_code error;
    } rows[] = {
        {200, "{\"a\":1}", NULL, SP_OK},
        {200, "[]", "protocol", SP_E_PROTOCOL},
        {204, "", "protocol", SP_E_PROTOCOL},
        {401, "{\"code\":\"unauthorized\",\"field\":\"Authorization\",\"detail\":\"no\"}", "unauthorized",
         SP_E_UNAUTHORIZED},
        {409, "{\"code\":\"sandbox_not_running\",\"detail\":\"x\"}", "sandbox_not_running", SP_E_CONFLICT},
        {410, "gone", "gone", SP_E_GONE},
        {418, "{\"code\":\"Evil Code\\n\"}", "invalid", SP_E_INVALID},
        {503, "{}", "no_capacity", SP_E_NO_CAPACITY},
        {599, "", "unavailable", SP_E_UNAVAILABLE},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct internal_answer answer;
        json_t *body = NULL;
        internal_answer_parse(rows[i].status, rows[i].body, strlen(rows[i].body), &body, &answer);
        assert_int_equal(answer.error.code, rows[i].error);
        assert_true((body != NULL) == (rows[i].code == NULL));
        if (rows[i].code)
            assert_string_equal(answer.code, rows[i].code);
        if (rows[i].code)
            assert_string_not_equal(answer.error.text, "");
        json_decref(body);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attach_record),
        cmocka_unit_test(test_malformed_answers),
        cmocka_unit_test(test_commands_that_do_not_fit),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_session_limits),
        cmocka_unit_test(test_answers_of_control),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
