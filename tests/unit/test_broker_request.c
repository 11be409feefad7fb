/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: a parsed request holds the limits of its table row; anything else is refused and names the field. */
#include "base/cleanup.h"
#include "broker/request.h"
#include "unit.h"

#define SBX "sbx_0123456789abcdefghjkmnpqrs"
#define TPB "tpb_0123456789abcdefghjkmnpqrs"
#define SPR "spr_0123456789abcdefghjkmnpqrs"
#define SNP "snp_0123456789abcdefghjkmnpqrs"
#define HEX32 "0123456789abcdef0123456789abcdef"
#define HEX64 HEX32 HEX32
#define CLONE                                                                                                          \
    "\"request\":\"vm_start\",\"id\":\"" SBX "\",\"mode\":\"clone\",\"template\":\"" HEX64 "\",\"snapshot\":\"" HEX32  \
    "\",\"kernel\":\"lean\",\"accelerator\":\"kvm\",\"vcpus\":2,\"memory_mib\":256"

static int parse(const char *text, struct request *ret) {
    return request_parse(text, strlen(text), ret, &unit_error);
}

static void bad(const char *text, const char *field) {
    struct request request;
    memset(&request, 0xff, sizeof(request));
    assert_true(parse(text, &request) < 0);
    assert_null(request.config);
    assert_null(request.known);
    if (field)
        assert_string_equal(unit_error.field, field);
}

static void test_start(void **state) {
    struct request r;
    (void)state;
    assert_ok(parse("{" CLONE ",\"config\":{\"a\":[1]},\"seq\":7}", &r));
    assert_int_equal(r.type, REQUEST_VM_START);
    assert_true(r.has_seq && r.seq == 7);
    assert_string_equal(r.id, SBX);
    assert_string_equal(r.template, HEX64);
    assert_string_equal(r.snapshot, HEX32);
    assert_int_equal(r.mode, MODE_CLONE);
    assert_int_equal(r.kernel, KERNEL_LEAN);
    assert_int_equal(r.accelerator, ACCELERATOR_KVM);
    assert_true(r.vcpus == 2 && r.memory_mib == 256);
    assert_non_null(r.config);
    request_done(&r);
    assert_null(r.config);
    bad("{" CLONE "}", "config");
    bad("{" CLONE ",\"config\":[]}", "config");
    bad("{" CLONE ",\"config\":{},\"x\":1}", "x");
}

static void test_mode_decides_about_id_and_snapshot(void **state) {
    struct request r;
    (void)state;
#define REST                                                                                                           \
    ",\"template\":\"" HEX64                                                                                           \
    "\",\"kernel\":\"stock\",\"accelerator\":\"tcg\",\"vcpus\":1,\"memory_mib\":64,\"config\":{}}"
#define START "{\"request\":\"vm_start\","
    assert_ok(parse(START "\"id\":\"" TPB "\",\"mode\":\"template_boot\"" REST, &r));
    assert_string_equal(r.snapshot, "");
    request_done(&r);
    bad(START "\"id\":\"" SBX "\",\"mode\":\"template_boot\"" REST, "id");
    bad(START "\"id\":\"" TPB "\",\"mode\":\"clone\",\"snapshot\":\"" HEX32 "\"" REST, "id");
    bad(START "\"id\":\"" SBX "\",\"mode\":\"clone\"" REST, "snapshot");
    bad(START "\"id\":\"" TPB "\",\"mode\":\"template_boot\",\"snapshot\":\"" HEX32 "\"" REST, "snapshot");
    bad(START "\"id\":\"" SPR "\",\"mode\":\"blank\"" REST, "template");
    assert_ok(parse(START "\"id\":\"" SBX "\",\"mode\":\"boot\",\"snapshot\":\"" SNP "\"" REST, &r));
    assert_int_equal(r.mode, MODE_BOOT);
    request_done(&r);
    bad(START "\"id\":\"" SBX "\",\"mode\":\"boot\"" REST, "snapshot");
    bad(START "\"id\":\"" TPB "\",\"mode\":\"boot\",\"snapshot\":\"" SNP "\"" REST, "id");
#define BARE ",\"kernel\":\"stock\",\"accelerator\":\"tcg\",\"vcpus\":1,\"memory_mib\":64,\"config\":{}}"
    assert_ok(parse(START "\"id\":\"" SPR "\",\"mode\":\"blank\"" BARE, &r));
    assert_true(r.mode == MODE_BLANK && !r.template[0] && !r.snapshot[0]);
    request_done(&r);
    bad(START "\"id\":\"" SPR "\",\"mode\":\"blank\",\"snapshot\":\"" SNP "\"" BARE, "snapshot");
    bad(START "\"id\":\"" SBX "\",\"mode\":\"blank\"" BARE, "id");
    bad(START "\"id\":\"" SBX "\",\"mode\":\"clone\",\"snapshot\":\"" SNP "\"" BARE, "template");
    assert_ok(parse(START "\"id\":\"" SBX "\",\"mode\":\"clone\",\"snapshot\":\"" SNP "\"" REST, &r));
    assert_string_equal(r.snapshot, SNP);
    request_done(&r);
}

