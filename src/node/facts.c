/* SPDX-License-Identifier: Apache-2.0 */
/* Discovery at start: files of the host, the QEMU binary, the kernels' descriptions. */
#include "node/facts.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/log.h"
#include "base/text.h"
#include "node/capacity.h"
#include "vmm/driver.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define PROBE_MS 20000u
#define KERNEL_JSON_MAX 65536u

static const char *const profiles[FACTS_KERNELS_MAX] = {"lean", "stock"}; /* best first */

static int file_sha256(const char *path, char dst[SHA256_HEX_SIZE], struct sp_error *err) {
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sp_error_errno(err, errno, "open", "%s", path);
    return sha256_fd_hex(fd, dst, err);
}

int facts_kernel_parse(const char *text, size_t len, const char *profile, struct facts_kernel *ret,
                       struct sp_error *err) {
    _cleanup_json_ json_t *obj = NULL;
    struct facts_kernel k = {0};
    const char *name, *version, *sha256;
    if (json_parse(text, len, KERNEL_JSON_MAX, &obj, err) < 0 || !json_is_object(obj) ||
        json_get_string(obj, "", "profile", 1, sizeof(k.profile) - 1, &name, err) < 0 ||
        json_get_string(obj, "", "version", 1, sizeof(k.version) - 1, &version, err) < 0 ||
        json_get_string(obj, "", "sha256", 64, 64, &sha256, err) < 0 ||
        json_get_opt_bool(obj, "", "acpi", false, &k.acpi, err) < 0)
        return sp_error_wrap(err, "kernel.json of %s", profile);
    if (strcmp(name, profile) != 0)
        return sp_error_field(err, SP_E_INVALID, "profile", "kernel.json of %s describes another profile", profile);
    (void)text_copy(k.profile, sizeof(k.profile), name);
    (void)text_copy(k.version, sizeof(k.version), version);
    (void)text_copy(k.sha256, sizeof(k.sha256), sha256);
    *ret = k;
    return 0;
}

static int load_kernel(const struct settings *s, const char *profile, struct facts_kernel *ret, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    char path[512];
    size_t len;
    int r;
    if (!text_printf(path, sizeof(path), "%s/%s/kernel.json", s->kernel_dir, profile))
        return sp_error_set(err, SP_E_INVALID, "kernel_dir is too long");
    if ((r = file_read(AT_FDCWD, path, KERNEL_JSON_MAX, &text, &len, err)) < 0 ||
        (r = facts_kernel_parse(text, len, profile, ret, err)) < 0)
        return r;
    (void)text_printf(path, sizeof(path), "%s/%s/initrd.cpio", s->kernel_dir, profile);
    return file_sha256(path, ret->initrd_sha256, err);
}

/* Every profile that is there; the one the settings ask for must be. */
static int load_kernels(const struct settings *s, struct facts *f, struct sp_error *err) {
    bool automatic = strcmp(s->kernel, "auto") == 0;
    struct sp_error why = {0}, last = {0};
    for (size_t i = 0; i < ARRAY_SIZE(profiles); i++) {
        struct facts_kernel *k = &f->kernels[f->n_kernels];
        if (load_kernel(s, profiles[i], k, &why) < 0) {
            log_error(LOG_L_INFO, "kernel_left_out", &why, "profile", profiles[i], NULL);
            if (automatic || strcmp(s->kernel, profiles[i]) == 0)
                last = why;
            continue;
        }
        f->n_kernels++;
        if (!f->kernel && (automatic || strcmp(s->kernel, k->profile) == 0))
            f->kernel = k;
    }
    if (f->kernel)
        return 0;
    if (err)
        *err = last;
    return sp_error_wrap(err, "no %s guest kernel in %s", automatic ? "usable" : s->kernel, s->kernel_dir);
}

static int load_host(struct facts *f, struct sp_error *err) {
    _cleanup_free_ char *boot_id = NULL;
    size_t len;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int r = file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 128, &boot_id, &len, err);
    if (r < 0)
        return r;
    boot_id[strcspn(boot_id, "\n")] = '\0';
    (void)text_copy(f->boot_id, sizeof(f->boot_id), boot_id);
    if (gethostname(f->hostname, sizeof(f->hostname)) < 0)
        return sp_error_errno(err, errno, "gethostname", "host");
    f->hostname[sizeof(f->hostname) - 1] = '\0';
    f->cpus = cpus > 0 ? (unsigned)cpus : 1;
    f->tsc_khz = host_tsc_khz();
    return capacity_meminfo("MemTotal:", &f->memory_total_mib, err);
}

int facts_load(const struct settings *s, struct facts *ret, struct sp_error *err) {
    struct facts f = {0};
    struct vmm_probe probe = {0};
    int r;
    if ((r = load_host(&f, err)) < 0 || (r = qemu_driver.probe(s->qemu, deadline_in_ms(PROBE_MS), &probe, err)) < 0 ||
        (r = load_kernels(s, &f, err)) < 0)
        return r;
    (void)text_copy(f.qemu_version, sizeof(f.qemu_version), probe.version);
    f.qemu_kvm = probe.kvm;
    f.qemu_tcg = probe.tcg;
    *ret = f;
    ret->kernel = &ret->kernels[f.kernel - f.kernels];
    return 0;
}

/* /dev/kvm is the broker's and the VM's business: whether this process may open it says nothing. */
int facts_choose_accelerator(const struct settings *s, const struct facts *f, bool broker_kvm, bool broker_tcg,
                             const char **ret, struct sp_error *err) {
    bool tcg = f->qemu_tcg && broker_tcg, automatic = strcmp(s->accelerator, "auto") == 0;
    if (broker_kvm && (automatic || strcmp(s->accelerator, "kvm") == 0))
        *ret = "kvm";
    else if (tcg && (automatic || strcmp(s->accelerator, "tcg") == 0))
        *ret = "tcg";
    else
        return sp_error_field(err, SP_E_UNSUPPORTED, "accelerator", "accelerator %s is not to be had on this host",
                              s->accelerator);
    return 0;
}

json_t *facts_register(const struct settings *s, const struct facts *f, const char *accelerator, json_t *capacity) {
    json_t *kernels = json_array();
    char vmm[48];
    (void)text_printf(vmm, sizeof(vmm), "qemu %s", f->qemu_version);
    for (size_t i = 0; i < f->n_kernels; i++)
        (void)json_array_append_new(kernels, json_pack("{s:s, s:s, s:s}", "profile", f->kernels[i].profile, "version",
                                                       f->kernels[i].version, "sha256", f->kernels[i].sha256));
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:s}", "boot_id", f->boot_id, "hostname", f->hostname,
                     "version", SPACE_VERSION, "accelerator", accelerator, "vmm", vmm, "kernels", kernels, "capacity",
                     capacity, "gateway_url", s->gateway_url);
}
