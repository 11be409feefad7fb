/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's end of preload_wire.h: a held QEMU is given its RAM file and its disk, and says where RAM went. */
#include "base/cleanup.h"
#include "vmm/preload_wire.h"
#include "vmm/qemu/qemu.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FILES 2

union rights {
    struct cmsghdr align;
    char room[CMSG_SPACE(FILES * sizeof(int))];
};

/* One message of that kind, with at most one descriptor (-1: none); any other is closed and refused. */
static int receive(int sock, enum preload_kind kind, struct deadline d, struct preload_message *ret, int *ret_fd,
                   struct sp_error *err) {
    struct pollfd p = {.fd = sock, .events = POLLIN};
    union rights control = {0};
    struct iovec iov = {.iov_base = ret, .iov_len = sizeof(*ret)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = CMSG_SPACE(sizeof(int))};
    struct cmsghdr *c;
    ssize_t n;
    int r;
    *ret_fd = -1;
    do
        r = poll(&p, 1, deadline_poll_ms(d));
    while (r < 0 && errno == EINTR);
    if (r <= 0)
        return sp_error_set(err, SP_E_TIMEOUT, "the VMM does not ask for its files");
    n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n <= 0)
        return sp_error_set(err, SP_E_GONE, "the VMM ended before it had its files");
    c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
    if (n != (ssize_t)sizeof(*ret) || (msg.msg_flags & MSG_CTRUNC) || ret->magic != PRELOAD_MAGIC ||
        ret->kind != kind) {
        *ret_fd = close_fd(*ret_fd);
        return sp_error_set(err, SP_E_PROTOCOL, "the VMM's preload says something else than expected");
    }
    return 0;
}

int qemu_files_wait_held(int sock, struct deadline d, struct sp_error *err) {
    struct preload_message message = {0};
    int fd, r = receive(sock, PRELOAD_HELD, d, &message, &fd, err);
    (void)close_fd(fd);
    return r;
}

int qemu_files_give(int sock, int fd_memory, int fd_disk, struct sp_error *err) {
    const int fds[FILES] = {fd_memory, fd_disk};
    struct preload_message message = {.magic = PRELOAD_MAGIC, .kind = PRELOAD_GIVE};
    union rights control = {0};
    struct iovec iov = {.iov_base = &message, .iov_len = sizeof(message)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof(control.room)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(c), fds, sizeof(fds));
    if (sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(message))
        return errno == EPIPE || errno == ECONNRESET
                   ? sp_error_set(err, SP_E_GONE, "the VMM ended before it had its files")
                   : sp_error_errno(err, errno, "sendmsg", "files of the VMM");
    return 0;
}

int qemu_files_mapped(int sock, struct deadline d, struct vmm_ram *ret, struct sp_error *err) {
    struct preload_message message = {0};
    int fd, r = receive(sock, PRELOAD_MAPPED, d, &message, &fd, err);
    if (r < 0)
        return r;
    if (message.length == 0 || message.length > UINT64_MAX - message.address) {
        (void)close_fd(fd);
        return sp_error_set(err, SP_E_PROTOCOL, "the VMM's RAM is nowhere");
    }
    *ret = (struct vmm_ram){.address = message.address, .length = message.length, .fd_uffd = fd};
    return 0;
}
