/* SPDX-License-Identifier: Apache-2.0 */
/* vm.json: written and read back with the same strictness as a peer's message. */
#include "broker/record.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/layout.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define RECORD_FORMAT 2 /* 1 had no base, no cgroup and no spares */
#define RECORD_MAX 4096
#define RECORD_TEMP ".vm.json.new"

int vm_record_write(int dirfd, const struct vm_record *rec, struct sp_error *err) {
    _cleanup_json_ json_t *obj =
        json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:b, s:b, s:I, s:I, "
                  "s:I, s:I, s:s}",
                  "format", RECORD_FORMAT, "id", rec->id, "mode", request_mode_names[rec->mode], "kernel",
                  request_kernel_names[rec->kernel], "accelerator", request_accelerator_names[rec->accelerator],
                  "template", rec->template, "snapshot", rec->snapshot, "base", rec->base, "disk_base", rec->disk_base,
                  "cgroup", rec->cgroup, "engine", rec->engine, "qemu_version", rec->qemu_version, "vcpus",
                  (json_int_t)rec->vcpus, "memory_mib", (json_int_t)rec->memory_mib, "uid", (json_int_t)rec->uid,
                  "started", rec->started, "spoiled", rec->spoiled, "pid", (json_int_t)rec->process.pid, "start_time",
                  (json_int_t)rec->process.start_time, "vmm_pid", (json_int_t)rec->vmm_pid, "created_realtime_ns",
                  (json_int_t)rec->created_ns, "boot_id", rec->boot_id);
    _cleanup_free_ char *text = NULL;
    _cleanup_close_ int fd = -1;
    int r;

    if (!obj)
        return sp_error_set(err, SP_E_INTERNAL, "cannot encode the record of %s", rec->id);
    text = json_print(obj);
    fd = openat(dirfd, RECORD_TEMP, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return sp_error_errno(err, errno, "create", "record of %s", rec->id);
    r = fd_write_all(fd, text, strlen(text), err);
    if (r == 0 && renameat(dirfd, RECORD_TEMP, dirfd, LAYOUT_RECORD) < 0)
        r = sp_error_errno(err, errno, "rename", "record of %s", rec->id);
    return r;
}

static int get_choice(const json_t *obj, const char *key, const char *const *names, unsigned *ret,
                      struct sp_error *err) {
    const char *text;
    int r = json_get_string(obj, "", key, 1, 32, &text, err);
    for (unsigned i = 0; r == 0 && names[i]; i++)
        if (strcmp(names[i], text) == 0) {
            *ret = i;
            return 0;
        }
    return r < 0 ? r : sp_error_field(err, SP_E_INVALID, key, "unknown %s", key);
}

static int get_copy(const json_t *obj, const char *key, size_t min, char *dst, size_t size, struct sp_error *err) {
    const char *text;
    int r = json_get_string(obj, "", key, min, size - 1, &text, err);
    if (r == 0 && !text_copy(dst, size, text))
        r = sp_error_field(err, SP_E_INVALID, key, "%s is too long", key);
    return r;
}

static int get_opt_copy(const json_t *obj, const char *key, const char *fallback, char *dst, size_t size,
                        struct sp_error *err) {
    const char *text;
    int r = json_get_opt_string(obj, "", key, 0, size - 1, fallback, &text, err);
    if (r == 0 && !text_copy(dst, size, text))
        r = sp_error_field(err, SP_E_INVALID, key, "%s is too long", key);
    return r;
}

