/* SPDX-License-Identifier: Apache-2.0 */
/* Finds every id on the host, in control groups and directories, and removes it the way vm_stop does. */
#include "broker/release.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/request.h"
#include "broker/snapshot.h"
#include "broker/vm_remove.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

static int note(void *ctx, const char *id) {
    if (request_id_is_valid(id))
        (void)json_object_set_new(ctx, id, json_true());
    return 0;
}

static int note_dir(json_t *ids, int parent, struct sp_error *err) {
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;
    int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)close_fd(fd);
        return sp_error_errno(err, errno, "opendir", "looking for VMs");
    }
    while ((entry = readdir(dir))) {
        char boot[ID_SIZE];
        const char *sealed = snapshot_temp_boot(entry->d_name, boot);
        (void)note(ids, sealed ? sealed : entry->d_name);
    }
    return 0;
}

int release_all(const struct layout *layout, struct cgroup_root *cgroups, struct sp_error *err) {
    const int dirs[] = {layout->sandboxes, layout->run_vm, layout->snapshots};
    _cleanup_json_ json_t *ids = json_object();
    const char *id;
    json_t *unused;
    int r = cgroup_list(cgroups, note, ids, err);

    for (size_t i = 0; i < ARRAY_SIZE(dirs) && r == 0; i++)
        r = note_dir(ids, dirs[i], err);
    json_object_foreach (ids, id, unused) {
        const struct vm_remove remove = {.layout = layout, .cgroups = cgroups, .id = id};
        struct sp_error why = {0};
        bool existed;
        int failed = vm_remove(&remove, &existed, &why);
        if (failed < 0) {
            log_error(LOG_L_ERROR, "release_failed", &why, "vm_id", id, NULL);
            r = r < 0 ? r : sp_error_set(err, why.code, "%s: %s", id, why.text);
        }
    }
    return r;
}
