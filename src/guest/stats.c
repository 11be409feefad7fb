/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/stats.h"
#include "base/cleanup.h"
#include <fcntl.h>
#include <string.h>

/* The first line of a small file, or "". */
static const char *read_line(int dirfd, const char *path, char *dst, size_t size) {
    _cleanup_close_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, dst, size - 1);
    dst[n > 0 ? n : 0] = '\0';
    dst[strcspn(dst, "\n")] = '\0';
    return dst;
}

const char *stats_boot_id(char *dst, size_t size) {
    return read_line(AT_FDCWD, "/proc/sys/kernel/random/boot_id", dst, size);
}

const char *stats_clocksource(char *dst, size_t size) {
    return read_line(AT_FDCWD, "/sys/devices/system/clocksource/clocksource0/current_clocksource", dst, size);
}

uint64_t stats_fds(void) {
    _cleanup_closedir_ DIR *dir = opendir("/proc/self/fd");
    struct dirent *e;
    uint64_t n = 0;

    while (dir && (e = readdir(dir)))
        if (e->d_name[0] != '.')
            n++;
    return n > 0 ? n - 1 : 0; /* less the one just opened */
}

uint64_t stats_rss_kib(void) {
    char line[128];
    const char *resident = strchr(read_line(AT_FDCWD, "/proc/self/statm", line, sizeof(line)), ' ');
    uint64_t pages = resident ? strtoull(resident, NULL, 10) : 0;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
}

uint64_t stats_zombies(void) {
    _cleanup_closedir_ DIR *dir = opendir("/proc");
    struct dirent *e;
    char path[280], line[512];
    uint64_t n = 0;

    while (dir && (e = readdir(dir))) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        (void)snprintf(path, sizeof(path), "%s/stat", e->d_name);
        const char *after = strrchr(read_line(dirfd(dir), path, line, sizeof(line)), ')');
        if (after && strncmp(after, ") Z ", 4) == 0 && strtol(after + 4, NULL, 10) == getpid())
            n++;
    }
    return n;
}
