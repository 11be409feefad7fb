/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine bundles: the VMM with everything it loads, copied into the store, so that a snapshot is restored by the very program
 * that took it however often the host's own is upgraded. Every VMM runs out of a bundle, the host's own engine too, so that an
 * upgrade reaches no VM before the broker is started anew, and a bundle that matters is one that is in use already.
 *
 * engines/<digest>/ is the VMM's root: usr/bin/<qemu>, usr/lib/<soname> (where the loader looks last, so everywhere),
 * usr/share/qemu, usr/lib/…/qemu (modules), the interpreter at its own path, preload.so beside them, and manifest.json,
 * which makes it exist: {"format": 1, "engine": digest, "qemu": path, "qemu_version",
 *   "files": {path: {"size", "sha256", "executable"}}}
 * digest is SHA-256 over the lines "<sha256>  <path>\n" of all files, by path (as sha256sum would print them).
 */
#pragma once
#include "base/digest.h"
#include "broker/layout.h"

#define ENGINE_FILES_MAX 256
#define ENGINE_PATH_SIZE 160
#define ENGINE_VERSION_SIZE 32
#define ENGINE_PRELOAD "preload.so"
#define ENGINE_TEMP_SUFFIX ".tmp"
#define ENGINE_MISSING "engine_missing" /* fields of errors: the failure code they become */
#define ENGINE_BROKEN "engine_broken"

struct engine_file {
    char path[ENGINE_PATH_SIZE]; /* in the bundle */
    char sha256[SHA256_HEX_SIZE];
    uint64_t size;
    bool executable;
    int fd; /* of the host's own file; -1 in what was read from a manifest */
};

struct engine {
    char digest[SHA256_HEX_SIZE]; /* "": there is none */
    char qemu[ENGINE_PATH_SIZE];  /* the VMM, absolute in its root */
    char version[ENGINE_VERSION_SIZE];
    struct engine_file *files;
    size_t n;
};
void engine_done(struct engine *engine);
#define _cleanup_engine_ __attribute__((cleanup(engine_done)))

/* engine_source.c: the host's own engine as it is now, its files open, so that an upgrade behind our back changes nothing.
 * `uid`: whom the dynamic loader runs as. The version is not known yet. */
int engine_source(struct engine *ret, const char *qemu, int preload, uid_t uid, struct sp_error *err);

/* engine.c: bundles in the store. */
bool engine_digest_is_valid(const char *text);
void engine_digest(const struct engine *engine, char dst[SHA256_HEX_SIZE]); /* files are in order */
/* The bundle's directory. SP_E_NOT_FOUND in ENGINE_MISSING; `version` is for its text, "" when it is not known. */
int engine_find(const struct layout *layout, const char *digest, const char *version, int *ret_dir,
                struct sp_error *err);
/* Its manifest too; SP_E_CORRUPT in ENGINE_BROKEN. */
int engine_open(const struct layout *layout, const char *digest, const char *version, struct engine *ret, int *ret_dir,
                struct sp_error *err);
/* Sizes, owners and modes; with `hash` the files' bytes too. */
int engine_check(const struct engine *engine, int dir, bool hash, struct sp_error *err);
/* Takes the manifest away first. A missing one is fine. Whoever runs out of it goes on. */
int engine_remove(const struct layout *layout, const char *digest, struct sp_error *err);
int engine_remove_temps(const struct layout *layout, struct sp_error *err);

/* engine_make.c: makes sure that the host's own engine is in the store, whole to the last byte. One that is broken is made anew. */
int engine_ensure(const struct layout *layout, const struct engine *source, struct sp_error *err);

/* What a VM is started with out of a bundle that was checked. */
struct engine_entry {
    char digest[SHA256_HEX_SIZE];
    char qemu[ENGINE_PATH_SIZE], version[ENGINE_VERSION_SIZE];
    struct engine_entry *next;
};
