/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: a record is read back as it was written, or refused; names in the store are told apart. Faults are parsed. */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "broker/fault.h"
#include "broker/record.h"
#include "broker/snapshot.h"
#include "broker/vm_table.h"
#include "unit.h"
#include <sys/stat.h>

static struct vm_record sample(void) {
    struct vm_record rec = {.mode = MODE_TEMPLATE_BOOT,
                            .kernel = KERNEL_LEAN,
                            .accelerator = ACCELERATOR_KVM,
                            .vcpus = 3,
                            .memory_mib = 512,
                            .uid = 720099,
                            .started = true,
                            .process = {.pid = 4711, .start_time = 1234567890123},
                            .vmm_pid = 4712,
                            .created_ns = 1790000000123456789};
    id_generate(rec.id, "tpb");
    memset(rec.template, 'a', sizeof(rec.template) - 1);
    memcpy(rec.cgroup, rec.id, sizeof(rec.cgroup));
    (void)text_copy(rec.boot_id, sizeof(rec.boot_id), "b007b007-0000-4000-8000-000000000000");
    return rec;
}

static int open_dir(void) {
    int fd = open(unit_dir_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void test_round_trip(void **state) {
    _cleanup_close_ int dir = open_dir();
    struct vm_record rec = sample(), got;
    (void)state;
    assert_ok(vm_record_write(dir, &rec, &unit_error));
    memset(&got, 0, sizeof(got));
    assert_ok(vm_record_read(dir, rec.id, &got, &unit_error));
    assert_string_equal(got.id, rec.id);
    assert_string_equal(got.template, rec.template);
    assert_string_equal(got.snapshot, "");
    assert_string_equal(got.boot_id, rec.boot_id);
    assert_true(got.mode == rec.mode && got.kernel == rec.kernel && got.accelerator == rec.accelerator);
    assert_true(got.vcpus == 3 && got.memory_mib == 512 && got.uid == rec.uid && got.started);
    assert_true(got.process.pid == 4711 && got.process.start_time == rec.process.start_time && got.vmm_pid == 4712);
    assert_true(got.created_ns == rec.created_ns);
    assert_string_equal(got.base, "");
    assert_string_equal(got.disk_base, "");
    assert_string_equal(got.cgroup, rec.id);
    assert_false(got.spoiled);
    memset(rec.snapshot, 'b', sizeof(rec.snapshot) - 1); /* written over the old one */
    memset(rec.base, 'c', sizeof(rec.base) - 1);
    memset(rec.disk_base, 'd', sizeof(rec.disk_base) - 1);
    rec.spoiled = true;
    assert_ok(vm_record_write(dir, &rec, &unit_error));
    assert_ok(vm_record_read(dir, rec.id, &got, &unit_error));
    assert_string_equal(got.snapshot, rec.snapshot);
    assert_string_equal(got.base, rec.base);
    assert_string_equal(got.disk_base, rec.disk_base);
    assert_true(got.spoiled);
}

/* A blank names no template; a bound spare keeps its group and is found under either name. */
static void test_spares(void **state) {
    _cleanup_close_ int dir = open_dir();
    struct vm_record rec = sample(), got;
    char spare[ID_SIZE];
    (void)state;
    id_generate(spare, "spr");
    rec.mode = MODE_BLANK;
    memset(rec.template, 0, sizeof(rec.template));
    memcpy(rec.id, spare, sizeof(rec.id));
    memcpy(rec.cgroup, spare, sizeof(rec.cgroup));
    assert_ok(vm_record_write(dir, &rec, &unit_error));
    assert_ok(vm_record_read(dir, spare, &got, &unit_error));
    rec.mode = MODE_CLONE;
    assert_ok(vm_record_write(dir, &rec, &unit_error));
    assert_fails(vm_record_read(dir, spare, &got, &unit_error), SP_E_CORRUPT); /* a clone of nothing */
    memset(rec.template, 'a', sizeof(rec.template) - 1);
    id_generate(rec.id, "sbx");
    assert_ok(vm_record_write(dir, &rec, &unit_error));
    assert_ok(vm_record_read(dir, spare, &got, &unit_error));
    assert_string_equal(got.id, rec.id);
    assert_ok(vm_record_read(dir, rec.id, &got, &unit_error));
    assert_string_equal(got.cgroup, spare);
}

/* Of the broker before there were spares: its VMs outlive it. */
static void test_older_record(void **state) {
    _cleanup_close_ int dir = open_dir(), fd = -1;
    struct vm_record got;
    char text[1024];
    int n;
    (void)state;
    n = snprintf(text, sizeof(text),
                 "{\"format\":1,\"id\":\"sbx_0123456789abcdefghjkmnpqrs\",\"mode\":\"clone\",\"kernel\":\"lean\","
                 "\"accelerator\":\"tcg\",\"template\":\"%064d\",\"snapshot\":\"%032d\",\"vcpus\":1,\"memory_mib\":64,"
                 "\"uid\":7,\"started\":true,\"pid\":1,\"start_time\":2,\"vmm_pid\":3,\"created_realtime_ns\":4,"
                 "\"boot_id\":\"b\"}",
                 0, 0);
    fd = openat(dir, "vm.json", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_ok(fd_write_all(fd, text, (size_t)n, &unit_error));
    assert_ok(vm_record_read(dir, "sbx_0123456789abcdefghjkmnpqrs", &got, &unit_error));
    assert_string_equal(got.base, got.snapshot);
    assert_string_equal(got.cgroup, got.id);
}

/* Every prefix, and every single character replaced, is read without harm; what is accepted names the right VM. */
static void test_damaged(void **state) {
    _cleanup_close_ int dir = open_dir();
    _cleanup_free_ char *text = NULL;
    struct vm_record rec = sample(), got;
    size_t len;
    (void)state;
    assert_ok(vm_record_write(dir, &rec, &unit_error));
    assert_ok(file_read(dir, "vm.json", 4096, &text, &len, &unit_error));
    for (size_t cut = 0; cut < len; cut++) {
        _cleanup_close_ int fd = openat(dir, "vm.json", O_WRONLY | O_TRUNC | O_CLOEXEC);
        assert_ok(fd_write_all(fd, text, cut, &unit_error));
        assert_fails(vm_record_read(dir, rec.id, &got, &unit_error), SP_E_CORRUPT);
    }
    for (size_t at = 0; at < len; at++) {
        _cleanup_close_ int fd = openat(dir, "vm.json", O_WRONLY | O_TRUNC | O_CLOEXEC);
        char old = text[at];
        text[at] = '-';
        assert_ok(fd_write_all(fd, text, len, &unit_error));
        text[at] = old;
        if (vm_record_read(dir, rec.id, &got, NULL) == 0)
            assert_string_equal(got.id, rec.id);
    }
    assert_fails(vm_record_read(dir, "sbx_another", &got, &unit_error), SP_E_CORRUPT);
    assert_int_equal(unlinkat(dir, "vm.json", 0), 0);
    assert_true(vm_record_read(dir, rec.id, &got, &unit_error) < 0);
}

static void test_names_of_seals(void **state) {
    char name[SNAPSHOT_TEMP_SIZE], id[ID_SIZE], boot[ID_SIZE];
    const char *key = "0123456789abcdef0123456789abcdef";
    (void)state;
    id_generate(id, "tpb");
    snapshot_temp_name(name, key, id);
    assert_non_null(snapshot_temp_vm(name, boot));
    assert_string_equal(boot, id);
    static const char *const others[] = {"",
                                         ".",
                                         "..",
                                         "0123456789abcdef0123456789abcdef",
                                         "x.tmp",
                                         "x..tmp",
                                         "x.y.tmp",
                                         "x.tpb_0123456789abcdefghjkmnpqrs.tmpx",
                                         "x.tpb_0123456789abcdefghjkmnpqrs"};
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        assert_null(snapshot_temp_vm(others[i], boot));
}

static void test_table(void **state) {
    struct vm_table table = {0};
    struct vm *b = vm_table_add(&table, NULL, "sbx_b"), *a = vm_table_add(&table, NULL, "sbx_a");
    (void)state;
    assert_ptr_equal(table.first, a); /* ordered, for pages */
    assert_ptr_equal(vm_table_find(&table, "sbx_b"), b);
    assert_null(vm_table_find(&table, "sbx_c"));
    assert_int_equal(vm_table_free_uid(&table, 10, 12), 10);
    a->record.uid = 11;
    assert_int_equal(vm_table_free_uid(&table, 10, 12), 12); /* onwards, not back */
    b->record.uid = 12;
    assert_int_equal(vm_table_free_uid(&table, 10, 12), 10);
    vm_table_add(&table, NULL, "sbx_c")->record.uid = 10;
    assert_int_equal(vm_table_free_uid(&table, 10, 12), 0);
    (void)text_copy(a->record.snapshot, sizeof(a->record.snapshot), "o"); /* what it was started from, */
    (void)text_copy(a->record.base, sizeof(a->record.base), "s");         /* and its last snapshot */
    (void)text_copy(b->seal_key, sizeof(b->seal_key), "k");
    (void)text_copy(b->record.template, sizeof(b->record.template), "t");
    (void)text_copy(a->record.disk_base, sizeof(a->record.disk_base), "d");
    assert_false(vm_table_uses_snapshot(&table, "d")); /* only while it is read */
    a->phase = VM_SNAPSHOT;
    assert_true(vm_table_uses_snapshot(&table, "d"));
    a->phase = VM_KEPT;
    assert_true(vm_table_uses_snapshot(&table, "s") && vm_table_uses_snapshot(&table, "k"));
    assert_false(vm_table_uses_snapshot(&table, "t") || vm_table_uses_snapshot(&table, "o"));
    assert_true(vm_table_uses_template(&table, "t"));
    vm_table_drop(&table, a);
    assert_int_equal(table.n, 2);
    vm_table_clear(&table);
    assert_null(table.first);
}

/* A fault that a file names happens once, and the file says that it did. */
static void test_fault_file(void) {
    char path[600], spec[640];
    static char text[FAULT_FILE_SIZE] = "x:error,y:enospc";
    _cleanup_free_ char *after = NULL;
    size_t len;
    assert_true(text_printf(path, sizeof(path), "%s/fault", unit_dir_path) &&
                text_printf(spec, sizeof(spec), "@%s", path));
    assert_fails(fault_setup(spec, &unit_error), SP_E_NOT_FOUND);
    assert_ok(file_replace(AT_FDCWD, path, text, 20, 0600, &unit_error));
    assert_fails(fault_setup(spec, &unit_error), SP_E_INVALID);
    assert_ok(file_replace(AT_FDCWD, path, text, sizeof(text), 0600, &unit_error));
    assert_ok(fault_setup(spec, &unit_error));
    assert_ok(fault_point("a", &unit_error));
    assert_fails(fault_point("y", &unit_error), SP_E_NO_SPACE);
    assert_ok(fault_point("y", &unit_error));
    assert_ok(fault_point("x", &unit_error));
    assert_ok(file_read(AT_FDCWD, path, FAULT_FILE_SIZE, &after, &len, &unit_error));
    assert_int_equal(after[0], 0);
    assert_memory_equal(after + FAULT_LOG_AT + sizeof(uint64_t), "a\ny\ny\nx\n", 8);
}

static void test_faults(void **state) {
    static const char *const bad[] = {"x",         "x:",
                                      "x:explode", "x:sleep",
                                      "x:sleep=",  "x:error=x",
                                      "a:error,b", "1:kill,2:kill,3:kill,4:kill,5:kill,6:kill,7:kill,8:kill,9:kill"};
    (void)state;
    assert_ok(fault_point("a", &unit_error)); /* none set */
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_fails(fault_setup(bad[i], &unit_error), SP_E_INVALID);
    assert_ok(fault_setup("a:error,b:enospc,c:sleep=1", &unit_error));
    assert_fails(fault_point("a", &unit_error), SP_E_IO);
    assert_fails(fault_point("b", &unit_error), SP_E_NO_SPACE);
    assert_ok(fault_point("c", &unit_error));
    assert_ok(fault_point("d", &unit_error));
    assert_ok(fault_setup("", &unit_error));
    assert_ok(fault_point("a", &unit_error));
    test_fault_file();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_spares),         cmocka_unit_test(test_older_record),
        cmocka_unit_test(test_damaged),    cmocka_unit_test(test_names_of_seals), cmocka_unit_test(test_table),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, unit_temp_dir, unit_temp_dir_remove);
}
