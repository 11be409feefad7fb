/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this node is: host, VMM, kernels, clock; found once at start. What it has left is capacity.h. Together they are
 * what control is told at register.
 */
#pragma once
#include "base/digest.h"
#include "base/json.h"
#include "model/settings.h"

#define FACTS_KERNELS_MAX 2

struct facts_kernel {
    char profile[8]; /* "stock", "lean" */
    char version[64];
    char sha256[SHA256_HEX_SIZE];        /* of the kernel */
    char initrd_sha256[SHA256_HEX_SIZE]; /* of the initramfs with our agent */
    bool acpi;
};

struct facts {
    char boot_id[40];
    char hostname[65];
    unsigned cpus;
    uint64_t memory_total_mib;
    uint64_t tsc_khz;
    char qemu_version[32];
    char engine[SHA256_HEX_SIZE]; /* the broker's word: what new VMs run on; "" until it was heard */
    bool qemu_kvm, qemu_tcg;
    struct facts_kernel kernels[FACTS_KERNELS_MAX];
    size_t n_kernels;
    const struct facts_kernel *kernel; /* the one sandboxes get */
};

/* Takes up to a second (QEMU is run). Fails when there is no QEMU or not the kernel the settings ask for. */
int facts_load(const struct settings *s, struct facts *ret, struct sp_error *err);
/* "kvm" or "tcg", out of the settings, the VMM and what the broker found; SP_E_UNSUPPORTED when what is forced is not there. */
int facts_choose_accelerator(const struct settings *s, const struct facts *f, bool broker_kvm, bool broker_tcg,
                             const char **ret, struct sp_error *err);
/* Pure: kernel.json → *ret but the initrd's hash. */
int facts_kernel_parse(const char *text, size_t len, const char *profile, struct facts_kernel *ret,
                       struct sp_error *err);
/* The body of the register call. */
json_t *facts_register(const struct settings *s, const struct facts *f, const char *accelerator, json_t *capacity);
