/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a "newc" cpio archive, the form the kernel unpacks as initramfs. Sans-I/O: bytes go to the caller's function.
 * Every entry belongs to root, has time 0 and a running inode number, so the same entries give the same bytes.
 *
 *     cpio_init(&c, write_fn, arg);
 *     cpio_directory(&c, "dev", 0755);  cpio_device(&c, "dev/console", 0600, 5, 1);
 *     cpio_file(&c, "init", 0755, size);  cpio_data(&c, p, n); ...           exactly size bytes in any pieces
 *     r = cpio_finish(&c);
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define CPIO_MAX_NAME 1023u

struct cpio {
    int (*write)(void *arg, const void *data, size_t len); /* 0 or negative; its failure is sticky */
    void *arg;
    uint64_t written;
    /* private: */
    uint32_t inode;
    uint64_t left; /* of the current file */
    int failed;    /* the first error */
};

void cpio_init(struct cpio *c, int (*write)(void *arg, const void *data, size_t len), void *arg);
/* Names are relative, without "." and ".." parts; parents must be written first. All return 0, the write function's
 * error, or -EINVAL (a bad name, a file over 4 GiB, more or less data than announced); every error is sticky. */
int cpio_directory(struct cpio *c, const char *name, uint32_t mode);
int cpio_file(struct cpio *c, const char *name, uint32_t mode, uint64_t size);
int cpio_data(struct cpio *c, const void *data, size_t len);
int cpio_symlink(struct cpio *c, const char *name, const char *target);
int cpio_device(struct cpio *c, const char *name, uint32_t mode, uint32_t major, uint32_t minor); /* character */
/* Directories and nodes the guest agent needs before it mounts anything: dev, dev/console, proc, sys, newroot, modules. */
int cpio_guest_skeleton(struct cpio *c);
/* The trailer, and padding to 512 bytes. */
int cpio_finish(struct cpio *c);
