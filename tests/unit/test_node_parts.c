/* SPDX-License-Identifier: Apache-2.0 */
/* What the node measures, admits, asks of the broker and hears from a VM. */
#include "node/capacity.h"
#include "node/fault.h"
#include "node/pools.h"
#include "node/vm_request.h"
#include "node/vm_status.h"
#include "unit.h"
#include "vm/vm_config.h"

#define ID "sbx_00000000000000000000000001"

/* ---- capacity ---- */

static void test_meminfo(void **state) {
    static const char text[] = "MemTotal:       24683232 kB\nMemFree:   1 kB\nMemAvailable:   20480 kB\n";
    uint64_t mib = 0;
    (void)state;
    assert_ok(capacity_meminfo_parse(text, "MemAvailable:", &mib, &unit_error));
    assert_int_equal(mib, 20);
    assert_fails(capacity_meminfo_parse(text, "Nothing:", &mib, &unit_error), SP_E_INTERNAL);
    assert_fails(capacity_meminfo_parse("MemTotal: x kB\n", "MemTotal:", &mib, &unit_error), SP_E_INTERNAL);
    assert_fails(capacity_meminfo_parse("MemTotal: 5 MB\n", "MemTotal:", &mib, &unit_error), SP_E_INTERNAL);
    assert_fails(capacity_meminfo_parse("", "MemTotal:", &mib, &unit_error), SP_E_INTERNAL);
}

static void test_admission(void **state) {
    static struct settings s;
    const struct capacity roomy = {
        .vcpus = 8, .memory_mib = 4096, .disk_free_mib = 10000, .memory_available_mib = 8000, .max_sandboxes = 10};
    struct capacity c = roomy;
    struct capacity_use use = {0};
    char why[200];
    (void)state;
    s.memory_reserve_mib = 1024;
    s.disk_reserve_mib = 2048;
    assert_int_equal(capacity_admit(&c, &s, &use, 8, 4032, why, sizeof(why)), FAILURE_NONE);
    assert_int_equal(capacity_admit(&c, &s, &use, 8, 4033, why, sizeof(why)), FAILURE_NO_CAPACITY);
    assert_int_equal(capacity_admit(&c, &s, &use, 9, 128, why, sizeof(why)), FAILURE_NO_CAPACITY);
    use.memory_mib = 4000;
    assert_int_equal(capacity_admit(&c, &s, &use, 1, 128, why, sizeof(why)), FAILURE_NO_CAPACITY);
    use = (struct capacity_use){.sandboxes = 10};
    assert_int_equal(capacity_admit(&c, &s, &use, 1, 128, why, sizeof(why)), FAILURE_NO_CAPACITY);
    use = (struct capacity_use){0};
    c.memory_available_mib = 1024 + 191;
    assert_int_equal(capacity_admit(&c, &s, &use, 1, 128, why, sizeof(why)), FAILURE_NO_CAPACITY);
    c.memory_available_mib = 1024 + 192;
    assert_int_equal(capacity_admit(&c, &s, &use, 1, 128, why, sizeof(why)), FAILURE_NONE);
    c.disk_free_mib = 2047;
    assert_int_equal(capacity_admit(&c, &s, &use, 1, 128, why, sizeof(why)), FAILURE_HOST_DISK_FULL);
    assert_string_not_equal(why, "");
}

/* ---- requests ---- */

static struct settings settings;
static struct facts facts;
static const struct vm_request_base base = {.settings = &settings, .facts = &facts, .accelerator = "tcg"};

static int setup(void **state) {
    (void)state;
    settings.output_window_kib = 256;
    settings.session_retention_s = 60;
    settings.create_timeout_s = 120;
    facts.n_kernels = 1;
    facts.kernel = facts.kernels;
    memset(facts.kernels[0].sha256, 'a', 64);
    memset(facts.kernels[0].initrd_sha256, 'b', 64);
    memset(facts.engine, 'c', 64);
    (void)text_copy(facts.kernels[0].profile, sizeof(facts.kernels[0].profile), "lean");
    (void)text_copy(facts.qemu_version, sizeof(facts.qemu_version), "7.2.22");
    return 0;
}

