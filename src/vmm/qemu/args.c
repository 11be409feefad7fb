/* SPDX-License-Identifier: Apache-2.0 */
/*
 * QEMU's command line, made from a struct machine and nothing else. One machine (microvm) with one fixed list of devices:
 * a snapshot only loads into the list it was taken with. Whoever changes it raises MACHINE_PROFILE (node/vm_request.c).
 *
 *   virtio-blk disk0 (root), virtio-blk disk1 (reserved, 1 MiB of nothing), virtio-net on the tap, virtio-serial with
 *   the port space.0, virtio-rng, one ISA serial port as console.
 *
 * A restore gets neither kernel nor initrd: RAM already holds them, the machine never resets (-no-reboot), and QEMU
 * would keep a private copy of both per VM (14 MiB with the stock kernel).
 */
#include "base/text.h"
#include "vmm/preload_wire.h"
#include "vmm/qemu/qemu.h"
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Bound of TCG's translation cache: QEMU's default would grow to an eighth of the guest's RAM, at least 32 MiB. */
#define QEMU_TB_SIZE_MIB 64

/* What differs by kernel profile: with ACPI the devices are found in its tables, without it on the command line. */
static const struct profile {
    bool acpi;
    const char *machine;
    const char *append;
} profiles[] = {
    {false, "microvm,acpi=off", "console=ttyS0 quiet panic=-1 reboot=t tsc=reliable"},
    {true, "microvm,acpi=on", "console=ttyS0 quiet panic=-1 reboot=t tsc=reliable mitigations=off psi=0 nowatchdog"},
};

static const struct accelerator {
    const char *name;
    const char *option;
    const char *cpu_model;
    const char *append; /* to the kernel's command line */
} accelerators[] = {
    /* Emulation keeps translated code by virtual address, so with randomised addresses every exec translates the loader and
     * the C library anew: 36 ms of processor time for /bin/true instead of 14. The boundary is the VM, not its ASLR.
     * String instructions are slower emulated than the loops the C library falls back to. */
    {"tcg", "tcg", "max,-erms,-fsrm", " norandmaps"},
    {"kvm", "kvm", "host", ""},
};

void vmm_args_done(struct vmm_args *args) {
    for (size_t i = 0; i < args->argc; i++)
        free(args->argv[i]);
    for (size_t i = 0; i < args->n_env; i++)
        free(args->env[i]);
    *args = (struct vmm_args){0};
}

/* Decimal digits at *s, which moves behind them; false when there are none or too many. */
static bool take_number(const char **s, unsigned *ret) {
    size_t n = strspn(*s, "0123456789");
    *ret = 0;
    for (size_t i = 0; i < n && n <= 4; i++)
        *ret = *ret * 10 + (unsigned)((*s)[i] - '0');
    *s += n;
    return n > 0 && n <= 4;
}

bool qemu_version_at_least(const char *version, unsigned major, unsigned minor) {
    unsigned have_major, have_minor;
    if (!take_number(&version, &have_major) || *version++ != '.' || !take_number(&version, &have_minor))
        return false;
    return have_major > major || (have_major == major && have_minor >= minor);
}

/* Values that go into comma-separated options: nothing that would end one and begin another. */
static bool is_plain(const char *s, const char *more) {
    if (!*s)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr(more, *s))
            return false;
    return true;
}

static int machine_check(const struct machine *m, struct sp_error *err) {
    if (!is_plain(m->id, "_-"))
        return sp_error_field(err, SP_E_INVALID, "id", "must be letters, digits, _ and -");
    if (m->binary[0] != '/')
        return sp_error_field(err, SP_E_INVALID, "qemu", "must be an absolute path");
    if (m->vm_dir[0] != '/' || !is_plain(m->vm_dir, "/._-"))
        return sp_error_field(err, SP_E_INVALID, "vm_dir", "must be an absolute path of plain characters");
    if (m->cpu_model && *m->cpu_model && !is_plain(m->cpu_model, "_.,=+-"))
        return sp_error_field(err, SP_E_INVALID, "cpu_model", "must be plain characters");
    if (m->vcpus < 1 || m->memory_mib < 1)
        return sp_error_field(err, SP_E_INVALID, "vcpus", "a machine has at least one vCPU and one MiB");
    return 0;
}

