/* SPDX-License-Identifier: Apache-2.0 */
/* What may be asked on control.sock: by whom, with what, and nothing else. */
#include "unit.h"
#include "vm/request.h"

#define IDENTITY "\"identity\":{\"hostname\":\"h\",\"machine_id\":\"0123456789abcdef0123456789abcdef\"}"
#define ID "\"id\":\"sbx_00000000000000000000000000\""

static int parse(const char *text, size_t n_fds, bool is_root, struct request *r) {
    memset(&unit_error, 0, sizeof(unit_error));
    return request_parse(text, strlen(text), n_fds, is_root, r, &unit_error);
}

static void test_accepts(void **state) {
    static const struct {
        const char *text;
        size_t n_fds;
        bool root;
        enum request_kind kind;
    } good[] = {
        {"{\"request\":\"ping\"}", 0, false, REQUEST_PING},
        {"{\"request\":\"console\"}", 0, false, REQUEST_CONSOLE},
        {"{\"request\":\"stop\"}", 0, false, REQUEST_STOP},
        {"{\"request\":\"pause\",\"seq\":0}", 0, false, REQUEST_PAUSE},
        {"{\"request\":\"resume\",\"seq\":9007199254740991}", 0, false, REQUEST_RESUME},
        {"{\"request\":\"identify\",\"seq\":1," ID ",\"generation\":2," IDENTITY "}", 0, false, REQUEST_IDENTIFY},
        {"{\"request\":\"load\",\"seq\":1,\"config\":{},\"warm\":true,\"snapshot\":\"ab_C-9\"}", 3, true, REQUEST_LOAD},
        {"{\"request\":\"load\",\"seq\":1," ID ",\"config\":{},\"snapshot\":\"a\"}", 3, true, REQUEST_LOAD},
        {"{\"request\":\"snapshot\",\"seq\":1,\"then\":\"stop\",\"snapshot\":\"a\"}", 2, true, REQUEST_SNAPSHOT},
        {"{\"request\":\"snapshot_disk\",\"seq\":1,\"snapshot\":\"a\"}", 0, true, REQUEST_SNAPSHOT},
        {"{\"request\":\"snapshot_stop\",\"seq\":1}", 0, true, REQUEST_SNAPSHOT_STOP},
        {"{\"request\":\"snapshot_go\",\"seq\":1}", 0, true, REQUEST_SNAPSHOT_GO},
        {"{\"request\":\"snapshot_committed\",\"seq\":1,\"snapshot\":\"a\"}", 0, true, REQUEST_SNAPSHOT_COMMITTED},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        struct request r;
        if (parse(good[i].text, good[i].n_fds, good[i].root, &r) < 0 || r.kind != good[i].kind)
            fail_msg("%s: %s", good[i].text, unit_error.text);
        request_done(&r);
    }
}

static void test_refuses(void **state) {
    static const struct {
        const char *text;
        size_t n_fds;
        bool root;
    } bad[] = {
        {"", 0, true},
        {"[]", 0, true},
        {"{\"request\":\"nonsense\"}", 0, true},
        {"{\"request\":\"ping\",\"seq\":1}", 0, true},
        {"{\"request\":\"ping\"}", 1, true}, /* with a descriptor */
        {"{\"request\":\"pause\"}", 0, true},
        {"{\"request\":\"pause\",\"seq\":-1}", 0, true},
        {"{\"request\":\"pause\",\"seq\":9007199254740992}", 0, true},
        {"{\"request\":\"pause\",\"seq\":1,\"seq\":1}", 0, true},
        {"{\"request\":\"pause\",\"seq\":1,\"force\":true}", 0, true},
        {"{\"request\":\"load\",\"seq\":1,\"config\":{},\"snapshot\":\"a\"}", 3, false}, /* not root */
        {"{\"request\":\"load\",\"seq\":1,\"config\":{},\"snapshot\":\"a\"}", 2, true},
        {"{\"request\":\"load\",\"seq\":1,\"config\":[],\"snapshot\":\"a\"}", 3, true},
        {"{\"request\":\"load\",\"seq\":1,\"snapshot\":\"a\"}", 3, true},
        {"{\"request\":\"load\",\"seq\":1,\"id\":\"spr_00000000000000000000000000\",\"config\":{},\"snapshot\":\"a\"}",
         3, true},
        {"{\"request\":\"snapshot\",\"seq\":1,\"then\":\"stop\",\"snapshot\":\"a\"}", 2, false},
        {"{\"request\":\"snapshot\",\"seq\":1,\"then\":\"stop\",\"snapshot\":\"a\"}", 0, true},
        {"{\"request\":\"snapshot\",\"seq\":1,\"then\":\"fork\",\"snapshot\":\"a\"}", 2, true},
        {"{\"request\":\"snapshot\",\"seq\":1,\"then\":\"stop\",\"snapshot\":\"../a\"}", 2, true},
        {"{\"request\":\"snapshot\",\"seq\":1,\"then\":\"stop\",\"snapshot\":\"\"}", 2, true},
        {"{\"request\":\"snapshot_disk\",\"seq\":1,\"snapshot\":\"a\"}", 0, false},
        {"{\"request\":\"snapshot_disk\",\"seq\":1,\"snapshot\":\"a\"}", 2, true},
        {"{\"request\":\"snapshot_disk\",\"seq\":1,\"then\":\"stop\",\"snapshot\":\"a\"}", 0, true},
        {"{\"request\":\"snapshot_go\",\"seq\":1}", 0, false},
        {"{\"request\":\"snapshot_committed\",\"seq\":1,\"snapshot\":\"a\"}", 0, false},
        {"{\"request\":\"identify\",\"seq\":1,\"id\":\"x\",\"generation\":2," IDENTITY "}", 0, false},
        {"{\"request\":\"identify\",\"seq\":1," ID ",\"generation\":2}", 0, false},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct request r;
        if (parse(bad[i].text, bad[i].n_fds, bad[i].root, &r) >= 0)
            fail_msg("%s was accepted", bad[i].text);
        assert_int_equal(r.kind, REQUEST_NONE);
        assert_null(r.body);
    }
}

static void test_values(void **state) {
    struct request r;
    (void)state;
    assert_ok(parse("{\"request\":\"identify\",\"seq\":7," ID ",\"generation\":2,\"session_retention_ms\":5," IDENTITY
                    "}",
                    0, false, &r));
    assert_int_equal(r.seq, 7);
    assert_int_equal(r.generation, 2);
    assert_int_equal(r.session_retention_ms, 5);
    assert_string_equal(r.id, "sbx_00000000000000000000000000");
    assert_string_equal(json_string_value(json_object_get(r.body, "hostname")), "h");
    request_done(&r);
    assert_ok(parse("{\"request\":\"snapshot\",\"seq\":1,\"then\":\"resume\",\"snapshot\":\"snp_1\"}", 2, true, &r));
    assert_false(r.stop);
    assert_string_equal(r.snapshot, "snp_1");
    request_done(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
