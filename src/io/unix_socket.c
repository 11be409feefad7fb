/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unix sockets by path, and blocking socket helpers with a deadline: every wait is a poll(2) up to the deadline, every
 * transfer MSG_DONTWAIT, so that blocking and non-blocking descriptors behave alike.
 */
#include "io/unix_socket.h"
#include "base/cleanup.h"
#include "base/random.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#define PATH_BYTES_MAX 100
#define BACKLOG 128
#define PROBE_MS 1000

static int fill_address(const char *path, struct sockaddr_un *sa, struct sp_error *err) {
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (!*path || !text_copy(sa->sun_path, sizeof(sa->sun_path), path))
        return sp_error_set(err, SP_E_INVALID, "socket path is empty or too long: %.120s", path);
    return 0;
}

/* Somebody accepts on the path. */
static bool is_alive(const char *path, int type) {
    _cleanup_close_ int fd = -1;
    struct sp_error err = {0};
    int r = unix_connect(path, type & ~SOCK_NONBLOCK, deadline_in_ms(PROBE_MS), &fd, &err);
    return r == 0 || err.code == SP_E_TIMEOUT;
}

/* The socket under its temporary name: owner and mode are right before anybody can find it. */
static int bind_temporary(const char *temporary, int type, mode_t mode, uid_t uid, gid_t gid, int *ret_fd,
                          struct sp_error *err) {
    struct sockaddr_un sa;
    int r = fill_address(temporary, &sa, err);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return sp_error_errno(err, errno, "socket", "%s", temporary);
    if (fchmod(fd, mode) < 0) /* what bind() gives the file, less the umask: never wider than wanted */
        return sp_error_errno(err, errno, "fchmod", "%s", temporary);
    if (bind(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0)
        return sp_error_errno(err, errno, "bind", "%s", temporary);
    if ((uid != (uid_t)-1 || gid != (gid_t)-1) && lchown(temporary, uid, gid) < 0)
        r = sp_error_errno(err, errno, "chown", "%s", temporary);
    else if (chmod(temporary, mode) < 0)
        r = sp_error_errno(err, errno, "chmod", "%s", temporary);
    else if (listen(fd, BACKLOG) < 0)
        r = sp_error_errno(err, errno, "listen", "%s", temporary);
    if (r < 0) {
        (void)unlink(temporary);
        return r;
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int unix_listen(const char *path, int type, mode_t mode, uid_t uid, gid_t gid, int *ret_fd, struct sp_error *err) {
    char temporary[PATH_BYTES_MAX + 8];
    uint8_t salt[3];
    char hex[2 * sizeof(salt) + 1];
    _cleanup_close_ int fd = -1;
    struct stat st;
    random_bytes(salt, sizeof(salt));
    text_hex(hex, salt, sizeof(salt));
    if (strlen(path) > PATH_BYTES_MAX || !text_printf(temporary, sizeof(temporary), "%s.%s", path, hex))
        return sp_error_set(err, SP_E_INVALID, "socket path is longer than %d bytes: %.120s", PATH_BYTES_MAX, path);
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode))
            return sp_error_set(err, SP_E_CONFLICT, "%s exists and is no socket", path);
        if (is_alive(path, type))
            return sp_error_set(err, SP_E_CONFLICT, "another process listens on %s", path);
    }
    int r = bind_temporary(temporary, type, mode, uid, gid, &fd, err);
    if (r < 0)
        return r;
    if (rename(temporary, path) < 0) {
        r = sp_error_errno(err, errno, "rename", "%s", path);
        (void)unlink(temporary);
        return r;
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int unix_connect(const char *path, int type, struct deadline d, int *ret_fd, struct sp_error *err) {
    static const struct timespec pause = {.tv_nsec = 5000000};
    struct sockaddr_un sa;
    int r = fill_address(path, &sa, err);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return sp_error_errno(err, errno, "socket", "%s", path);
    /* A unix connect never is in progress: it is done, refused, or the backlog is full (EAGAIN). */
    while (connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            int refused = errno == ECONNREFUSED;
            r = sp_error_errno(err, errno, "connect", "%s", path);
            if (refused && err)
                err->code = SP_E_UNAVAILABLE;
            return refused ? -SP_E_UNAVAILABLE : r;
        }
        if (deadline_passed(d))
            return sp_error_set(err, SP_E_TIMEOUT, "connect %s: nobody accepts", path);
        (void)nanosleep(&pause, NULL);
    }
    if (!(type & SOCK_NONBLOCK) && fcntl(fd, F_SETFL, 0) < 0)
        return sp_error_errno(err, errno, "fcntl", "%s", path);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int unix_accept(int listen_fd, struct deadline d, int *ret_fd, struct sp_error *err) {
    for (;;) {
        int r = fd_wait(listen_fd, POLLIN, d, NULL, err);
        if (r < 0)
            return r;
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            *ret_fd = fd;
            return 0;
        }
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            return sp_error_errno(err, errno, "accept4", "unix socket");
    }
}

int unix_peer(int fd, struct unix_peer *ret, struct sp_error *err) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return sp_error_errno(err, errno, "SO_PEERCRED", "unix socket");
    *ret = (struct unix_peer){.pid = cred.pid, .uid = cred.uid, .gid = cred.gid};
    return 0;
}

