/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is asked of the broker for a VM: the snapshot's key, vm_start's fields for a clone and for a template boot, the
 * manifest of a snapshot. Pure.
 */
#pragma once
#include "node/desired.h"
#include "node/facts.h"

#define SNAPSHOT_KEY_SIZE 33

/* What is fixed of a VM before anybody knows what it will be; kernel and accelerator are the node's. */
struct vm_shape {
    unsigned vcpus, memory_mib;
};

/* What decides which snapshot a sandbox starts from. */
struct template_spec {
    char key[SNAPSHOT_KEY_SIZE];
    char digest[SHA256_HEX_SIZE];
    unsigned vcpus, memory_mib;
    json_t *manifest; /* owned; NULL: none */
};
/* Fills in the key as well: first 32 hex digits of SHA-256("digest|kernel|initrd|vcpus|memory|machine|engine"). */
void template_spec_init(struct template_spec *spec, const struct desired *d, const struct facts *f,
                        const char *accelerator);
void template_spec_done(struct template_spec *spec);

/* How VMs are started on this node. */
struct vm_request_base {
    const struct settings *settings;
    const struct facts *facts;
    const char *accelerator;
};
/* vm_start's fields; *ret is new. SP_E_INVALID or SP_E_TOO_LARGE naming what of the template or sandbox does not fit. */
int vm_request_clone(const struct vm_request_base *b, const struct desired *d, const char *key, uint64_t deadline_ms,
                     json_t **ret, struct sp_error *err);
/* The same on the disk of the snapshot `key`, which holds nothing else: its kernel boots. */
int vm_request_boot_disk(const struct vm_request_base *b, const struct desired *d, const char *key,
                         uint64_t deadline_ms, json_t **ret, struct sp_error *err);
int vm_request_boot(const struct vm_request_base *b, const struct template_spec *spec, const char *id,
                    uint64_t deadline_ms, json_t **ret, struct sp_error *err);
int vm_request_blank(const struct vm_request_base *b, const struct vm_shape *shape, const char *id,
                     uint64_t deadline_ms, json_t **ret, struct sp_error *err);
/* vm_load's fields: the blank becomes d's VM, out of the snapshot `key`. */
int vm_request_load(const struct vm_request_base *b, const struct desired *d, const char *key, const char *blank,
                    uint64_t deadline_ms, json_t **ret, struct sp_error *err);
/* vm_load's fields: the blank becomes a warm VM of a template, with an identity that is thrown away. */
int vm_request_warm(const struct vm_request_base *b, const struct template_spec *spec, const char *blank,
                    uint64_t deadline_ms, json_t **ret, struct sp_error *err);
/* The fields of `identify` on control.sock. */
int vm_request_identify(const struct vm_request_base *b, const struct desired *d, json_t **ret, struct sp_error *err);
/* Of a sandbox's snapshot. */
json_t *vm_request_sandbox_manifest(const struct vm_request_base *b, const struct template_spec *spec,
                                    const struct desired *d);
json_t *vm_request_snapshot_manifest(const struct vm_request_base *b, const struct template_spec *spec);
/* Time a template's boot may take: create_timeout_s, and more when its probe says so. */
uint64_t vm_request_boot_ms(const struct settings *s, const struct template_spec *spec);