static struct desired some_desired(json_t *manifest, json_t *env) {
    struct desired d = {
        .id = ID, .generation = 4, .vcpus = 2, .memory_mib = 512, .hostname = "h", .manifest = manifest, .env = env};
    memset(d.template_digest, 'd', 64);
    memset(d.machine_id, '1', 32);
    return d;
}

/* What we ask for is what space-vm accepts. */
static void assert_config_is_good(const json_t *fields) {
    json_t *whole =
        json_pack("{s:{s:s, s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:s, s:{s:i, s:i, s:i, s:i, s:i, s:i, s:i}}, s:O}",
                  "broker", "id", ID, "mode", "clone", "kernel", "lean", "accelerator", "tcg", "vcpus", 1, "memory_mib",
                  512, "qemu", "/usr/bin/qemu", "qemu_version", "7.2.22", "vm_dir", "/vm", "fds", "control", 3, "guest",
                  4, "stub", 5, "tap", 6, "memory", 7, "disk", 8, "devices", 9, "config",
                  json_object_get(fields, "config"));
    char *text = json_print(whole);
    struct vm_config config;
    assert_ok(vm_config_parse(text, strlen(text), &config, &unit_error));
    vm_config_done(&config);
    free(text);
    json_decref(whole);
}

static void test_clone_request(void **state) {
    json_t *manifest = json_pack("{s:{s:s, s:s}}", "env", "A", "1", "B", "2"),
           *env = json_pack("{s:s, s:s}", "B", "3", "C", "4");
    struct desired d = some_desired(manifest, env);
    json_t *fields = NULL, *expected = json_pack("[s, s, s]", "A=1", "B=3", "C=4");
    (void)state;
    assert_ok(vm_request_clone(&base, &d, "key", 5000, &fields, &unit_error));
    assert_config_is_good(fields);
    assert_string_equal(json_string_value(json_object_get(fields, "mode")), "clone");
    assert_string_equal(json_string_value(json_object_get(fields, "snapshot")), "key");
    assert_true(
        json_equal(json_object_get(json_object_get(json_object_get(fields, "config"), "identity"), "env"), expected));
    json_decref(fields);
    json_decref(expected);
    json_decref(manifest);
    json_decref(env);
}

/* On the disk of a snapshot: the sandbox's own identity, the template's command, none of its probe. */
static void test_boot_disk_request(void **state) {
    json_t *manifest = json_pack("{s:{s:s}, s:[s, s], s:{s:[s], s:i}}", "env", "A", "1", "start_command", "srv", "-d",
                                 "readiness_probe", "command", "chk", "timeout_s", 5);
    struct desired d = some_desired(manifest, NULL);
    json_t *fields = NULL, *config;
    (void)state;
    assert_ok(vm_request_boot_disk(&base, &d, "key", 5000, &fields, &unit_error));
    assert_config_is_good(fields);
    config = json_object_get(fields, "config");
    assert_string_equal(json_string_value(json_object_get(fields, "mode")), "boot");
    assert_string_equal(json_string_value(json_object_get(fields, "id")), ID);
    assert_string_equal(json_string_value(json_object_get(fields, "snapshot")), "key");
    assert_int_equal(json_integer_value(json_object_get(config, "generation")), 4);
    assert_non_null(json_object_get(config, "start"));
    assert_null(json_object_get(config, "probe"));
    json_decref(fields);
    json_decref(manifest);
}

static void test_boot_request(void **state) {
    json_t *manifest =
        json_pack("{s:{s:s}, s:s, s:s, s:[s, s], s:{s:[s], s:i}}", "env", "A", "1", "user", "u", "workdir", "/w",
                  "start_command", "srv", "-d", "readiness_probe", "command", "chk", "timeout_s", 5);
    struct desired d = some_desired(manifest, NULL);
    struct template_spec spec;
    json_t *fields = NULL;
    (void)state;
    template_spec_init(&spec, &d, &facts, "tcg");
    assert_int_equal(strlen(spec.key), 32);
    assert_int_equal(vm_request_boot_ms(&settings, &spec), 125000);
    assert_ok(vm_request_boot(&base, &spec, "tpb_00000000000000000000000001", 125000, &fields, &unit_error));
    assert_config_is_good(fields);
    assert_null(json_object_get(fields, "snapshot"));
    json_decref(fields);
    template_spec_done(&spec);
    json_decref(manifest);
}

