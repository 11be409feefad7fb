/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds a template: a root file system from a directory, a tar or an OCI image layout, put into an ext4 image and, with
 * its manifest, under its digest into the store. Needs root. Leaves nothing behind when it fails or is killed but a
 * `.build-…` directory that the next build removes.
 */
#pragma once
#include "base/digest.h"
#include "base/json.h"

enum template_source_kind { TEMPLATE_FROM_DIR, TEMPLATE_FROM_TAR, TEMPLATE_FROM_OCI };

#define TEMPLATE_DISK_MIB_MIN 64
#define TEMPLATE_DISK_MIB_MAX 65536
#define TEMPLATE_ENTRIES_MAX 2000000

struct template_build {
    enum template_source_kind kind;
    const char *source;        /* directory, tar file, or OCI layout directory */
    const char *image_tag;     /* OCI only: tag inside the layout */
    const char *manifest_path; /* NULL: what the OCI image says, else the defaults */
    const char *store_dir;     /* <state_dir>/store */
    uint64_t disk_mib;         /* size of the guest's disk, MIN..MAX */
    /* Called from the building process's parent: step is a word, done/total in the step's own unit (total 0: unknown). */
    void (*progress)(void *user, const char *step, uint64_t done, uint64_t total);
    void *progress_user;
};

struct template_result {
    char digest[SHA256_HEX_SIZE];
    uint64_t disk_bytes, skipped; /* skipped: device nodes, sockets and FIFOs left out */
    json_t *manifest;             /* owned */
    bool existed;                 /* the same content was in the store already */
};

int template_build_run(const struct template_build *b, struct template_result *ret, struct sp_error *err);
void template_result_done(struct template_result *r);