static void test_spares(void **state) {
    struct request r;
    (void)state;
#define LOAD "{\"request\":\"vm_load\",\"template\":\"" HEX64 "\",\"config\":{},\"id\":\""
    assert_ok(parse(LOAD SPR "\",\"snapshot\":\"" SNP "\",\"bind\":\"" SBX "\"}", &r));
    assert_string_equal(r.bind, SBX);
    request_done(&r);
    assert_ok(parse(LOAD SPR "\",\"snapshot\":\"" HEX32 "\"}", &r));
    assert_string_equal(r.bind, "");
    request_done(&r);
    bad(LOAD SBX "\",\"snapshot\":\"" SNP "\"}", "id");
    bad(LOAD SPR "\",\"snapshot\":\"" SNP "\",\"bind\":\"" SPR "\"}", "bind");
    bad(LOAD SPR "\",\"snapshot\":\"" SBX "\"}", "snapshot");
    assert_ok(parse("{\"request\":\"vm_bind\",\"id\":\"" SPR "\",\"sandbox\":\"" SBX "\"}", &r));
    assert_string_equal(r.sandbox, SBX);
    bad("{\"request\":\"vm_bind\",\"id\":\"" SPR "\",\"sandbox\":\"" TPB "\"}", "sandbox");
}

static void test_snapshots(void **state) {
    struct request r;
    (void)state;
#define TAKE "{\"request\":\"vm_snapshot\",\"id\":\"" SBX "\",\"manifest\":{},\"snapshot\":\""
    assert_ok(parse(TAKE SNP "\",\"then\":\"stop\"}", &r));
    assert_true(r.then == THEN_STOP && r.manifest);
    request_done(&r);
    assert_ok(parse(TAKE SNP "\",\"then\":\"resume\",\"content\":\"disk\"}", &r));
    assert_true(r.then == THEN_RESUME && r.content == CONTENT_DISK);
    request_done(&r);
    bad(TAKE SNP "\",\"then\":\"stop\",\"content\":\"disk\"}", "then");
    bad(TAKE SNP "\",\"then\":\"resume\",\"content\":\"memory\"}", "content");
    bad(TAKE SNP "\"}", "then");
    bad(TAKE SNP "\",\"then\":\"go\"}", "then");
    bad(TAKE HEX32 "\",\"then\":\"resume\"}", "snapshot"); /* a template's is sealed, not taken */
#define COPY "{\"request\":\"snapshot_copy\",\"snapshot\":\""
    assert_ok(parse(COPY HEX32 "\",\"to\":\"" SNP "\"}", &r));
    assert_null(r.manifest);
    assert_string_equal(r.to, SNP);
    bad(COPY SNP "\",\"to\":\"" HEX32 "\"}", "to");
    assert_ok(parse("{\"request\":\"snapshot_list\",\"after\":\"" SNP "\"}", &r));
    bad("{\"request\":\"snapshot_list\",\"after\":\"" HEX32 "\"}", "after");
    assert_ok(parse("{\"request\":\"snapshot_stat\",\"snapshot\":\"" HEX32 "\"}", &r));
    assert_ok(parse("{\"request\":\"snapshot_remove\",\"snapshot\":\"" SNP "\"}", &r));
}

