/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's file system: a directory that has reflink copies already, or a btrfs in a sparse image mounted there.
 * The image is mounted in the host's mount namespace and stays mounted when the broker ends, because VMs and
 * `space template build` use it; store_fs_unmount() takes it away. The loop device frees itself with the last user.
 */
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct store_fs {
    const char *dir;   /* the mount point; exists */
    const char *image; /* where the image is or will be made */
    uint64_t size_mib; /* of a new image */
};

enum store_fs_kind {
    STORE_FS_NATIVE,  /* the directory itself had reflink copies, no image there */
    STORE_FS_MOUNTED, /* the image was mounted already */
    STORE_FS_ATTACHED /* mounted by this call */
};

/* Idempotent. An existing image is always used, never remade. SP_E_UNSUPPORTED when neither way gives reflink copies. */
int store_fs_open(const struct store_fs *fs, enum store_fs_kind *ret_kind, struct sp_error *err);
/* Fine when nothing is mounted there. SP_E_CONFLICT while something on this host has it open. */
int store_fs_unmount(const struct store_fs *fs, struct sp_error *err);