/* Out of memory and a full vector both end in `failed`, checked once. */
struct builder {
    struct vmm_args *args;
    bool failed;
};

static char *builder_text(struct builder *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static char *builder_text(struct builder *b, const char *fmt, va_list ap) {
    char *s = NULL;
    if (vasprintf(&s, fmt, ap) < 0) {
        b->failed = true;
        return NULL;
    }
    return s;
}

static void add(struct builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct builder *b, const char *fmt, ...) {
    va_list ap;
    if (b->args->argc >= VMM_ARGS_MAX) {
        b->failed = true;
        return;
    }
    va_start(ap, fmt);
    b->args->argv[b->args->argc] = builder_text(b, fmt, ap);
    va_end(ap);
    b->args->argc += b->args->argv[b->args->argc] != NULL;
}

static void add_env(struct builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_env(struct builder *b, const char *fmt, ...) {
    va_list ap;
    if (b->args->n_env >= VMM_ENV_MAX) {
        b->failed = true;
        return;
    }
    va_start(ap, fmt);
    b->args->env[b->args->n_env] = builder_text(b, fmt, ap);
    va_end(ap);
    b->args->n_env += b->args->env[b->args->n_env] != NULL;
}

static void add_option(struct builder *b, const char *option, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void add_option(struct builder *b, const char *option, const char *fmt, ...) {
    va_list ap;
    char *value;
    add(b, "%s", option);
    va_start(ap, fmt);
    value = builder_text(b, fmt, ap);
    va_end(ap);
    if (value)
        add(b, "%s", value);
    free(value);
}

/* Several vCPUs of an older QEMU take turns: with a thread each, one may go on forever with a translation of code that
 * another was just writing (docs/decisions/0013). */
static bool is_threaded(const struct machine *m) {
    return m->vcpus == 1 || qemu_version_at_least(m->version, 8, 1);
}

static void add_machine(struct builder *b, const struct machine *m, enum vmm_purpose purpose,
                        const struct profile *profile, const struct accelerator *accelerator) {
    /* suppress-vmdesc: newer versions append a description to a device state that older ones don't expect. */
    add_option(b, "-machine", "%s,memory-backend=ram0,dump-guest-core=off,mem-merge=off,suppress-vmdesc=on",
               profile->machine);
    add(b, "-accel");
    if (strcmp(accelerator->name, "tcg") == 0)
        add(b, "%s,thread=%s,tb-size=%u", accelerator->option, is_threaded(m) ? "multi" : "single", QEMU_TB_SIZE_MIB);
    else
        add(b, "%s", accelerator->option);
    add_option(b, "-cpu", "%s", m->cpu_model && *m->cpu_model ? m->cpu_model : accelerator->cpu_model);
    add_option(b, "-smp", "cpus=%u,maxcpus=%u", m->vcpus, m->vcpus);
    add_option(b, "-m", "size=%uM", m->memory_mib);
    /* A template's boot writes through to the file; every other VM maps its file privately and must not hold it writable:
     * by option where there is one, else by the preload. */
    add_option(b, "-object", "memory-backend-file,id=ram0,size=%uM,mem-path=%s/memory,share=%s,dump=off,merge=off%s",
               m->memory_mib, m->vm_dir, purpose == VMM_BOOT ? "on" : "off",
               purpose != VMM_BOOT && qemu_version_at_least(m->version, 8, 2) ? ",readonly=on,rom=off" : "");
}

static void add_process(struct builder *b, const struct machine *m) {
    add_option(b, "-name", "%s", m->id);
    add(b, "-nodefaults");
    add(b, "-no-user-config");
    add_option(b, "-display", "%s", "none");
    add(b, "-no-reboot");
    add_option(b, "-sandbox", "%s", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    /* Without it the device state would carry the machine's name and be refused by a renamed but equal one. */
    add_option(b, "-global", "%s", "migration.send-configuration=off");
    add_option(b, "-chardev", "socket,id=qmp0,fd=%d", VMM_FD_CONTROL);
    add_option(b, "-mon", "%s", "chardev=qmp0,mode=control");
}

static void add_devices(struct builder *b, const struct machine *m) {
    add_option(b, "-chardev", "socket,id=console0,fd=%d", VMM_FD_CONSOLE);
    add_option(b, "-serial", "%s", "chardev:console0");
    /* Host page cache: clones share it, the guest's flush is an fdatasync. A full host disk stops the VM (werror). */
    add_option(
        b, "-blockdev",
        "driver=raw,node-name=disk0,discard=unmap,detect-zeroes=unmap,file.driver=file,file.filename=%s/disk.img,"
        "file.locking=off,file.aio=threads,file.discard=unmap",
        m->vm_dir);
    add_option(b, "-device", "%s", "virtio-blk-device,drive=disk0,num-queues=1,werror=enospc,rerror=report");
    add_option(b, "-blockdev", "%s", "driver=null-co,node-name=disk1,size=1048576,read-zeroes=on,read-only=on");
    add_option(b, "-device", "%s", "virtio-blk-device,drive=disk1,num-queues=1");
    add_option(b, "-netdev", "tap,id=net0,fd=%d,vhost=off", VMM_FD_TAP);
    add_option(b, "-device", "%s", "virtio-net-device,netdev=net0,mac=02:53:50:41:43:45");
    add_option(b, "-device", "%s", "virtio-serial-device,max_ports=2");
    add_option(b, "-chardev", "socket,id=guest0,fd=%d", VMM_FD_GUEST);
    add_option(b, "-device", "%s", "virtserialport,nr=1,chardev=guest0,name=space.0");
    add_option(b, "-object", "%s", "rng-builtin,id=rng0");
    add_option(b, "-device", "%s", "virtio-rng-device,rng=rng0");
}

static void add_boot(struct builder *b, const struct machine *m, const struct profile *profile,
                     const struct accelerator *accelerator) {
    add_option(b, "-kernel", "%s/kernel", m->vm_dir);
    add_option(b, "-initrd", "%s/initrd", m->vm_dir);
    add(b, "-append");
    if (m->tsc_khz > 0)
        add(b, "%s%s tsc_early_khz=%llu", profile->append, accelerator->append, (unsigned long long)m->tsc_khz);
    else
        add(b, "%s%s", profile->append, accelerator->append);
}

static void add_restore(struct builder *b) {
    add_option(b, "-incoming", "%s", "defer");
    add(b, "-S"); /* loaded is not started: cont decides */
}

/* The two paths of the command line are names only: what they stand for comes by descriptor (preload_wire.h). */
static void add_environment(struct builder *b, const struct machine *m) {
    add_env(b, "LD_PRELOAD=%s/preload.so", m->vm_dir);
    add_env(b, PRELOAD_ENV_MEMORY "=%s/memory", m->vm_dir);
    add_env(b, PRELOAD_ENV_DISK "=%s/disk.img", m->vm_dir);
    add_env(b, PRELOAD_ENV_SOCKET "=%d", VMM_FD_FILES);
    /* One heap, of huge pages where the host has them: half of what QEMU's start costs is page faults, and a third of
     * those its heap's (measured: 1,300 of 4,000, some 20 ms). Arenas per thread would cost memory and gain nothing. */
    add_env(b, "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1");
}

int qemu_build_args(const struct machine *m, enum vmm_purpose purpose, struct vmm_args *ret, struct sp_error *err) {
    const struct accelerator *accelerator = NULL;
    struct builder b = {.args = ret};
    int r;

    *ret = (struct vmm_args){0};
    r = machine_check(m, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(accelerators); i++)
        if (strcmp(accelerators[i].name, m->accelerator) == 0)
            accelerator = &accelerators[i];
    if (!accelerator)
        return sp_error_field(err, SP_E_INVALID, "accelerator", "must be tcg or kvm");

    add(&b, "%s", m->binary);
    add_machine(&b, m, purpose, &profiles[m->acpi], accelerator);
    add_process(&b, m);
    add_devices(&b, m);
    if (purpose != VMM_RESTORE)
        add_boot(&b, m, &profiles[m->acpi], accelerator);
    else
        add_restore(&b);
    add_environment(&b, m);
    if (b.failed) {
        vmm_args_done(ret);
        return sp_error_set(err, SP_E_INTERNAL, "QEMU's command line does not fit");
    }
    return 0;
}
