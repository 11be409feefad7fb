/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/boot.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "guest/idle.h"
#include "guest/klog.h"
#include "guest/power.h"
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define ROOT_DISK "/dev/vda"
#define ROOT_WAIT_MS 30000u /* a busy host; it has a watchdog of its own */
#define PORT_NAME "space.0"
#define PORT_WAIT_MS 30000u
#define POLL_NS 1000000
#define MODULE_COMPRESSED 4 /* MODULE_INIT_COMPRESSED_FILE */

static void pause_briefly(void) {
    (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
}

/* --- file systems --- */

struct mount_row {
    const char *type, *target, *options;
    unsigned long flags;
    mode_t mode; /* of the mount point, made when missing */
    bool essential;
};

static const struct mount_row early[] = {
    {"proc", "/proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555, true},
    {"sysfs", "/sys", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555, true},
    {"devtmpfs", "/dev", "mode=0755", MS_NOSUID, 0755, true},
};

static const struct mount_row late[] = {
    {"devpts", "/dev/pts", "gid=5,mode=0620,ptmxmode=0666", MS_NOSUID | MS_NOEXEC, 0755, true},
    {"tmpfs", "/dev/shm", "mode=1777", MS_NOSUID | MS_NODEV, 01777, false},
    {"tmpfs", "/run", "mode=0755", MS_NOSUID | MS_NODEV, 0755, true},
    {"cgroup2", BOOT_CGROUP_ROOT, NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0755, true},
};

static void mount_rows(const struct mount_row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const struct mount_row *m = &rows[i];
        (void)mkdir(m->target, m->mode);
        if (mount(m->type, m->target, m->type, m->flags, m->options) == 0 || errno == EBUSY)
            continue;
        if (m->essential)
            power_fatal(m->target, errno);
        klog(KLOG_WARN, "%s is not mounted: %s", m->target, strerror(errno));
    }
}

/* --- modules --- */

static void load_module(const char *name) {
    char path[300];
    int fd, flags = strstr(name, ".ko.") ? MODULE_COMPRESSED : 0;

    if (!text_printf(path, sizeof(path), "/modules/%s", name))
        return;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (syscall(SYS_finit_module, fd, "", flags) < 0 && errno != EEXIST))
        klog(KLOG_ERROR, "module %s: %s", name, strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    (void)unlink(path); /* its memory is the initramfs's */
}

/* One name a line, in the order in which they need each other. No list, no modules: a kernel with all built in. */
static void load_modules(void) {
    _cleanup_fclose_ FILE *f = fopen("/modules/modules.order.txt", "re");
    char line[256];

    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (line[0] && line[0] != '#' && !strchr(line, '/'))
            load_module(line);
    }
}

/* --- the root disk --- */

static void mount_root(void) {
    struct deadline limit = deadline_in_ms(ROOT_WAIT_MS);

    while (access(ROOT_DISK, F_OK) < 0) {
        if (deadline_passed(limit))
            power_fatal(ROOT_DISK " did not appear", ETIMEDOUT);
        pause_briefly();
    }
    if (mount(ROOT_DISK, "/newroot", "ext4", MS_NOATIME, "discard") < 0)
        power_fatal("root disk", errno);
}

static void switch_root(void) {
    static const char *const moved[] = {"/proc", "/sys", "/dev"};
    char target[32];

    for (size_t i = 0; i < ARRAY_SIZE(moved); i++) {
        (void)text_printf(target, sizeof(target), "/newroot%s", moved[i]);
        (void)mkdir(target, 0755);
        if (mount(moved[i], target, NULL, MS_MOVE, NULL) < 0)
            power_fatal(target, errno);
    }
    (void)unlink("/init"); /* stays in memory while it runs, the name goes */
    if (chdir("/newroot") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        power_fatal("switch to the root disk", errno);
}

/* --- the rest --- */

static void make_links(void) {
    static const char *const links[][2] = {
        {"/proc/self/fd", "/dev/fd"},
        {"/proc/self/fd/0", "/dev/stdin"},
        {"/proc/self/fd/1", "/dev/stdout"},
        {"/proc/self/fd/2", "/dev/stderr"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(links); i++)
        (void)symlink(links[i][0], links[i][1]);
    if (mkdir("/tmp", 0777) == 0)
        (void)chmod("/tmp", 01777);
}

static void loopback_up(void) {
    _cleanup_close_ int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq ifr = {0};

    (void)text_copy(ifr.ifr_name, sizeof(ifr.ifr_name), "lo");
    if (sock < 0 || ioctl(sock, SIOCGIFFLAGS, &ifr) < 0) {
        klog(KLOG_WARN, "no loopback: %s", strerror(errno));
        return;
    }
    ifr.ifr_flags |= IFF_UP | IFF_RUNNING;
    if (ioctl(sock, SIOCSIFFLAGS, &ifr) < 0)
        klog(KLOG_WARN, "loopback stays down: %s", strerror(errno));
}

/* 0, 1 and 2 are taken, so that no pipe of a command ever gets one of them. */
static void null_standard_descriptors(void) {
    int fd = open("/dev/null", O_RDWR | O_NOCTTY);

    if (fd < 0)
        power_fatal("/dev/null", errno);
    for (int i = 0; i < 3; i++)
        if (fd != i)
            (void)dup2(fd, i);
    if (fd > 2)
        (void)close(fd);
}

void boot_system(void) {
    mount_rows(early, ARRAY_SIZE(early));
    klog_init();
    null_standard_descriptors();
    load_modules();
    mount_root();
    switch_root();
    mount_rows(late, ARRAY_SIZE(late));
    make_links();
    (void)sethostname("space", 5);
    loopback_up();
    idle_quietly();
}

/* --- the port --- */

static bool port_is_ours(const char *entry) {
    char path[320], name[32] = "";
    _cleanup_close_ int fd = -1;

    if (!text_printf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", entry))
        return false;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, name, sizeof(name) - 1) <= 0)
        return false;
    name[strcspn(name, "\n")] = '\0';
    return strcmp(name, PORT_NAME) == 0;
}

static int try_port(void) {
    _cleanup_closedir_ DIR *dir = opendir("/sys/class/virtio-ports");
    struct dirent *e;
    char path[300];

    while (dir && (e = readdir(dir)))
        if (e->d_name[0] != '.' && port_is_ours(e->d_name) && text_printf(path, sizeof(path), "/dev/%s", e->d_name))
            return open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    return -1;
}

int boot_open_port(void) {
    struct deadline limit = deadline_in_ms(PORT_WAIT_MS);

    for (;;) {
        int fd = try_port();
        if (fd >= 0)
            return fd;
        if (deadline_passed(limit))
            power_fatal("port " PORT_NAME " did not appear", ETIMEDOUT);
        pause_briefly();
    }
}
