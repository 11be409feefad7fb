/* SPDX-License-Identifier: Apache-2.0 */
/* Whole reads and writes on descriptors, small files, durable replacement of files. All EINTR-safe, all CLOEXEC. */
#pragma once
#include "base/buf.h"
#include "base/error.h"
#include <sys/types.h>

int fd_write_all(int fd, const void *data, size_t len, struct sp_error *err);
/* Exactly len bytes; EOF before that is SP_E_PROTOCOL. */
int fd_read_exact(int fd, void *data, size_t len, struct sp_error *err);
int fd_set_nonblocking(int fd, bool on);
/* Whole file, at most max bytes (SP_E_TOO_LARGE over it). *ret_data is NUL-ended heap memory. dirfd may be AT_FDCWD. */
int file_read(int dirfd, const char *path, size_t max, char **ret_data, size_t *ret_len, struct sp_error *err);
/* Temp file in the same directory, fsync, rename, fsync of the directory: old or new content, never a mix. */
int file_replace(int dirfd, const char *path, const void *data, size_t len, mode_t mode, struct sp_error *err);
/* mkdir that accepts an existing directory (not a link); fixes mode and owner when asked (uid/gid (uid_t)-1: leave). */
int dir_ensure(int dirfd, const char *path, mode_t mode, uid_t uid, gid_t gid, struct sp_error *err);
/* Removes a tree below dirfd without following links or crossing mounts; missing is fine. */
int dir_remove_tree(int dirfd, const char *path, struct sp_error *err);
/* Descriptor passing over a unix socket. At most 16 descriptors. Received ones are CLOEXEC. */
int fd_send_message(int sock, const void *data, size_t len, const int *fds, size_t n_fds, struct sp_error *err);
/* *ret_len = 0 means the peer closed. *n_fds in: room, out: received (surplus is closed and is an error). */
int fd_recv_message(int sock, void *data, size_t size, size_t *ret_len, int *fds, size_t *n_fds, struct sp_error *err);
