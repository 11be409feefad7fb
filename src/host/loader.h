/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which shared libraries a program is run with. The dynamic loader itself is asked (`ld.so --list`), because nobody else
 * knows its cache, its search path and the processor's variants of a library; it maps them and runs nothing of theirs.
 */
#pragma once
#include "base/error.h"
#include <stddef.h>
#include <sys/types.h>

#define LOADER_NAME_SIZE 96
#define LOADER_PATH_SIZE 512

/* The interpreter an ELF program asks for, "" when it needs none. SP_E_INVALID: it is no 64 bit ELF file. */
int loader_interpreter(int fd, char dst[LOADER_PATH_SIZE], struct sp_error *err);

/* One library: the name it is asked for by, and the file it is. Negative ends the list with that. */
typedef int loader_found(void *ctx, const char *name, const char *path, struct sp_error *err);

/* Of the program or library at `path`, as user and group `uid` with an empty environment. SP_E_NOT_FOUND: one is missing. */
int loader_list(const char *interpreter, const char *path, uid_t uid, loader_found *found, void *ctx,
                struct sp_error *err);
/* Pure: what `ld.so --list` has written. */
int loader_parse(const char *text, size_t len, loader_found *found, void *ctx, struct sp_error *err);
