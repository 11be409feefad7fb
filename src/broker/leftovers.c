/* SPDX-License-Identifier: Apache-2.0 */
/* Where traces of VMs can be. */
#include "broker/leftovers.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "broker/request.h"
#include "broker/snapshot.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

struct visit {
    int (*fn)(void *ctx, const char *id);
    void *ctx;
};

static int visit(void *ctx, const char *id) {
    const struct visit *v = ctx;
    if (request_id_is_valid(id))
        (void)v->fn(v->ctx, id);
    return 0;
}

static int visit_dir(struct visit *v, int parent, struct sp_error *err) {
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)close_fd(fd);
        return sp_error_errno(err, errno, "opendir", "looking for leftovers");
    }
    while ((entry = readdir(dir))) {
        char boot[ID_SIZE];
        const char *sealed = snapshot_temp_vm(entry->d_name, boot);
        (void)visit(v, sealed ? sealed : entry->d_name);
    }
    return 0;
}

int leftovers_each(const struct layout *layout, struct cgroup_root *cgroups, int (*fn)(void *ctx, const char *id),
                   void *ctx, struct sp_error *err) {
    const int dirs[] = {layout->sandboxes, layout->run_vm, layout->snapshots};
    struct visit v = {.fn = fn, .ctx = ctx};
    int r = cgroup_list(cgroups, visit, &v, err);

    for (size_t i = 0; i < ARRAY_SIZE(dirs) && r == 0; i++)
        r = visit_dir(&v, dirs[i], err);
    return r;
}
