/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages with descriptors over unix sockets, stream or seqpacket. The receiver trusts nothing: a cut message, a cut
 * control part or more descriptors than it has room for closes everything that came and is an error.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define FDS_MAX 16

union control {
    struct cmsghdr align;
    char room[CMSG_SPACE(sizeof(int) * FDS_MAX)];
};

static int socket_error(struct sp_error *err, const char *op) {
    int e = errno == EAGAIN ? ETIMEDOUT : errno;
    return sp_error_errno(err, e, op, "unix socket");
}

int fd_send_message(int sock, const void *data, size_t len, const int *fds, size_t n_fds, struct sp_error *err) {
    const char *bytes = data;
    char copy = 0;
    struct iovec iov = {.iov_base = &copy, .iov_len = 1};
    union control control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    size_t sent = 0;

    assert(n_fds <= FDS_MAX && len > 0);
    if (n_fds) {
        struct cmsghdr *c;
        msg.msg_control = control.room;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    while (sent < len) {
        ssize_t n;
        /* sendmsg does not write through iov_base; the struct merely has no const. */
        memcpy(&iov.iov_base, &(const char *){bytes + sent}, sizeof(void *));
        iov.iov_len = len - sent;
        n = sendmsg(sock, &msg, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return socket_error(err, "sendmsg");
        sent += (size_t)n;
        msg.msg_control = NULL; /* a stream took only a part: the descriptors went with its first byte */
        msg.msg_controllen = 0;
    }
    return 0;
}

/* Collects every descriptor of the message; all of them fit, because the control buffer has no room for more. */
static size_t collect(struct msghdr *msg, int fds[FDS_MAX]) {
    size_t n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t count;
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        assert(n + count <= FDS_MAX);
        memcpy(fds + n, CMSG_DATA(c), count * sizeof(int));
        n += count;
    }
    return n;
}

static void close_all(const int *fds, size_t n) {
    for (size_t i = 0; i < n; i++)
        (void)close(fds[i]);
}

int fd_recv_message(int sock, void *data, size_t size, size_t *ret_len, int *fds, size_t *n_fds, struct sp_error *err) {
    struct iovec iov = {.iov_base = data, .iov_len = size};
    union control control = {0};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof(control.room)};
    int got[FDS_MAX];
    size_t n_got, room = n_fds ? *n_fds : 0;
    ssize_t n;

    assert(size > 0);
    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return socket_error(err, "recvmsg");
    n_got = collect(&msg, got);
    if ((msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || n_got > room) {
        close_all(got, n_got);
        if (msg.msg_flags & MSG_TRUNC)
            return sp_error_set(err, SP_E_PROTOCOL, "message of more than %zu bytes", size);
        return sp_error_set(err, SP_E_PROTOCOL, "message with more than %zu descriptors", room);
    }
    if (n_got)
        memcpy(fds, got, n_got * sizeof(int));
    if (n_fds)
        *n_fds = n_got;
    *ret_len = (size_t)n;
    return 0;
}
