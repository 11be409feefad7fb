/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring and admission. */
#include "node/capacity.h"
#include "base/fdio.h"
#include "base/text.h"
#include "vm/vm_config.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>

#define MEMINFO_MAX 65536u

int capacity_meminfo_parse(const char *text, const char *name, uint64_t *ret_mib, struct sp_error *err) {
    const char *line = text;
    while (line && !text_starts_with(line, name)) {
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    if (line) {
        char digits[24] = "";
        uint64_t kib;
        line += strlen(name);
        line += strspn(line, " ");
        size_t len = strspn(line, "0123456789");
        if (len < sizeof(digits)) {
            memcpy(digits, line, len);
            digits[len] = '\0';
        }
        if (text_to_u64(digits, 0, UINT64_MAX, &kib) && text_starts_with(line + len, " kB")) {
            *ret_mib = kib / 1024;
            return 0;
        }
    }
    return sp_error_set(err, SP_E_INTERNAL, "/proc/meminfo does not tell %s", name);
}

int capacity_meminfo(const char *name, uint64_t *ret_mib, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r = file_read(AT_FDCWD, "/proc/meminfo", MEMINFO_MAX, &text, &len, err);
    return r < 0 ? r : capacity_meminfo_parse(text, name, ret_mib, err);
}

int capacity_measure(const struct settings *s, unsigned cpus, uint64_t memory_total_mib, struct capacity *ret,
                     struct sp_error *err) {
    struct capacity c = {.max_sandboxes = (unsigned)s->max_sandboxes};
    unsigned vcpus = cpus * CAPACITY_VCPU_OVERCOMMIT;
    struct statvfs store;
    char path[SETTINGS_PATH_MAX + 16];
    int r = capacity_meminfo("MemAvailable:", &c.memory_available_mib, err);
    if (r < 0)
        return r;
    (void)text_printf(path, sizeof(path), "%s/store", s->state_dir);
    if (statvfs(path, &store) < 0)
        return sp_error_errno(err, errno, "statvfs", "%s", path);
    c.disk_free_mib = (uint64_t)store.f_bavail * store.f_frsize / (1024 * 1024);
    c.vcpus = vcpus > VM_CONFIG_VCPUS_MAX ? VM_CONFIG_VCPUS_MAX : vcpus;
    c.memory_mib = memory_total_mib > s->memory_reserve_mib ? memory_total_mib - s->memory_reserve_mib : 0;
    *ret = c;
    return 0;
}

enum failure capacity_admit(const struct capacity *c, const struct settings *s, const struct capacity_use *use,
                            unsigned vcpus, unsigned memory_mib, char *message, size_t size) {
    uint64_t need = (uint64_t)memory_mib + CAPACITY_VM_OVERHEAD_MIB;
    if (use->sandboxes >= c->max_sandboxes)
        (void)text_printf(message, size, "the node holds %u sandboxes, as many as it may", use->sandboxes);
    else if (vcpus > c->vcpus)
        (void)text_printf(message, size, "%u vCPUs are wanted, the node gives at most %u", vcpus, c->vcpus);
    else if (need > c->memory_mib || use->memory_mib > c->memory_mib - need)
        (void)text_printf(message, size, "%u MiB are wanted, %" PRIu64 " of %" PRIu64 " MiB are promised already",
                          memory_mib, use->memory_mib, c->memory_mib);
    else if (c->memory_available_mib < s->memory_reserve_mib + need)
        (void)text_printf(message, size,
                          "%u MiB are wanted, the host has %" PRIu64 " MiB left, %" PRIu64 " of them reserved",
                          memory_mib, c->memory_available_mib, s->memory_reserve_mib);
    else if (c->disk_free_mib < s->disk_reserve_mib) {
        (void)text_printf(message, size, "the store has %" PRIu64 " MiB left, the reserve is %" PRIu64 " MiB",
                          c->disk_free_mib, s->disk_reserve_mib);
        return FAILURE_HOST_DISK_FULL;
    } else
        return FAILURE_NONE;
    return FAILURE_NO_CAPACITY;
}

json_t *capacity_json(const struct capacity *c, const struct settings *s) {
    uint64_t disk = c->disk_free_mib > s->disk_reserve_mib ? c->disk_free_mib - s->disk_reserve_mib : 0;
    return json_pack("{s:i, s:I, s:I, s:i}", "vcpus", (int)c->vcpus, "memory_mib", (json_int_t)c->memory_mib,
                     "disk_mib", (json_int_t)disk, "max_sandboxes", (int)c->max_sandboxes);
}
