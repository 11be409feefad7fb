/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the untrusted half of a build in a child of its own: new mount, pid, network, ipc and uts namespaces, a scratch file
 * system of bounded size as its root or its only writable place, a handful of capabilities, limits on memory and time.
 */
#pragma once
#include "cli/template/build.h"
#include "cli/template/unpack.h"

struct build_paths {
    char work[512];    /* <store>/templates/.build-XXXX, made by the caller */
    char scratch[560]; /* sparse ext4 of bounded size, mounted at tree while the jail lives */
    char tree[560];
    char image[560]; /* the finished disk.img */
};

/* What the jail tells its parent at the end. */
struct build_report {
    struct sp_error error; /* code SP_OK: fine */
    struct unpack_counts counts;
    char config[32768]; /* OCI: the runtime configuration's JSON; else "" */
};

/* Unpacks b's source into the scratch file system and makes the ext4 image from it, with progress. Blocks until done. */
int build_jail_run(const struct template_build *b, const struct build_paths *paths, struct build_report *ret,
                   struct sp_error *err);
/* The image from a tree: mke2fs -d with fixed ids and time, so that the same tree gives the same bytes where the file
 * system lists it in the same order. */
int build_make_image(const char *tree, const char *image, uint64_t disk_mib, struct sp_error *err);
