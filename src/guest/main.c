/* SPDX-License-Identifier: Apache-2.0 */
/* space-guest: PID 1 of every sandbox, started by the kernel from the initramfs the host made. Never returns: what it
 * cannot do without ends the machine (power_fatal), and the host sees the VMM exit. */
#include "base/clock.h"
#include "guest/agent.h"
#include "guest/boot.h"
#include "guest/klog.h"
#include "guest/power.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define AGENT_FILES 65536u
#define FILES_HARD 524288u

static struct agent agent;

static size_t memory_bytes(void) {
    struct sysinfo info;
    return sysinfo(&info) < 0 ? 64u << 20 : (size_t)info.totalram * info.mem_unit;
}

int main(void) {
    struct agent_config config = {.cgroup_root = BOOT_CGROUP_ROOT};
    struct rlimit files = {AGENT_FILES, FILES_HARD};
    int r;

    if (getpid() != 1) {
        klog(KLOG_ERROR, "this is the init of a guest, not a command");
        return 1;
    }
    (void)umask(022);
    boot_system();
    (void)setrlimit(RLIMIT_NOFILE, &files);
    config.memory_bytes = memory_bytes();
    config.port_fd = boot_open_port();
    r = agent_init(&agent, &config);
    if (r < 0)
        power_fatal("agent", r);
    klog(KLOG_INFO, "ready after %llu ms", (unsigned long long)(clock_monotonic_ns() / NSEC_PER_MSEC));
    agent_run(&agent);
    power_fatal("the loop ended", 0);
}
