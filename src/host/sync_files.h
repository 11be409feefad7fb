/* SPDX-License-Identifier: Apache-2.0 */
/* fsync of several files at once: their file system writes them out together, which takes as long as one. */
#pragma once
#include "base/error.h"
#include <stddef.h>

#include <pthread.h>
#include <stdbool.h>

#define SYNC_FILES_MAX 8
struct sync_files {
    struct sync_file {
        pthread_t thread;
        bool started;
        int fd, err_no;
    } files[SYNC_FILES_MAX];
    size_t n;
};
/* Starts threads, so not in a process that forks afterwards. The descriptors stay open until sync_files_wait(), which has to
 * be called; it says whether all are durable. */
void sync_files_begin(struct sync_files *sync, const int *fds, size_t n);
int sync_files_wait(struct sync_files *sync, struct sp_error *err);
int sync_files(const int *fds, size_t n, struct sp_error *err); /* both */