int fd_wait(int fd, short events, struct deadline d, short *ret_revents, struct sp_error *err) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, deadline_poll_ms(d));
        if (n > 0) {
            if (ret_revents)
                *ret_revents = p.revents;
            return 0;
        }
        if (n < 0 && errno != EINTR)
            return sp_error_errno(err, errno, "poll", "descriptor");
        if (n == 0 && deadline_passed(d))
            return sp_error_set(err, SP_E_TIMEOUT, "no answer from the peer in time");
    }
}

/* After a failed MSG_DONTWAIT transfer: 0 try again, negative give up. */
static int wait_or_fail(int fd, short events, const char *op, struct deadline d, struct sp_error *err) {
    if (errno == EINTR)
        return 0;
    if (errno != EAGAIN)
        return sp_error_errno(err, errno, op, "socket");
    return fd_wait(fd, events, d, NULL, err);
}

int sock_write_all(int fd, const void *data, size_t len, struct deadline d, struct sp_error *err) {
    const char *p = data;
    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            int r = wait_or_fail(fd, POLLOUT, "send", d, err);
            if (r < 0)
                return r;
            continue;
        }
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int sock_read_some(int fd, void *data, size_t size, struct deadline d, size_t *ret_len, struct sp_error *err) {
    for (;;) {
        ssize_t n = recv(fd, data, size, MSG_DONTWAIT);
        if (n >= 0) {
            *ret_len = (size_t)n;
            return 0;
        }
        int r = wait_or_fail(fd, POLLIN, "recv", d, err);
        if (r < 0)
            return r;
    }
}

int sock_read_exact(int fd, void *data, size_t len, struct deadline d, struct sp_error *err) {
    char *p = data;
    while (len > 0) {
        size_t n;
        int r = sock_read_some(fd, p, len, d, &n, err);
        if (r < 0)
            return r;
        if (n == 0)
            return sp_error_set(err, SP_E_PROTOCOL, "the peer closed the connection too early");
        p += n;
        len -= n;
    }
    return 0;
}

int sock_read_line(int fd, char *dst, size_t size, struct deadline d, struct sp_error *err) {
    for (size_t len = 0; len < size; len++) {
        int r = sock_read_exact(fd, dst + len, 1, d, err);
        if (r < 0)
            return r;
        if (dst[len] == '\n') {
            dst[len] = '\0';
            return 0;
        }
    }
    return sp_error_set(err, SP_E_TOO_LARGE, "a line of the peer is longer than %zu bytes", size - 1);
}

int packet_send(int fd, const void *data, size_t len, struct deadline d, struct sp_error *err) {
    while (send(fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        if (errno == EMSGSIZE)
            return sp_error_errno(err, errno, "send", "message of %zu bytes is too long", len);
        int r = wait_or_fail(fd, POLLOUT, "send", d, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int packet_recv(int fd, void *data, size_t size, struct deadline d, size_t *ret_len, struct sp_error *err) {
    for (;;) {
        ssize_t n = recv(fd, data, size, MSG_DONTWAIT | MSG_TRUNC);
        if (n >= 0 && (size_t)n > size)
            return sp_error_set(err, SP_E_TOO_LARGE, "message of %zd bytes is longer than %zu", n, size);
        if (n >= 0) {
            *ret_len = (size_t)n;
            return 0;
        }
        int r = wait_or_fail(fd, POLLIN, "recv", d, err);
        if (r < 0)
            return r;
    }
}
