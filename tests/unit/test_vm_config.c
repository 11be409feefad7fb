/* SPDX-License-Identifier: Apache-2.0 */
/* What space-vm accepts as its configuration: everything needed, nothing unknown, every limit. */
#include "base/json.h"
#include "unit.h"
#include "vm/vm_config.h"
#include <sys/mman.h>

#define BROKER                                                                                                         \
    "\"broker\":{\"id\":\"sbx_00000000000000000000000000\",\"mode\":\"clone\",\"kernel\":\"lean\","                    \
    "\"accelerator\":\"tcg\",\"vcpus\":2,\"memory_mib\":512,\"qemu\":\"/usr/bin/"                                      \
    "qemu\",\"qemu_version\":\"7.2.22\",\"vm_dir\":\"/vm\","                                                           \
    "\"fds\":{\"control\":5,\"guest\":6,\"stub\":7,\"tap\":8,\"memory\":10,\"disk\":11,\"devices\":9}}"
#define CONFIG                                                                                                         \
    "\"config\":{\"acpi\":true,\"tsc_khz\":2096007,\"generation\":3,"                                                  \
    "\"identity\":{\"hostname\":\"h\",\"machine_id\":\"0123456789abcdef0123456789abcdef\",\"env\":[\"A=b\",\"C=\"]},"  \
    "\"output_window\":65536,\"session_retention_ms\":1000,"                                                           \
    "\"probe\":{\"argv\":[\"/bin/true\"],\"timeout_ms\":500},"                                                         \
    "\"start\":{\"argv\":[\"sh\",\"-c\",\"x\"],\"user\":\"app\",\"env\":[\"E=1\"],\"cwd\":\"/srv\"},"                  \
    "\"deadline_ms\":60000}"
#define WHOLE "{" BROKER "," CONFIG "}"

static int parse(const char *text, struct vm_config *c) {
    memset(&unit_error, 0, sizeof(unit_error));
    return vm_config_parse(text, strlen(text), c, &unit_error);
}

static void test_whole(void **state) {
    struct vm_config c;
    (void)state;
    assert_ok(parse(WHOLE, &c));
    assert_string_equal(c.id, "sbx_00000000000000000000000000");
    assert_int_equal(c.mode, VM_MODE_CLONE);
    assert_string_equal(c.kernel, "lean");
    assert_int_equal(c.vcpus, 2);
    assert_int_equal(c.memory_mib, 512);
    assert_int_equal(c.fd_control, 5);
    assert_int_equal(c.fd_devices, 9);
    assert_int_equal(c.fd_memory, 10);
    assert_int_equal(c.fd_disk, 11);
    assert_true(c.acpi);
    assert_int_equal(c.tsc_khz, 2096007);
    assert_int_equal(c.generation, 3);
    assert_string_equal(c.env[1], "C=");
    assert_null(c.env[2]);
    assert_string_equal(c.probe.argv[0], "/bin/true");
    assert_string_equal(c.probe.user, "root");
    assert_string_equal(c.probe.cwd, "/");
    assert_int_equal(c.probe.timeout_ms, 500);
    assert_string_equal(c.start.user, "app");
    assert_string_equal(c.start.env[0], "E=1");
    assert_string_equal(c.start.cwd, "/srv");
    assert_int_equal(c.session_retention_ms, 1000);
    vm_config_done(&c);
}

/* The configuration with one member replaced (or, value NULL, removed). */
static int parse_with(const char *part, const char *key, const char *json_value) {
    struct vm_config c;
    _cleanup_json_ json_t *root = json_loads(WHOLE, 0, NULL);
    _cleanup_free_ char *text = NULL;
    json_t *target = json_object_get(root, part);
    const char *dot = strchr(key, '.');
    if (dot) {
        char first[32] = "";
        assert_true((size_t)(dot - key) < sizeof(first));
        memcpy(first, key, (size_t)(dot - key));
        target = json_object_get(target, first);
        key = dot + 1;
    }
    if (json_value)
        (void)json_object_set_new(target, key, json_loads(json_value, JSON_DECODE_ANY, NULL));
    else
        (void)json_object_del(target, key);
    text = json_dumps(root, JSON_COMPACT);
    int r = parse(text, &c);
    if (r >= 0)
        vm_config_done(&c);
    return r;
}

#define BLANK_FDS "{\"control\":5,\"guest\":6,\"stub\":7,\"tap\":8}"

/* A blank: no files, nobody's guest; then `load` makes it somebody's, whole or not at all. */
static void test_blank(void **state) {
    struct vm_config c;
    _cleanup_json_ json_t *root = json_loads(WHOLE, 0, NULL), *load = json_incref(json_object_get(root, "config"));
    _cleanup_json_ json_t *config = json_deep_copy(load);
    _cleanup_free_ char *text = NULL;
    (void)state;
    (void)json_object_set_new(json_object_get(root, "broker"), "mode", json_string("blank"));
    (void)json_object_set_new(json_object_get(root, "broker"), "id", json_string("spr_00000000000000000000000000"));
    (void)json_object_set_new(json_object_get(root, "broker"), "fds", json_loads(BLANK_FDS, 0, NULL));
    (void)json_object_del(config, "identity");
    (void)json_object_del(config, "generation");
    (void)json_object_set(root, "config", config);
    text = json_dumps(root, JSON_COMPACT);
    assert_ok(parse(text, &c));
    assert_int_equal(c.mode, VM_MODE_BLANK);
    assert_int_equal(c.fd_memory, -1);
    assert_null(c.env[0]);
    assert_int_equal(vm_config_load(&c, config, &unit_error), -SP_E_INVALID);
    assert_string_equal(c.hostname, "");
    (void)json_object_set_new(load, "acpi", json_false());
    assert_int_equal(vm_config_load(&c, load, &unit_error), -SP_E_INVALID);
    (void)json_object_set_new(load, "acpi", json_true());
    assert_ok(vm_config_load(&c, load, &unit_error));
    assert_string_equal(c.hostname, "h");
    assert_string_equal(c.env[0], "A=b");
    assert_int_equal(c.generation, 3);
    assert_int_equal(vm_config_identity(&c, load, &unit_error), -SP_E_INVALID);
    assert_string_equal(c.env[0], "A=b");
    assert_ok(vm_config_identity(&c, json_object_get(load, "identity"), &unit_error));
    vm_config_done(&c);
}

