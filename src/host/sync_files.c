/* SPDX-License-Identifier: Apache-2.0 */
/* One thread a file but the last, which the caller waits for itself. */
#include "host/sync_files.h"
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

struct sync {
    pthread_t thread;
    bool started;
    int fd, err_no;
};

static void *sync_one(void *arg) {
    struct sync *sync = arg;
    sync->err_no = fsync(sync->fd) < 0 ? errno : 0;
    return NULL;
}

int sync_files(const int *fds, size_t n, struct sp_error *err) {
    struct sync syncs[SYNC_FILES_MAX] = {0};
    int err_no = 0;

    assert(n <= SYNC_FILES_MAX);
    for (size_t i = 0; i < n; i++) {
        syncs[i].fd = fds[i];
        syncs[i].started = i + 1 < n && pthread_create(&syncs[i].thread, NULL, sync_one, &syncs[i]) == 0;
        if (!syncs[i].started)
            (void)sync_one(&syncs[i]);
    }
    for (size_t i = 0; i < n; i++) {
        if (syncs[i].started)
            (void)pthread_join(syncs[i].thread, NULL);
        err_no = err_no ? err_no : syncs[i].err_no;
    }
    return err_no ? sp_error_errno(err, err_no, "fsync", "files of a snapshot") : 0;
}
