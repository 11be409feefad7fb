/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into QEMU: its RAM file and its disk are descriptors that space-vm hands over, never files (preload_wire.h).
 *
 * QEMU is held where it opens the first of the two paths, so that a VMM can be started before anybody knew what for.
 * What is given decides the access: QEMU before 8.2 asks for its RAM file read-write even when it maps it privately, and
 * a VMM taken over by its guest could then rewrite the memory every clone is made from; the descriptor it gets is
 * O_RDONLY. Nothing else is touched, and without the environment's word nothing is.
 */
#include "vmm/preload_wire.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#define FEATURE_WP_ASYNC (1ull << 15) /* Linux 6.7; build hosts' headers are older */

#define EXPORT __attribute__((visibility("default")))

enum file { FILE_MEMORY, FILE_DISK, FILE_COUNT_ };
static const char *const path_names[FILE_COUNT_] = {PRELOAD_ENV_MEMORY, PRELOAD_ENV_DISK};
static int files[FILE_COUNT_] = {-1, -1};
static int sock = -1;
static bool held, mapped;

static _Noreturn void die(const char *text) {
    (void)!write(2, text, strlen(text));
    _exit(1);
}

/* --- the wire ------------------------------------------------------------------------------------------------------------ */

union rights {
    struct cmsghdr align;
    char room[CMSG_SPACE(sizeof(files))];
};

static void say(const struct preload_message *message, int fd) {
    struct preload_message copy = *message;
    union rights control = {0};
    struct iovec iov = {.iov_base = &copy, .iov_len = sizeof(copy)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;
    if (fd >= 0) {
        struct cmsghdr *c;
        msg.msg_control = control.room;
        msg.msg_controllen = CMSG_SPACE(sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    do
        n = sendmsg(sock, &msg, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(copy))
        die("preload: nobody is there to give this VMM its files\n");
}

static void take(void) {
    struct preload_message message;
    union rights control = {0};
    struct iovec iov = {.iov_base = &message, .iov_len = sizeof(message)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof(control.room)};
    struct cmsghdr *c;
    ssize_t n;
    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        _exit(0); /* never needed */
    c = n == (ssize_t)sizeof(message) ? CMSG_FIRSTHDR(&msg) : NULL;
    if (!c || message.magic != PRELOAD_MAGIC || message.kind != PRELOAD_GIVE || c->cmsg_level != SOL_SOCKET ||
        c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(files)))
        die("preload: that is no message with a RAM file and a disk\n");
    memcpy(files, CMSG_DATA(c), sizeof(files));
}

static void hold(void) {
    const char *number = getenv(PRELOAD_ENV_SOCKET);
    if (held)
        return;
    held = true;
    sock = number ? (int)strtol(number, NULL, 10) : -1;
    if (sock < 3 || fcntl(sock, F_SETFD, FD_CLOEXEC) < 0)
        die("preload: no descriptor to ask for this VMM's files\n");
    say(&(struct preload_message){.magic = PRELOAD_MAGIC, .kind = PRELOAD_HELD}, -1);
    take();
}

/* --- open ------------------------------------------------------------------------------------------------------------------ */

/* -2: not one of ours. */
static int given(const char *path) {
    for (size_t i = 0; path && i < FILE_COUNT_; i++) {
        const char *name = getenv(path_names[i]);
        if (!name || strcmp(path, name) != 0)
            continue;
        hold();
        return fcntl(files[i], F_DUPFD_CLOEXEC, 3);
    }
    return -2;
}

/* dlsym returns an object pointer; POSIX promises that this conversion works. */
#define DEFINE_REAL(type, function)                                                                                    \
    static type *real_##function(void) {                                                                               \
        static type *real;                                                                                             \
        void *symbol;                                                                                                  \
        if (real)                                                                                                      \
            return real;                                                                                               \
        symbol = dlsym(RTLD_NEXT, #function);                                                                          \
        if (!symbol)                                                                                                   \
            abort();                                                                                                   \
        memcpy(&real, &symbol, sizeof(real));                                                                          \
        return real;                                                                                                   \
    }

typedef int open_function(const char *path, int flags, ...);

#define DEFINE_OPEN(name)                                                                                              \
    DEFINE_REAL(open_function, name)                                                                                   \
    EXPORT int name(const char *path, int flags, ...) {                                                                \
        mode_t mode = 0;                                                                                               \
        int fd = given(path);                                                                                          \
        if (fd != -2)                                                                                                  \
            return fd;                                                                                                 \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                                           \
            va_list ap;                                                                                                \
            va_start(ap, flags);                                                                                       \
            mode = va_arg(ap, mode_t);                                                                                 \
            va_end(ap);                                                                                                \
        }                                                                                                              \
        return real_##name()(path, flags, mode);                                                                       \
    }

/* The fortified forms, which take no mode. */
#define DEFINE_OPEN_2(name)                                                                                            \
    DEFINE_REAL(open_function, name)                                                                                   \
    EXPORT int name(const char *path, int flags);                                                                      \
    EXPORT int name(const char *path, int flags) {                                                                     \
        int fd = given(path);                                                                                          \
        return fd != -2 ? fd : real_##name()(path, flags);                                                             \
    }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPEN_2(__open_2)
DEFINE_OPEN_2(__open64_2)

/* --- mmap ------------------------------------------------------------------------------------------------------------------- */

static bool is_memory(int fd) {
    struct stat a, b;
    return files[FILE_MEMORY] >= 0 && fd >= 0 && !mapped && fstat(fd, &a) == 0 && fstat(files[FILE_MEMORY], &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Not every kernel has it; nothing is registered on it here. */
static int make_uffd(void) {
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_WP_ASYNC};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd >= 0 && (ioctl(fd, UFFDIO_API, &api) < 0 || !(api.features & FEATURE_WP_ASYNC))) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* RAM is where it will stay: said once, and with that all is said. */
static void report(const void *address, size_t length, int flags) {
    int uffd = (flags & MAP_PRIVATE) ? make_uffd() : -1;
    struct preload_message message = {.magic = PRELOAD_MAGIC,
                                      .kind = PRELOAD_MAPPED,
                                      .address = (uintptr_t)address,
                                      .length = length,
                                      .tracked = uffd >= 0};
    mapped = true;
    say(&message, uffd);
    if (uffd >= 0)
        (void)close(uffd);
    (void)close(sock);
}

#define DEFINE_MMAP(name, offset_type)                                                                                 \
    typedef void *name##_function(void *, size_t, int, int, int, offset_type);                                         \
    DEFINE_REAL(name##_function, name)                                                                                 \
    EXPORT void *name(void *address, size_t length, int protection, int flags, int fd, offset_type offset) {           \
        void *result = real_##name()(address, length, protection, flags, fd, offset);                                  \
        if (result != MAP_FAILED && is_memory(fd))                                                                     \
            report(result, length, flags);                                                                             \
        return result;                                                                                                 \
    }

DEFINE_MMAP(mmap, off_t)
DEFINE_MMAP(mmap64, off64_t)
