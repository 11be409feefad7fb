/* SPDX-License-Identifier: Apache-2.0 */
/* One thread a file; one that cannot be started is waited for on the spot. */
#include "host/sync_files.h"
#include <assert.h>
#include <errno.h>
#include <unistd.h>

static void *sync_one(void *arg) {
    struct sync_file *file = arg;
    file->err_no = fsync(file->fd) < 0 ? errno : 0;
    return NULL;
}

void sync_files_begin(struct sync_files *sync, const int *fds, size_t n) {
    assert(n <= SYNC_FILES_MAX);
    *sync = (struct sync_files){.n = n};
    for (size_t i = 0; i < n; i++) {
        struct sync_file *file = &sync->files[i];
        file->fd = fds[i];
        file->started = pthread_create(&file->thread, NULL, sync_one, file) == 0;
        if (!file->started)
            (void)sync_one(file);
    }
}

int sync_files_wait(struct sync_files *sync, struct sp_error *err) {
    int err_no = 0;

    for (size_t i = 0; i < sync->n; i++) {
        if (sync->files[i].started)
            (void)pthread_join(sync->files[i].thread, NULL);
        err_no = err_no ? err_no : sync->files[i].err_no;
    }
    sync->n = 0;
    return err_no ? sp_error_errno(err, err_no, "fsync", "files of a snapshot") : 0;
}

int sync_files(const int *fds, size_t n, struct sp_error *err) {
    struct sync_files sync;
    sync_files_begin(&sync, fds, n);
    return sync_files_wait(&sync, err);
}
