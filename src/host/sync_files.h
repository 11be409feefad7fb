/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsync of several files at once. Btrfs writes a log entry for each new file, several times over when they come side by side;
 * one commit of the file system beforehand takes less than half as long, and leaves the fsyncs nothing to do. Unlike
 * syncfs() it does not wait for what others have written to the file system.
 */
#pragma once
#include "base/error.h"
#include <stddef.h>

#define SYNC_FILES_MAX 8
/* All on one file system. Starts threads, so not in a process that forks afterwards. */
int sync_files(const int *fds, size_t n, struct sp_error *err);