static void test_what_decides_the_key(void **state) {
    struct desired d = some_desired(NULL, NULL), other = d;
    struct template_spec one, two;
    struct facts changed = facts;
    (void)state;
    changed.kernel = changed.kernels;
    template_spec_init(&one, &d, &facts, "tcg");
    template_spec_init(&two, &other, &facts, "tcg");
    assert_string_equal(one.key, two.key);
    template_spec_init(&two, &other, &facts, "kvm");
    assert_string_not_equal(one.key, two.key);
    other.memory_mib++;
    template_spec_init(&two, &other, &facts, "tcg");
    assert_string_not_equal(one.key, two.key);
    changed.kernels[0].initrd_sha256[0] = 'x'; /* another agent */
    template_spec_init(&two, &d, &changed, "tcg");
    assert_string_not_equal(one.key, two.key);
}

static void test_requests_that_cannot_be(void **state) {
    char *large = calloc(1, 5001);
    json_t *fields = NULL;
    (void)state;
    memset(large, 'x', 5000);
    json_t *const envs[] = {json_pack("{s:i}", "A", 1), json_pack("{s:s}", "A=B", "1"), json_pack("{s:s}", "", "1"),
                            json_pack("{s:s}", "A", large)};
    for (size_t i = 0; i < ARRAY_SIZE(envs); i++) {
        struct desired d = some_desired(NULL, envs[i]);
        assert_fails(vm_request_clone(&base, &d, "key", 1, &fields, &unit_error), SP_E_INVALID);
        json_decref(envs[i]);
    }
    json_t *many = json_object();
    for (int i = 0; i < 9; i++) {
        char name[8];
        (void)text_printf(name, sizeof(name), "V%d", i);
        json_object_set_new(many, name, json_stringn(large, 4000));
    }
    struct desired d = some_desired(NULL, many);
    assert_fails(vm_request_clone(&base, &d, "key", 1, &fields, &unit_error), SP_E_TOO_LARGE);
    json_decref(many);
    free(large);
    assert_null(fields);
}

/* ---- a VM's words ---- */

static int hear(const char *text, struct vm_message *m) {
    return vm_message_parse(text, strlen(text), ID, m, &unit_error);
}

static void test_statuses(void **state) {
    struct vm_message m;
    (void)state;
    assert_ok(hear(
        "{\"event\":\"status\",\"id\":\"" ID "\",\"state\":\"running\",\"ready\":true,\"generation\":2,\"vmm_pid\":5,"
        "\"accelerator\":\"tcg\",\"kernel\":\"lean\",\"timings\":{\"load_ms\":1.5,\"Bad\":1,\"neg\":-1,\"t\":\"x\"},"
        "\"streams\":3,\"active_realtime_ns\":77,\"more\":[]}",
        &m));
    assert_true(m.kind == VM_MESSAGE_STATUS && m.status.phase == VM_PHASE_RUNNING && m.status.ready);
    assert_true(m.status.generation == 2 && m.status.streams == 3 && m.status.active_ns == 77);
    assert_int_equal(json_object_size(m.status.timings), 1);
    assert_non_null(json_object_get(m.status.timings, "vm_load_ms"));
    vm_message_done(&m);
    assert_ok(
        hear("{\"event\":\"status\",\"id\":\"spr_00000000000000000000000001\",\"state\":\"paused\",\"generation\":0,"
             "\"snapshot\":\"snp_1\"}",
             &m)); /* not told yet who it is */
    assert_true(m.status.phase == VM_PHASE_PAUSED);
    assert_string_equal(m.status.snapshot, "snp_1");
    vm_message_done(&m);
    assert_ok(hear("{\"event\":\"status\",\"id\":\"" ID "\",\"state\":\"failed\",\"generation\":2,\"error\":{\"code\":"
                   "\"vmm_killed\",\"message\":\"a\\nb\"}}",
                   &m));
    assert_true(m.status.phase == VM_PHASE_FAILED && m.status.failure == FAILURE_VMM_KILLED);
    assert_string_equal(m.status.message, "a\\x0ab");
    vm_message_done(&m);
}

