/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest agent as an ordinary program, for tests under the sanitizers and without a VM:
 *     hosted-guest <port descriptor> [<cgroup v2 root>]
 * Needs root and a cgroup v2 tree (one without controllers will do). Leaves nothing: the cgroup is removed at the end.
 * Exits when the port is closed; 77 when there is no cgroup v2 tree to work in.
 */
#include "base/text.h"
#include "guest/agent.h"
#include "guest/klog.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define SKIP 77

static struct agent agent;

/* A folder of our own below the first cgroup v2 mount. */
static bool make_root(const char *given, char *dst, size_t size) {
    static const char *const mounts[] = {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"};
    char probe[256];

    for (size_t i = 0; i < ARRAY_SIZE(mounts); i++) {
        const char *top = given ? given : mounts[i];
        if (!text_printf(probe, sizeof(probe), "%s/cgroup.procs", top) || access(probe, W_OK) < 0)
            continue;
        (void)text_printf(probe, sizeof(probe), "%s/cgroup.subtree_control", top);
        if (access(probe, W_OK) < 0)
            continue;
        return text_printf(dst, size, "%s/space-hosted-%d", top, (int)getpid()) && mkdir(dst, 0755) == 0;
    }
    return false;
}

int main(int argc, char **argv) {
    char root[256], parent[300];
    struct agent_config config = {.hosted = true, .cgroup_root = root, .memory_bytes = 256u << 20};
    uint64_t fd;
    int r;

    if (argc < 2 || !text_to_u64(argv[1], 3, 1000, &fd)) {
        fprintf(stderr, "usage: hosted-guest <port descriptor> [<cgroup root>]\n");
        return 2;
    }
    if (!make_root(argc > 2 ? argv[2] : NULL, root, sizeof(root)))
        return SKIP;
    config.port_fd = (int)fd;
    (void)fcntl(config.port_fd, F_SETFL, O_NONBLOCK);
    (void)fcntl(config.port_fd, F_SETFD, FD_CLOEXEC);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    r = agent_init(&agent, &config);
    if (r < 0) {
        fprintf(stderr, "agent: %s\n", strerror(-r));
        return 1;
    }
    agent_run(&agent);
    cgroup_teardown();
    (void)text_printf(parent, sizeof(parent), "%s/../cgroup.procs", root);
    FILE *f = fopen(parent, "we");
    if (f) {
        (void)fprintf(f, "%d", (int)getpid());
        (void)fclose(f);
    }
    return rmdir(root) < 0 ? 1 : 0;
}