static void test_small_requests(void **state) {
    struct request r;
    (void)state;
    assert_ok(parse("{\"request\":\"hello\",\"version\":1}", &r));
    assert_true(r.type == REQUEST_HELLO && r.version == 1 && !r.has_seq);
    assert_ok(parse("{\"request\":\"stat\",\"seq\":0}", &r));
    assert_true(r.type == REQUEST_STAT && r.has_seq && r.seq == 0);
    assert_ok(parse("{\"request\":\"vm_list\"}", &r));
    assert_string_equal(r.after, "");
    assert_ok(parse("{\"request\":\"vm_list\",\"after\":\"" SBX "\"}", &r));
    assert_string_equal(r.after, SBX);
    assert_ok(parse("{\"request\":\"sweep\",\"known\":[\"" SBX "\",\"" TPB "\"]}", &r));
    assert_int_equal(r.n_known, 2);
    assert_string_equal(r.known[1], TPB);
    request_done(&r);
    assert_ok(
        parse("{\"request\":\"snapshot_seal\",\"id\":\"" TPB "\",\"snapshot\":\"" HEX32 "\",\"manifest\":{}}", &r));
    assert_non_null(r.manifest);
    request_done(&r);
}

static void test_refused(void **state) {
    (void)state;
    bad("", NULL);
    bad("[]", NULL);
    bad("{}", "request");
    bad("{\"request\":5}", "request");
    bad("{\"request\":\"reboot\"}", "request");
    bad("{\"request\":\"stat\",\"request\":\"stat\"}", NULL);
    bad("{\"request\":\"stat\",\"seq\":1.0}", "seq");
    bad("{\"request\":\"stat\",\"seq\":9007199254740992}", "seq");
    bad("{\"request\":\"vm_stop\",\"id\":\"../x\"}", "id");
    bad("{\"request\":\"vm_stop\",\"id\":\"sbx_0123456789abcdefghjkmnpqr\"}", "id");
    bad("{\"request\":\"vm_stop\",\"id\":\"" SBX "\\u0000\"}", NULL);
    bad("{\"request\":\"template_remove\",\"template\":\"" HEX32 "\"}", "template");
    bad("{\"request\":\"snapshot_remove\",\"snapshot\":\"" HEX32 "0\"}", "snapshot");
    bad("{\"request\":\"sweep\",\"known\":[1]}", "known");
    bad("{\"request\":\"sweep\"}", "known");
}

/* The reply to a request that was refused can still say which one it was. */
static void test_seq_survives_a_refusal(void **state) {
    struct request r;
    const char *text = "{\"request\":\"vm_stop\",\"id\":\"x\",\"seq\":12}";
    (void)state;
    assert_fails(parse(text, &r), SP_E_INVALID);
    assert_true(r.has_seq && r.seq == 12);
}

static void test_too_long(void **state) {
    _cleanup_free_ char *text = malloc(BROKER_MESSAGE_MAX + 2);
    struct request r;
    (void)state;
    memset(text, ' ', BROKER_MESSAGE_MAX + 1);
    memcpy(text, "{\"request\":\"stat\"}", 18);
    assert_ok(request_parse(text, BROKER_MESSAGE_MAX, &r, &unit_error));
    assert_fails(request_parse(text, BROKER_MESSAGE_MAX + 1, &r, &unit_error), SP_E_TOO_LARGE);
}

static void test_keys(void **state) {
    (void)state;
    assert_true(request_hex_is_valid(HEX32, 32));
    assert_false(request_hex_is_valid(HEX32, 31));
    assert_false(request_hex_is_valid("0123456789ABCDEF0123456789abcdef", 32));
    assert_true(request_key_is_valid(HEX32) && request_key_is_valid(SNP));
    assert_false(request_key_is_valid(SBX) || request_key_is_valid(HEX64) || request_key_is_valid(""));
    assert_true(request_key_is_sandboxes(SNP) && !request_key_is_sandboxes(HEX32));
    assert_true(request_id_is_valid(SBX) && request_id_is_valid(TPB) && request_id_is_valid(SPR));
    assert_false(request_id_is_valid("tok_0123456789abcdefghjkmnpqrs"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_mode_decides_about_id_and_snapshot),
        cmocka_unit_test(test_spares),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_small_requests),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_seq_survives_a_refusal),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
