/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into QEMU before 8.2, which opens a RAM file read-write even when it maps it privately: a VMM taken over by
 * its guest could then rewrite the memory every clone is made from. This turns the open of that one file, named by
 * SPACE_VMM_RAM, into a read-only one. Nothing else is touched. QEMU from 8.2 on has readonly=on for it.
 *
 * (The file is root's, 0444, on a read-only mount as well; this makes the descriptor itself harmless, and without it
 * QEMU could not open the file at all.)
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

typedef int open_function(const char *path, int flags, ...);

static int adjusted(const char *path, int flags) {
    const char *ram = getenv("SPACE_VMM_RAM");
    if (ram && path && (flags & O_ACCMODE) == O_RDWR && !(flags & O_CREAT) && strcmp(path, ram) == 0)
        return (flags & ~O_ACCMODE) | O_RDONLY;
    return flags;
}

/* dlsym returns an object pointer; POSIX promises that this conversion works. */
static open_function *next(const char *name) {
    void *symbol = dlsym(RTLD_NEXT, name);
    open_function *function;
    if (!symbol)
        abort();
    memcpy(&function, &symbol, sizeof(function));
    return function;
}

#define DEFINE_OPEN(name)                                                                                              \
    EXPORT int name(const char *path, int flags, ...) {                                                                \
        static open_function *real;                                                                                    \
        mode_t mode = 0;                                                                                               \
        if (!real)                                                                                                     \
            real = next(#name);                                                                                        \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                                           \
            va_list ap;                                                                                                \
            va_start(ap, flags);                                                                                       \
            mode = va_arg(ap, mode_t);                                                                                 \
            va_end(ap);                                                                                                \
        }                                                                                                              \
        return real(path, adjusted(path, flags), mode);                                                                \
    }

/* The fortified forms, which take no mode. */
#define DEFINE_OPEN_2(name)                                                                                            \
    EXPORT int name(const char *path, int flags);                                                                      \
    EXPORT int name(const char *path, int flags) {                                                                     \
        static open_function *real;                                                                                    \
        if (!real)                                                                                                     \
            real = next(#name);                                                                                        \
        return real(path, adjusted(path, flags));                                                                      \
    }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPEN_2(__open_2)
DEFINE_OPEN_2(__open64_2)
