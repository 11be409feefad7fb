/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unix sockets by path, for SOCK_STREAM and SOCK_SEQPACKET: listen, connect, accept, peer credentials; and blocking
 * helpers with a deadline for straight-line programs (space-vm, broker, CLI). Descriptors are CLOEXEC. The deadline
 * helpers work on blocking and non-blocking sockets alike. Deadline passed: SP_E_TIMEOUT.
 */
#pragma once
#include "base/clock.h"
#include "base/error.h"
#include <sys/types.h>

/* Binds beside the path, sets mode (and owner when not -1), listens, then renames over it: clients see a ready socket
 * or none, and a stale one of a dead process is replaced. SP_E_CONFLICT when somebody answers there. type: SOCK_STREAM
 * or SOCK_SEQPACKET, plus SOCK_NONBLOCK. path ≤ 100 bytes, the directory must exist. */
int unix_listen(const char *path, int type, mode_t mode, uid_t uid, gid_t gid, int *ret_fd, struct sp_error *err);
/* *ret_fd is blocking unless type has SOCK_NONBLOCK. Waits while the listener's backlog is full. */
int unix_connect(const char *path, int type, struct deadline d, int *ret_fd, struct sp_error *err);
int unix_accept(int listen_fd, struct deadline d, int *ret_fd, struct sp_error *err);
struct unix_peer {
    pid_t pid; /* at connect time; may have been reused since */
    uid_t uid;
    gid_t gid;
};
int unix_peer(int fd, struct unix_peer *ret, struct sp_error *err);

/* poll(2) for events until the deadline; *ret_revents may be NULL. */
int fd_wait(int fd, short events, struct deadline d, short *ret_revents, struct sp_error *err);
/* Stream sockets: everything, or an error (EOF is SP_E_PROTOCOL). */
int sock_write_all(int fd, const void *data, size_t len, struct deadline d, struct sp_error *err);
int sock_read_exact(int fd, void *data, size_t len, struct deadline d, struct sp_error *err);
/* At least one byte; *ret_len = 0 at EOF. */
int sock_read_some(int fd, void *data, size_t size, struct deadline d, size_t *ret_len, struct sp_error *err);
/* A line up to LF, which is dropped; dst NUL-ended. Reads byte by byte, none past it: for a handshake. */
int sock_read_line(int fd, char *dst, size_t size, struct deadline d, struct sp_error *err);
/* Seqpacket: one message. *ret_len = 0 at EOF; a longer message than size is SP_E_TOO_LARGE. */
int packet_send(int fd, const void *data, size_t len, struct deadline d, struct sp_error *err);
int packet_recv(int fd, void *data, size_t size, struct deadline d, size_t *ret_len, struct sp_error *err);