static int decode_texts(const json_t *obj, struct vm_record *rec, struct sp_error *err) {
    unsigned mode = 0, kernel = 0, accelerator = 0;
    int r = get_copy(obj, "id", 1, rec->id, sizeof(rec->id), err);
    if (r == 0)
        r = get_choice(obj, "mode", request_mode_names, &mode, err);
    if (r == 0)
        r = get_choice(obj, "kernel", request_kernel_names, &kernel, err);
    if (r == 0)
        r = get_choice(obj, "accelerator", request_accelerator_names, &accelerator, err);
    if (r == 0)
        r = get_copy(obj, "template", 0, rec->template, sizeof(rec->template), err);
    if (r == 0)
        r = get_copy(obj, "snapshot", 0, rec->snapshot, sizeof(rec->snapshot), err);
    if (r == 0)
        r = get_opt_copy(obj, "base", rec->snapshot, rec->base, sizeof(rec->base), err);
    if (r == 0)
        r = get_opt_copy(obj, "disk_base", "", rec->disk_base, sizeof(rec->disk_base), err);
    if (r == 0)
        r = get_opt_copy(obj, "cgroup", rec->id, rec->cgroup, sizeof(rec->cgroup), err);
    if (r == 0)
        r = get_opt_copy(obj, "engine", "", rec->engine, sizeof(rec->engine), err);
    if (r == 0)
        r = get_opt_copy(obj, "qemu_version", "", rec->qemu_version, sizeof(rec->qemu_version), err);
    if (r == 0)
        r = get_copy(obj, "boot_id", 1, rec->boot_id, sizeof(rec->boot_id), err);
    rec->mode = (enum request_mode)mode;
    rec->kernel = (enum request_kernel)kernel;
    rec->accelerator = (enum request_accelerator)accelerator;
    return r;
}

static int decode_numbers(const json_t *obj, struct vm_record *rec, struct sp_error *err) {
    uint64_t format = 0, vcpus = 0, memory = 0, uid = 0, pid = 0, vmm_pid = 0;
    const struct {
        const char *key;
        uint64_t max;
        uint64_t *value;
    } numbers[] = {{"format", RECORD_FORMAT, &format},
                   {"vcpus", UINT32_MAX, &vcpus},
                   {"memory_mib", UINT32_MAX, &memory},
                   {"uid", UINT32_MAX - 1, &uid},
                   {"pid", INT32_MAX, &pid},
                   {"vmm_pid", INT32_MAX, &vmm_pid},
                   {"start_time", INT64_MAX, &rec->process.start_time},
                   {"created_realtime_ns", INT64_MAX, &rec->created_ns}};
    int r = 0;

    for (size_t i = 0; i < ARRAY_SIZE(numbers) && r == 0; i++)
        r = json_get_u64(obj, "", numbers[i].key, 0, numbers[i].max, numbers[i].value, err);
    if (r == 0)
        r = json_get_opt_bool(obj, "", "started", false, &rec->started, err);
    if (r == 0)
        r = json_get_opt_bool(obj, "", "spoiled", false, &rec->spoiled, err);
    rec->vcpus = (unsigned)vcpus;
    rec->memory_mib = (unsigned)memory;
    rec->uid = (uid_t)uid;
    rec->process.pid = (pid_t)pid;
    rec->vmm_pid = (pid_t)vmm_pid;
    return r;
}

int vm_record_read(int dirfd, const char *id, struct vm_record *ret, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    _cleanup_json_ json_t *obj = NULL;
    struct vm_record rec = {0};
    size_t len;
    int r = file_read(dirfd, LAYOUT_RECORD, RECORD_MAX, &text, &len, err);

    if (r < 0)
        return r;
    r = json_parse(text, len, RECORD_MAX, &obj, err);
    if (r == 0)
        r = decode_texts(obj, &rec, err);
    if (r == 0)
        r = decode_numbers(obj, &rec, err);
    if (r == 0 && (!request_id_is_valid(rec.id) || !request_id_is_valid(rec.cgroup)))
        r = sp_error_set(err, SP_E_CORRUPT, "its id or its control group is not that of a VM");
    if (r == 0 && rec.mode != MODE_BLANK && strlen(rec.template) != SHA256_HEX_SIZE - 1)
        r = sp_error_set(err, SP_E_CORRUPT, "it names no template");
    if (r == 0 && strcmp(rec.id, id) != 0 &&
        !(strcmp(rec.cgroup, id) == 0 && id_is_valid(id, "spr") && id_is_valid(rec.id, "sbx")))
        r = sp_error_set(err, SP_E_CORRUPT, "it is the record of %s", rec.id);
    if (r < 0) {
        const char *why = err ? err->text : "";
        return sp_error_set(err, SP_E_CORRUPT, "record of %s: %s", id, why);
    }
    *ret = rec;
    return 0;
}
