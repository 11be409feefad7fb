/* SPDX-License-Identifier: Apache-2.0 */
/* QEMU's command line: one machine, a fixed list of devices, nothing a value could smuggle in, and files by descriptor. */
#include "unit.h"
#include "vmm/qemu/qemu.h"

static const struct machine base = {
    .id = "sbx_test",
    .binary = "/usr/bin/qemu-system-x86_64",
    .version = "7.2.22",
    .accelerator = "tcg",
    .vm_dir = "/vm",
    .vcpus = 2,
    .memory_mib = 512,
    .acpi = false,
    .tsc_khz = 2096007,
};

static struct vmm_args args;

static int teardown(void **state) {
    (void)state;
    vmm_args_done(&args);
    return 0;
}

/* Value after the i-th `option`, or NULL. */
static const char *value(const char *option, unsigned i) {
    for (size_t n = 0; n + 1 < args.argc; n++)
        if (strcmp(args.argv[n], option) == 0 && i-- == 0)
            return args.argv[n + 1];
    return NULL;
}

static bool has(const char *option) {
    for (size_t n = 0; n < args.argc; n++)
        if (strcmp(args.argv[n], option) == 0)
            return true;
    return false;
}

static bool contains(const char *option, const char *part) {
    const char *v;
    for (unsigned i = 0; (v = value(option, i)); i++)
        if (strstr(v, part))
            return true;
    return false;
}

static void build(const struct machine *m, enum vmm_purpose purpose) {
    vmm_args_done(&args);
    assert_ok(qemu_build_args(m, purpose, &args, &unit_error));
    assert_null(args.argv[args.argc]);
    assert_null(args.env[args.n_env]);
    assert_string_equal(args.argv[0], m->binary);
}

static void test_boot(void **state) {
    (void)state;
    build(&base, VMM_BOOT);
    assert_true(contains("-machine", "microvm,acpi=off,memory-backend=ram0"));
    assert_true(contains("-accel", "tcg,thread=single,tb-size="));
    assert_string_equal(value("-cpu", 0), "max,-erms,-fsrm");
    assert_true(contains("-object", "size=512M,mem-path=/vm/memory,share=on"));
    assert_false(contains("-object", "readonly"));
    assert_string_equal(value("-kernel", 0), "/vm/kernel");
    assert_string_equal(value("-initrd", 0), "/vm/initrd");
    assert_true(contains("-append", "tsc=reliable"));
    assert_true(contains("-append", "tsc_early_khz=2096007"));
    assert_true(contains("-append", "norandmaps")); /* emulation only */
    assert_false(has("-incoming"));
    assert_false(has("-S"));
}

/* Older versions may run code that is no longer there on one of several vCPUs with threads of their own. */
static void test_emulated_vcpus(void **state) {
    struct machine m = base;
    (void)state;
    m.vcpus = 2;
    m.version = "8.0.5";
    build(&m, VMM_BOOT);
    assert_true(contains("-accel", "tcg,thread=single,tb-size="));
    m.version = "8.1.0";
    build(&m, VMM_BOOT);
    assert_true(contains("-accel", "tcg,thread=multi,tb-size="));
    m.accelerator = "kvm";
    build(&m, VMM_BOOT);
    assert_string_equal(value("-accel", 0), "kvm");
}

/* Whatever it is for, the VMM's files are descriptors. */
static void test_files_by_preload(void **state) {
    static const char *const want[] = {"LD_PRELOAD=/vm/preload.so", "SPACE_VMM_MEMORY=/vm/memory",
                                       "SPACE_VMM_DISK=/vm/disk.img", "SPACE_VMM_FILES=7"};
    (void)state;
    for (enum vmm_purpose purpose = VMM_BOOT; purpose <= VMM_RESTORE; purpose++) {
        build(&base, purpose);
        for (size_t i = 0; i < ARRAY_SIZE(want); i++)
            assert_string_equal(args.env[i], want[i]);
    }
}

static void test_restore_by_old(void **state) {
    (void)state;
    build(&base, VMM_RESTORE);
    assert_true(contains("-object", "share=off"));
    assert_false(contains("-object", "readonly"));
    assert_string_equal(value("-incoming", 0), "defer");
    assert_true(has("-S"));
    assert_false(has("-kernel"));
    assert_false(has("-initrd"));
}

/* A sandbox that boots: the kernel's command line of a boot, the memory of a restore. */
static void test_private_boot(void **state) {
    struct machine m = base;
    (void)state;
    build(&base, VMM_BOOT_PRIVATE);
    assert_true(contains("-object", "share=off"));
    assert_false(contains("-object", "readonly"));
    assert_string_equal(value("-kernel", 0), "/vm/kernel");
    assert_false(has("-incoming"));
    assert_false(has("-S"));
    m.version = "10.0.2";
    build(&m, VMM_BOOT_PRIVATE);
    assert_true(contains("-object", "readonly=on,rom=off"));
}

static void test_restore_by_option(void **state) {
    struct machine m = base;
    (void)state;
    m.version = "8.2.0";
    build(&m, VMM_RESTORE);
    assert_true(contains("-object", "share=off,dump=off,merge=off,readonly=on,rom=off"));
    m.version = "10.0.2";
    build(&m, VMM_RESTORE);
    assert_true(contains("-object", "readonly=on"));
    build(&m, VMM_BOOT);
    assert_false(contains("-object", "readonly=on"));
}

