/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A minimal root file system for one process, from a list of items: an empty tmpfs, read-only at the end, with read-only
 * bind mounts and single files in it. Every mount is nosuid; all but the device file are nodev. The caller is root, in a
 * mount namespace of its own; afterwards no path of the host is reachable and the old root is detached.
 */
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum jail_item_kind {
    JAIL_DIR,      /* empty directory */
    JAIL_BIND_DIR, /* directory tree `source`, read-only, without what is mounted below it */
    JAIL_FILE,     /* one file, from mount_fd */
    JAIL_LINK_OR_DIR, /* `source` of the host: a symbolic link is made again, a directory is bound read-only, none is fine */
    JAIL_DEVICE,      /* character device `device`, owned by `owner`, mode `mode`; below a JAIL_DEV directory */
    JAIL_DEV,         /* a small tmpfs that may hold devices */
    JAIL_PROC,        /* procfs of the caller's pid namespace: processes only, read-only */
};

struct jail_item {
    enum jail_item_kind kind;
    const char *path;   /* in the new root, relative; its directory was made by an earlier item */
    const char *source; /* JAIL_BIND_DIR, JAIL_LINK_OR_DIR: absolute path */
    int mount_fd;       /* JAIL_FILE: from jail_file_mount(); used up */
    dev_t device;       /* JAIL_DEVICE */
    uid_t owner;        /* JAIL_DEVICE */
    mode_t mode;        /* JAIL_DEVICE */
};

/* A mount of one file, attached nowhere yet: read-only unless `writable`, noexec unless `executable`. Has to be made
 * outside, in the mount namespace `fd` was opened in (any open descriptor of the file, O_PATH too). */
int jail_file_mount(int fd, const char *what, bool writable, bool executable, int *ret_fd, struct sp_error *err);

/* Makes every mount of the namespace private first, so that nothing here propagates. `scratch`: any existing directory,
 * covered by the new root until the old one is detached. On failure the namespace is in no usable state: exit. */
int jail_root_enter(const struct jail_item *items, size_t n, const char *scratch, struct sp_error *err);
