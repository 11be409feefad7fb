/* SPDX-License-Identifier: Apache-2.0 */
/* Scope-exit cleanup. Descriptors start and end at -1 and are CLOEXEC from birth; close is never retried. */
#pragma once
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _cleanup_free_ _cleanup_(cleanup_freep)
#define _cleanup_close_ _cleanup_(cleanup_closep)
#define _cleanup_fclose_ _cleanup_(cleanup_fclosep)
#define _cleanup_closedir_ _cleanup_(cleanup_closedirp)

/* Hands a value over: the variable is emptied, so its cleanup does nothing. */
#define TAKE_PTR(p)                                                                                                    \
    ({                                                                                                                 \
        __typeof__(p) take_ = (p);                                                                                     \
        (p) = NULL;                                                                                                    \
        take_;                                                                                                         \
    })
#define TAKE_FD(fd)                                                                                                    \
    ({                                                                                                                 \
        int take_ = (fd);                                                                                              \
        (fd) = -1;                                                                                                     \
        take_;                                                                                                         \
    })
/* Defines a cleanup function `cleanup_<name>p` for a pointer type with a `_free`-like function. */
#define DEFINE_CLEANUP(type, func)                                                                                     \
    static inline void cleanup_##func##p(type *p) {                                                                    \
        if (*p)                                                                                                        \
            (void)func(*p);                                                                                            \
    }

static inline void cleanup_freep(void *p) {
    free(*(void **)p);
}
static inline void cleanup_closep(const int *fd) {
    if (*fd >= 0)
        (void)close(*fd);
}
static inline void cleanup_fclosep(FILE **f) {
    if (*f)
        (void)fclose(*f);
}
static inline void cleanup_closedirp(DIR **d) {
    if (*d)
        (void)closedir(*d);
}
/* Closes and returns -1: `fd = close_fd(fd);` */
static inline int close_fd(int fd) {
    if (fd >= 0)
        (void)close(fd);
    return -1;
}