static void test_answers(void **state) {
    struct vm_message m;
    (void)state;
    assert_ok(hear("{\"event\":\"pong\",\"agent\":{}}", &m));
    assert_true(m.kind == VM_MESSAGE_PONG && m.alive);
    assert_ok(hear("{\"event\":\"pong\",\"error\":{\"code\":\"guest_silent\"}}", &m));
    assert_true(m.kind == VM_MESSAGE_PONG && !m.alive);
    assert_ok(hear("{\"event\":\"console\",\"data\":\"\"}", &m));
    assert_int_equal(m.kind, VM_MESSAGE_OTHER);
    assert_ok(hear("{\"event\":\"done\",\"seq\":7,\"ok\":true,\"timings\":{\"cont_ms\":1}}", &m));
    assert_true(m.kind == VM_MESSAGE_DONE && m.done.seq == 7 && m.done.ok);
    vm_message_done(&m);
    assert_ok(
        hear("{\"event\":\"done\",\"seq\":8,\"ok\":false,\"error\":{\"code\":\"guest_busy\",\"message\":\"m\\u0001\"}}",
             &m));
    assert_true(!m.done.ok && m.done.failure == FAILURE_GUEST_BUSY);
    assert_string_equal(m.done.message, "m\\x01");
    vm_message_done(&m);
}

static void test_words_that_are_refused(void **state) {
    static const char *const bad[] = {
        "",
        "{}",
        "[]",
        "{\"event\":1}",
        "{\"event\":\"status\"}",
        "{\"event\":\"done\",\"ok\":true}",
        "{\"event\":\"done\",\"seq\":1,\"ok\":false,\"error\":{\"message\":\"x\"}}",
        "{\"event\":\"status\",\"id\":\"" ID "\",\"state\":\"running\",\"generation\":1,\"streams\":-1}",
        "{\"event\":\"status\",\"id\":\"" ID "\",\"state\":\"dancing\",\"generation\":1}",
        "{\"event\":\"status\",\"id\":\"sbx_other\",\"state\":\"running\",\"generation\":1}",
        "{\"event\":\"status\",\"id\":\"" ID "\",\"state\":\"running\"}",
        "{\"event\":\"status\",\"id\":\"" ID "\",\"state\":\"running\",\"generation\":-1}",
        "{\"event\":\"status\",\"id\":\"" ID "\",\"state\":\"running\",\"generation\":1,\"kernel\":\"much too long\"}",
        "{\"event\":\"status\",\"id\":\"" ID "\",\"state\":\"failed\",\"generation\":1,\"error\":{\"message\":\"x\"}}",
    };
    struct vm_message m;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(hear(bad[i], &m), -SP_E_PROTOCOL);
}

/* ---- spares ---- */

static void test_a_spares_name(void **state) {
    static const struct vm_shape shapes[] = {{1, 64}, {2, 256}, {32, 262144}, {31, 1000}};
    char id[ID_SIZE], other[ID_SIZE];
    struct vm_shape shape;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        spare_id_make(id, "0abcdef1", &shapes[i]);
        spare_id_make(other, "0abcdef1", &shapes[i]);
        assert_true(id_is_valid(id, "spr"));
        assert_string_not_equal(id, other);
        assert_true(spare_id_read(id, "0abcdef1", &shape));
        assert_true(shape.vcpus == shapes[i].vcpus && shape.memory_mib == shapes[i].memory_mib);
        assert_false(spare_id_read(id, "0abcdef2", &shape));
    }
    assert_false(spare_id_read(ID, "0abcdef1", &shape));
    assert_int_equal(pools_demand(0, 4), 0);
    assert_int_equal(pools_demand(3, 4), 3);
    assert_int_equal(pools_demand(9, 4), 4);
    assert_int_equal(pools_demand(9, 0), 0);
}