static void test_acpi_profile(void **state) {
    struct machine m = base;
    (void)state;
    m.acpi = true;
    m.tsc_khz = 0;
    build(&m, VMM_BOOT);
    assert_true(contains("-machine", "acpi=on"));
    assert_false(contains("-append", "tsc_early_khz"));
}

static void test_kvm(void **state) {
    struct machine m = base;
    (void)state;
    m.accelerator = "kvm";
    build(&m, VMM_BOOT);
    assert_string_equal(value("-accel", 0), "kvm");
    assert_string_equal(value("-cpu", 0), "host");
    m.cpu_model = "EPYC,+svm";
    build(&m, VMM_BOOT);
    assert_string_equal(value("-cpu", 0), "EPYC,+svm");
}

/* A snapshot loads only into the same devices in the same order: whatever the purpose, version or accelerator. */
static void test_devices_never_change(void **state) {
    static const char *const devices[] = {
        "virtio-blk-device,drive=disk0,num-queues=1,werror=enospc,rerror=report",
        "virtio-blk-device,drive=disk1,num-queues=1",
        "virtio-net-device,netdev=net0,mac=02:53:50:41:43:45",
        "virtio-serial-device,max_ports=2",
        "virtserialport,nr=1,chardev=guest0,name=space.0",
        "virtio-rng-device,rng=rng0",
    };
    static const char *const versions[] = {"7.2.22", "10.0.2"}, *const accelerators[] = {"tcg", "kvm"};
    (void)state;
    for (unsigned variant = 0; variant < 24; variant++) {
        struct machine m = base;
        m.version = versions[variant & 1];
        m.accelerator = accelerators[(variant >> 1) & 1];
        m.acpi = (variant >> 2) & 1;
        build(&m, (enum vmm_purpose)(variant >> 3));
        for (size_t i = 0; i < ARRAY_SIZE(devices); i++)
            assert_string_equal(value("-device", (unsigned)i), devices[i]);
        assert_null(value("-device", ARRAY_SIZE(devices)));
    }
}

static void test_confinement(void **state) {
    (void)state;
    for (int purpose = VMM_BOOT; purpose <= VMM_RESTORE; purpose++) {
        build(&base, (enum vmm_purpose)purpose);
        assert_true(has("-nodefaults"));
        assert_true(has("-no-user-config"));
        assert_true(has("-no-reboot"));
        assert_string_equal(value("-display", 0), "none");
        assert_string_equal(value("-sandbox", 0),
                            "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        assert_true(contains("-chardev", "socket,id=qmp0,fd=3"));
        assert_true(contains("-chardev", "socket,id=guest0,fd=4"));
        assert_true(contains("-chardev", "socket,id=console0,fd=5"));
        assert_true(contains("-netdev", "tap,id=net0,fd=6,vhost=off"));
        assert_false(contains("-chardev", "path="));
    }
}

static void test_refuses_what_could_smuggle_options(void **state) {
    struct machine m = base;
    (void)state;
    m.vm_dir = "/vm,share=on";
    assert_fails(qemu_build_args(&m, VMM_BOOT, &args, unit_err_), SP_E_INVALID);
    m = base;
    m.vm_dir = "vm";
    assert_fails(qemu_build_args(&m, VMM_BOOT, &args, unit_err_), SP_E_INVALID);
    m = base;
    m.id = "a,b";
    assert_fails(qemu_build_args(&m, VMM_BOOT, &args, unit_err_), SP_E_INVALID);
    m = base;
    m.cpu_model = "max -snapshot";
    assert_fails(qemu_build_args(&m, VMM_BOOT, &args, unit_err_), SP_E_INVALID);
    m = base;
    m.binary = "qemu";
    assert_fails(qemu_build_args(&m, VMM_BOOT, &args, unit_err_), SP_E_INVALID);
    m = base;
    m.accelerator = "xen";
    assert_fails(qemu_build_args(&m, VMM_BOOT, &args, unit_err_), SP_E_INVALID);
    assert_int_equal(args.argc, 0);
}

static void test_versions(void **state) {
    (void)state;
    assert_true(qemu_version_at_least("8.2.0", 8, 2));
    assert_true(qemu_version_at_least("10.0", 8, 2));
    assert_false(qemu_version_at_least("8.1.9", 8, 2));
    assert_false(qemu_version_at_least("7.2.22", 8, 2));
    assert_false(qemu_version_at_least("", 8, 2));
    assert_false(qemu_version_at_least("x", 8, 2));
}

static void test_host_tsc(void **state) {
    uint64_t a = host_tsc_khz(), b = host_tsc_khz();
    (void)state;
    if (a == 0 || b == 0)
        return; /* no TSC to rely on here */
    /* Two measurements agree within 100 ppm; a guest's clock is as good as that. */
    assert_in_range(a, b - b / 10000, b + b / 10000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_boot, teardown),
        cmocka_unit_test_teardown(test_emulated_vcpus, teardown),
        cmocka_unit_test_teardown(test_files_by_preload, teardown),
        cmocka_unit_test_teardown(test_restore_by_old, teardown),
        cmocka_unit_test_teardown(test_restore_by_option, teardown),
        cmocka_unit_test_teardown(test_private_boot, teardown),
        cmocka_unit_test_teardown(test_acpi_profile, teardown),
        cmocka_unit_test_teardown(test_kvm, teardown),
        cmocka_unit_test_teardown(test_devices_never_change, teardown),
        cmocka_unit_test_teardown(test_confinement, teardown),
        cmocka_unit_test_teardown(test_refuses_what_could_smuggle_options, teardown),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_host_tsc),
    };
    return cmocka_run_group_tests_name("qemu_args", tests, NULL, NULL);
}
