/* SPDX-License-Identifier: Apache-2.0 */
/* fsync of several files at once: their file system writes them out together, which takes as long as one. */
#pragma once
#include "base/error.h"
#include <stddef.h>

#define SYNC_FILES_MAX 8
/* Returns when all are durable; the first failure otherwise. Starts threads, so not in a process that forks afterwards. */
int sync_files(const int *fds, size_t n, struct sp_error *err);