static void test_requests_of_spares(void **state) {
    const struct vm_shape shape = {2, 512};
    struct desired d = some_desired(NULL, NULL);
    struct template_spec spec;
    json_t *fields = NULL;
    (void)state;
    assert_ok(vm_request_blank(&base, &shape, "spr_00000000000000000000000001", 1000, &fields, &unit_error));
    assert_config_is_good(fields);
    assert_null(json_object_get(fields, "template"));
    json_decref(fields);
    assert_ok(vm_request_load(&base, &d, "key", "spr_00000000000000000000000001", 1000, &fields, &unit_error));
    assert_config_is_good(fields);
    assert_string_equal(json_string_value(json_object_get(fields, "bind")), ID);
    json_decref(fields);
    template_spec_init(&spec, &d, &facts, "tcg");
    assert_ok(vm_request_warm(&base, &spec, "spr_00000000000000000000000001", 1000, &fields, &unit_error));
    assert_config_is_good(fields);
    assert_null(json_object_get(fields, "bind"));
    json_decref(fields);
    template_spec_done(&spec);
    assert_ok(vm_request_identify(&base, &d, &fields, &unit_error));
    assert_int_equal(json_integer_value(json_object_get(fields, "generation")), 4);
    json_decref(fields);
}

static void test_faults(void **state) {
    static const struct {
        struct sp_error err;
        enum failure code;
    } rows[] = {
        {{.code = SP_E_NOT_FOUND, .field = "template", .text = "t"}, FAILURE_TEMPLATE_MISSING},
        {{.code = SP_E_NOT_FOUND, .field = "snapshot", .text = "t"}, FAILURE_SNAPSHOT_MISSING},
        {{.code = SP_E_NOT_FOUND, .text = "a control group that vanished"}, FAILURE_INTERNAL},
        {{.code = SP_E_NOT_FOUND, .field = "id", .text = "t"}, FAILURE_INTERNAL},
        {{.code = SP_E_CORRUPT, .field = "snapshot", .text = "t"}, FAILURE_SNAPSHOT_BROKEN},
        {{.code = SP_E_NO_SPACE, .text = "t"}, FAILURE_HOST_DISK_FULL},
        {{.code = SP_E_TIMEOUT, .text = "t"}, FAILURE_DEADLINE_EXCEEDED},
        {{.code = SP_E_VMM, .text = "t"}, FAILURE_VMM_FAILED},
        {{.code = SP_E_GUEST, .field = "guest_busy", .text = "t"}, FAILURE_GUEST_BUSY},
        {{.code = SP_E_IO, .text = "t"}, FAILURE_IO},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct fault f;
        fault_from_error(&f, &rows[i].err);
        assert_int_equal(f.code, rows[i].code);
    }
}

static void test_kernel_descriptions(void **state) {
    static const char good[] = "{\"profile\":\"stock\",\"version\":\"6.1\",\"sha256\":"
                               "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\",\"acpi\":true}";
    struct facts_kernel k;
    (void)state;
    assert_ok(facts_kernel_parse(good, strlen(good), "stock", &k, &unit_error));
    assert_true(k.acpi);
    assert_true(facts_kernel_parse(good, strlen(good), "lean", &k, &unit_error) < 0);
    assert_true(facts_kernel_parse("{}", 2, "lean", &k, &unit_error) < 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meminfo),
        cmocka_unit_test(test_admission),
        cmocka_unit_test(test_clone_request),
        cmocka_unit_test(test_boot_disk_request),
        cmocka_unit_test(test_boot_request),
        cmocka_unit_test(test_what_decides_the_key),
        cmocka_unit_test(test_requests_that_cannot_be),
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_a_spares_name),
        cmocka_unit_test(test_requests_of_spares),
        cmocka_unit_test(test_words_that_are_refused),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_kernel_descriptions),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
