/* SPDX-License-Identifier: Apache-2.0 */
/* One thread a file; one that cannot be started is waited for on the spot. */
#include "host/sync_files.h"
#include "host/extents.h"
#include <assert.h>
#include <errno.h>
#include <linux/btrfs.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <unistd.h>

struct sync_file {
    pthread_t thread;
    bool started;
    int fd, err_no;
};

static bool is_on_btrfs(int fd) {
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && fs.f_type == BTRFS_SUPER_MAGIC;
}

/* Their data first, so that the commit has it; what fails here is fsync's to do, and to report. */
static void commit(const int *fds, size_t n) {
    uint64_t transaction = 0;

    for (size_t i = 0; i < n; i++) {
        struct extents extents;
        if (extents_read(fds[i], true, &extents, NULL) == 0)
            extents_done(&extents);
    }
    if (ioctl(fds[0], BTRFS_IOC_START_SYNC, &transaction) == 0)
        (void)ioctl(fds[0], BTRFS_IOC_WAIT_SYNC, &transaction);
}

static void *sync_one(void *arg) {
    struct sync_file *file = arg;
    file->err_no = fsync(file->fd) < 0 ? errno : 0;
    return NULL;
}

int sync_files(const int *fds, size_t n, struct sp_error *err) {
    struct sync_file files[SYNC_FILES_MAX] = {0};
    bool committed = n > 0 && is_on_btrfs(fds[0]);
    int err_no = 0;

    assert(n <= SYNC_FILES_MAX);
    if (committed)
        commit(fds, n);
    for (size_t i = 0; i < n; i++) {
        files[i].fd = fds[i];
        files[i].started = !committed && pthread_create(&files[i].thread, NULL, sync_one, &files[i]) == 0;
        if (!files[i].started)
            (void)sync_one(&files[i]);
    }
    for (size_t i = 0; i < n; i++) {
        if (files[i].started)
            (void)pthread_join(files[i].thread, NULL);
        err_no = err_no ? err_no : files[i].err_no;
    }
    return err_no ? sp_error_errno(err, err_no, "fsync", "files of a snapshot") : 0;
}
