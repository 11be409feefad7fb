/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/power.h"
#include "guest/cgroup.h"
#include "guest/klog.h"
#include <stddef.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void restart(void) {
    for (;;) {
        (void)reboot(RB_AUTOBOOT);
        (void)sleep(1);
    }
}

_Noreturn void power_off(void) {
    (void)cgroup_kill_all();
    for (int i = 0; i < 200; i++) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue;
        if (waitpid(-1, NULL, WNOHANG) < 0)
            break; /* no children left */
        (void)usleep(10000);
    }
    sync();
    (void)mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    restart();
}

_Noreturn void power_fatal(const char *what, int err) {
    klog(KLOG_ERROR, "fatal: %s: %s", what, strerror(err < 0 ? -err : err));
    sync();
    restart();
}
