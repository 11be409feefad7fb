/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/identity.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/text.h"
#include "guest/klog.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#define RUN_DIR "/run/space"
#define BOOT_ID_FILE RUN_DIR "/boot_id"
#define BOOT_ID_PROC "/proc/sys/kernel/random/boot_id"
#define MAX_ENTROPY 512u

/* Of linux/random.h, which musl does not bring. */
struct pool_info {
    int entropy_count; /* bits */
    int buf_size;
    uint8_t buf[MAX_ENTROPY];
};
#define RNDADDENTROPY_ _IOW('R', 0x03, int[2])
#define RNDRESEEDCRNG_ _IO('R', 0x07)

bool identity_hostname_is_good(const char *s) {
    size_t n = strlen(s);
    if (n == 0)
        return true;
    return n <= 63 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == n && s[0] != '-' && s[0] != '.';
}

bool identity_machine_id_is_good(const char *s) {
    size_t n = strlen(s);
    return n == 0 || (n == 32 && strspn(s, "0123456789abcdef") == 32);
}

static unsigned failed(const char *what) {
    klog(KLOG_ERROR, "identity: %s: %s", what, strerror(errno));
    return 1;
}

/* In place, so that a watch on the file sees it and a full disk does not matter. Never through a link. */
static unsigned write_file(const char *path, const char *text, mode_t mode) {
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode);
    struct stat st;
    size_t len = strlen(text);

    if (fd < 0)
        return errno == ELOOP ? 0 : failed(path);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (pwrite(fd, text, len, 0) != (ssize_t)len || (st.st_size > (off_t)len && ftruncate(fd, (off_t)len) < 0))
        return failed(path);
    return 0;
}

static unsigned set_clock(uint64_t realtime_ns) {
    struct timespec ts = {.tv_sec = (time_t)(realtime_ns / NSEC_PER_SEC),
                          .tv_nsec = (long)(realtime_ns % NSEC_PER_SEC)};
    if (realtime_ns == 0)
        return 0;
    return clock_settime(CLOCK_REALTIME, &ts) < 0 ? failed("clock_settime") : 0;
}

static unsigned feed_entropy(const uint8_t *entropy, size_t len) {
    _cleanup_close_ int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    struct pool_info pool = {.entropy_count = (int)len * 8, .buf_size = (int)len};
    unsigned n = 0;

    if (fd < 0 || len > sizeof(pool.buf))
        return failed("/dev/urandom");
    memcpy(pool.buf, entropy, len);
    if (ioctl(fd, RNDADDENTROPY_, &pool) < 0)
        n += failed("RNDADDENTROPY");
    if (ioctl(fd, RNDRESEEDCRNG_) < 0)
        n += failed("RNDRESEEDCRNG");
    text_wipe(&pool, sizeof(pool));
    return n;
}

/* The kernel's own boot id never changes; a file of ours lies over it. */
static unsigned new_boot_id(void) {
    static bool mounted;
    uint8_t b[16];
    char hex[33], text[64];

    random_bytes(b, sizeof(b));
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    text_hex(hex, b, sizeof(b));
    (void)text_printf(text, sizeof(text), "%.8s-%.4s-%.4s-%.4s-%.12s\n", hex, hex + 8, hex + 12, hex + 16, hex + 20);
    if (write_file(BOOT_ID_FILE, text, 0444) > 0)
        return 1;
    if (!mounted && mount(BOOT_ID_FILE, BOOT_ID_PROC, NULL, MS_BIND, NULL) < 0)
        return failed("boot id");
    mounted = true;
    return 0;
}

static unsigned set_names(const struct identity_values *v) {
    char line[80];
    unsigned n = 0;

    if (v->machine_id[0]) {
        (void)text_printf(line, sizeof(line), "%s\n", v->machine_id);
        n += write_file("/etc/machine-id", line, 0444);
        n += write_file("/run/machine-id", line, 0444);
    }
    if (v->other_machine)
        n += new_boot_id();
    if (v->hostname[0]) {
        if (sethostname(v->hostname, strlen(v->hostname)) < 0)
            n += failed("sethostname");
        (void)text_printf(line, sizeof(line), "%s\n", v->hostname);
        n += write_file("/etc/hostname", line, 0644);
    }
    return n;
}

/* Routes that were looked up elsewhere; a kernel without the protocol has no file. */
static void forget_network(const struct identity_values *v) {
    static const char *const files[] = {"/proc/sys/net/ipv4/route/flush", "/proc/sys/net/ipv6/route/flush"};
    for (size_t i = 0; v->other_machine && i < ARRAY_SIZE(files); i++) {
        _cleanup_close_ int fd = open(files[i], O_WRONLY | O_CLOEXEC);
        if (fd >= 0)
            (void)!write(fd, "1\n", 2);
    }
}

static unsigned write_generation(const struct identity_values *v) {
    char line[96];
    unsigned n = 0;

    if (v->sandbox_id[0]) {
        (void)text_printf(line, sizeof(line), "%s\n", v->sandbox_id);
        n += write_file(RUN_DIR "/sandbox_id", line, 0444);
    }
    (void)text_printf(line, sizeof(line), "%llu\n", (unsigned long long)v->generation);
    return n + write_file(RUN_DIR "/generation", line, 0444);
}

unsigned identity_apply(const struct identity_values *v) {
    unsigned n = set_clock(v->realtime_ns);

    if (mkdir(RUN_DIR, 0755) < 0 && errno != EEXIST)
        n += failed(RUN_DIR);
    n += feed_entropy(v->entropy, v->entropy_len);
    if (v->same)
        return n;
    n += set_names(v);
    forget_network(v);
    return n + write_generation(v);
}

/* --- hooks --- */

static bool only_root_writes(const struct stat *st) {
    return st->st_uid == 0 && (st->st_mode & 022) == 0;
}

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **identity_hooks(void) {
    _cleanup_closedir_ DIR *dir = NULL;
    int fd = open(IDENTITY_HOOK_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const size_t each = sizeof(IDENTITY_HOOK_DIR) + 256;
    struct dirent *e;
    struct stat st;
    char **list, *text;
    size_t n = 0;

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir || fstat(fd, &st) < 0 || !only_root_writes(&st))
        return NULL;
    list = malloc((IDENTITY_MAX_HOOKS + 1) * sizeof(char *) + IDENTITY_MAX_HOOKS * each);
    if (!list)
        return NULL;
    text = (char *)(list + IDENTITY_MAX_HOOKS + 1);
    while (n < IDENTITY_MAX_HOOKS && (e = readdir(dir))) {
        if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) || !(st.st_mode & 0100))
            continue;
        if (!only_root_writes(&st)) {
            klog(KLOG_WARN, "identity hook passed over: others may write it");
            continue;
        }
        list[n] = text + n * each;
        (void)text_printf(list[n], each, IDENTITY_HOOK_DIR "/%s", e->d_name);
        n++;
    }
    list[n] = NULL;
    qsort(list, n, sizeof(char *), compare);
    return list;
}