/* A boot has memory and a disk, and no device state. */
static void test_boot(void **state) {
    struct vm_config c;
    _cleanup_json_ json_t *root = json_loads(WHOLE, 0, NULL);
    _cleanup_free_ char *text = NULL;
    json_t *broker = json_object_get(root, "broker");
    (void)state;
    (void)json_object_set_new(broker, "mode", json_string("boot"));
    (void)json_object_del(json_object_get(broker, "fds"), "devices");
    text = json_dumps(root, JSON_COMPACT);
    assert_ok(parse(text, &c));
    assert_int_equal(c.mode, VM_MODE_BOOT);
    assert_true(c.fd_memory > 0 && c.fd_disk > 0 && c.fd_devices == -1);
    assert_string_equal(vm_mode_name(c.mode), "boot");
    vm_config_done(&c);
}

static void test_refuses(void **state) {
    static const struct {
        const char *part, *key, *value;
    } bad[] = {
        {"broker", "id", "\"sbx_short\""},
        {"broker", "id", "\"spm_00000000000000000000000000\""},
        {"broker", "mode", "\"fork\""},
        {"broker", "vcpus", "0"},
        {"broker", "vcpus", "33"},
        {"broker", "memory_mib", "1"},
        {"broker", "memory_mib", "\"512\""},
        {"broker", "qemu", NULL},
        {"broker", "vm_dir", NULL},
        {"broker", "fds", NULL},
        {"broker", "fds.tap", NULL},
        {"broker", "fds.tap", "2"},
        {"broker", "fds.tap", "-1"},
        {"broker", "fds.more", "3"},
        {"broker", "fds.memory", NULL},
        {"broker", "mode", "\"blank\""}, /* with files */
        {"broker", "mode", "\"boot\""},  /* with a device state */
        {"broker", "surprise", "1"},
        {"config", "acpi", "1"},
        {"config", "tsc_khz", "-1"},
        {"broker", "qemu_version", NULL},
        {"config", "generation", NULL},
        {"config", "identity", NULL},
        {"config", "identity.hostname", "\"\""},
        {"config", "identity.hostname", "\"a23456789012345678901234567890123456789012345678901234567890123456\""},
        {"config", "identity.machine_id", "\"0123\""},
        {"config", "identity.machine_id", "\"zz23456789abcdef0123456789abcdef\""},
        {"config", "identity.env", "[\"NOVALUE\"]"},
        {"config", "identity.env", "[\"=x\"]"},
        {"config", "identity.env", "[1]"},
        {"config", "output_window", "1"},
        {"config", "probe", "{\"argv\":[]}"},
        {"config", "probe", "{}"},
        {"config", "probe", "{\"argv\":[\"x\"],\"shell\":true}"},
        {"config", "probe", "[]"},
        {"config", "start.timeout_ms", "0"},
        {"config", "deadline_ms", "0"},
        {"config", "deadline_ms", NULL},
        {"config", "surprise", "{}"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (parse_with(bad[i].part, bad[i].key, bad[i].value) != -SP_E_INVALID)
            fail_msg("%s.%s = %s was accepted", bad[i].part, bad[i].key, bad[i].value ? bad[i].value : "(removed)");
}

static void test_optional(void **state) {
    static const char *const optional[] = {"probe", "start",         "tsc_khz",
                                           "acpi",  "output_window", "session_retention_ms"};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(optional); i++)
        assert_int_equal(parse_with("config", optional[i], NULL), 0);
}

static void test_not_a_configuration(void **state) {
    static const char *const bad[] = {"", "[]", "{}", "{" BROKER "}", "{" CONFIG "}", "{" BROKER "," BROKER "}"};
    struct vm_config c;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_true(parse(bad[i], &c) < 0);
        assert_int_equal(c.vcpus, 0);
    }
}

static void test_read_from_descriptor(void **state) {
    struct vm_config c;
    char block[4096];
    int fd = memfd_create("config", MFD_CLOEXEC);
    (void)state;
    assert_true(fd >= 0);
    assert_ok(fd_write_all(fd, WHOLE, strlen(WHOLE), &unit_error)); /* the position is at the end: read from 0 anyway */
    assert_ok(vm_config_read(fd, &c, &unit_error));
    vm_config_done(&c);
    memset(block, ' ', sizeof(block));
    for (size_t n = 0; n <= VM_CONFIG_MAX; n += sizeof(block))
        assert_ok(fd_write_all(fd, block, sizeof(block), &unit_error));
    assert_fails(vm_config_read(fd, &c, unit_err_), SP_E_TOO_LARGE);
    (void)close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_blank),
        cmocka_unit_test(test_boot),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_optional),
        cmocka_unit_test(test_not_a_configuration),
        cmocka_unit_test(test_read_from_descriptor),
    };
    return cmocka_run_group_tests_name("vm_config", tests, NULL, NULL);
}
