/* SPDX-License-Identifier: Apache-2.0 */
/* Timers of the kernel's own, and of the hardware it does not use. */
#include "guest/idle.h"
#include "base/cleanup.h"
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/io.h>
#include <unistd.h>

#define PIT_CHANNEL_0 0x40
#define PIT_MODE 0x43
#define PIT_PORTS 4
#define PIT_ONE_SHOT 0x30 /* channel 0, both bytes, mode 0: at rest after one count */
#define CLOCKEVENTS "/sys/devices/system/clockevents/"

static void write_setting(const char *path, const char *value) {
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        (void)!write(fd, value, strlen(value));
}

static bool is_pit_or_unknown(const char *path, bool must_exist) {
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    char name[32];
    ssize_t n;
    if (fd < 0)
        return must_exist;
    n = read(fd, name, sizeof(name));
    return n < 0 || (n >= 3 && memcmp(name, "pit", 3) == 0);
}

/* A kernel that has no use for the interval timer may leave it as the firmware did, as Debian's does: toggling an interrupt
 * that is masked, 36 times a second, each a wakeup of the VMM. */
static void stop_unused_pit(void) {
    if (is_pit_or_unknown(CLOCKEVENTS "clockevent0/current_device", true) ||
        is_pit_or_unknown(CLOCKEVENTS "broadcast/current_device", false) || ioperm(PIT_CHANNEL_0, PIT_PORTS, 1) < 0)
        return;
    outb(PIT_ONE_SHOT, PIT_MODE);
    outb(0, PIT_CHANNEL_0);
    outb(0, PIT_CHANNEL_0);
    (void)ioperm(PIT_CHANNEL_0, PIT_PORTS, 0);
}

void idle_quietly(void) {
    write_setting("/proc/sys/vm/compaction_proactiveness", "0\n"); /* it looks twice a second */
    write_setting("/proc/sys/vm/stat_interval", "10\n");           /* seconds, instead of one */
    stop_unused_pit();
}
