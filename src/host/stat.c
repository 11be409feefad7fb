/* SPDX-License-Identifier: Apache-2.0 */
/* Free room and memory of the host, read afresh at every call. */
#include "host/stat.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>

#define MEMINFO_MAX 65536
#define MIB (1024ull * 1024ull)

int host_stat_parse_meminfo(const char *text, uint64_t *ret_mib, struct sp_error *err) {
    static const char key[] = "MemAvailable:";
    const char *line = strstr(text, key);
    char digits[24];
    size_t len;
    uint64_t kib;

    if (line && line != text && line[-1] != '\n')
        line = NULL;
    if (line) {
        line += strlen(key);
        line += strspn(line, " ");
        len = strspn(line, "0123456789");
        if (len < sizeof(digits)) {
            memcpy(digits, line, len);
            digits[len] = '\0';
            if (text_to_u64(digits, 0, UINT64_MAX / 1024, &kib)) {
                *ret_mib = kib / 1024;
                return 0;
            }
        }
    }
    return sp_error_set(err, SP_E_INTERNAL, "/proc/meminfo has no MemAvailable");
}

int host_stat_get(int store_fd, struct host_stat *ret, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    struct statvfs vfs;
    struct host_stat st;
    int r;

    if (fstatvfs(store_fd, &vfs) < 0)
        return sp_error_errno(err, errno, "statvfs", "store");
    st.store_free_mib = (uint64_t)vfs.f_bavail * vfs.f_frsize / MIB;
    st.store_total_mib = (uint64_t)vfs.f_blocks * vfs.f_frsize / MIB;
    r = file_read(AT_FDCWD, "/proc/meminfo", MEMINFO_MAX, &text, NULL, err);
    if (r == 0)
        r = host_stat_parse_meminfo(text, &st.memory_available_mib, err);
    if (r < 0)
        return r;
    *ret = st;
    return 0;
}
