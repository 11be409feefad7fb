/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a VM, in the reverse order of vm_start: processes, control group, sockets, half-made snapshots, files. */
#include "broker/vm_remove.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/snapshot.h"
#include "broker/vm_log.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define POLL_US 2000
#define CGROUP_BUSY_MS 1000

/* Its end takes every process below it along: space-vm is pid 1 of their namespace. */
static int end_process(const struct vm_remove *rm, struct deadline deadline, bool *existed, struct sp_error *err) {
    _cleanup_close_ int pidfd = -1;
    int r;

    if (!rm->process || process_open(rm->process, &pidfd, NULL) < 0)
        return 0;
    *existed = true;
    r = process_kill(pidfd, err);
    return r < 0 ? r : process_wait_dead(pidfd, deadline, err);
}

/* Also whatever was started but never recorded. */
static int end_members(const struct vm_remove *rm, struct deadline deadline, bool *existed, struct sp_error *err) {
    for (;;) {
        bool empty;
        int r = cgroup_is_empty(rm->cgroups, rm->id, &empty, err);
        if (r < 0 || empty)
            return r;
        *existed = true;
        r = cgroup_kill(rm->cgroups, rm->id, err);
        if (r < 0)
            return r;
        if (deadline_passed(deadline))
            return sp_error_set(err, SP_E_TIMEOUT, "processes of %s did not die in time", rm->id);
        (void)usleep(POLL_US);
    }
}

/* A group stays busy for a moment after its last process. */
static int remove_cgroup(const struct vm_remove *rm, struct sp_error *err) {
    struct deadline deadline = deadline_in_ms(CGROUP_BUSY_MS);
    int r;
    while ((r = cgroup_remove(rm->cgroups, rm->id, err)) == -SP_E_CONFLICT && !deadline_passed(deadline))
        (void)usleep(POLL_US);
    return r;
}

static int remove_dir(int parent, const char *name, bool *existed, struct sp_error *err) {
    struct stat st;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        *existed = true;
    return dir_remove_tree(parent, name, err);
}

/* What a seal of this boot left when it was cut off. */
static int remove_sealing(const struct vm_remove *rm, struct sp_error *err) {
    _cleanup_closedir_ DIR *dir = NULL;
    struct dirent *entry;
    int r = 0, fd;

    if (!id_is_valid(rm->id, "tpb"))
        return 0;
    fd = openat(rm->layout->snapshots, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        (void)close_fd(fd);
        return sp_error_errno(err, errno, "opendir", "snapshots");
    }
    while (r == 0 && (entry = readdir(dir))) {
        char id[ID_SIZE];
        if (snapshot_temp_boot(entry->d_name, id) && strcmp(id, rm->id) == 0)
            r = dir_remove_tree(rm->layout->snapshots, entry->d_name, err);
    }
    return r;
}

int vm_remove(const struct vm_remove *rm, bool *ret_existed, struct sp_error *err) {
    struct deadline deadline = deadline_in_ms(VM_REMOVE_DEATH_MS);
    struct sp_error log_err = {0};
    bool existed = false;
    int r = end_process(rm, deadline, &existed, err);

    if (r == 0)
        r = end_members(rm, deadline, &existed, err);
    if (r == 0)
        r = fault_point("remove.dead", err);
    if (r == 0)
        r = remove_cgroup(rm, err);
    if (r == 0)
        r = remove_dir(rm->layout->run_vm, rm->id, &existed, err);
    if (r == 0)
        r = remove_sealing(rm, err);
    if (r == 0)
        r = fault_point("remove.files", err);
    if (r == 0 && vm_log_keep(rm->layout, rm->id, &log_err) < 0)
        log_error(LOG_L_WARN, "vm_log_lost", &log_err, "sandbox_id", rm->id, NULL); /* no reason to keep the VM */
    if (r == 0)
        r = remove_dir(rm->layout->sandboxes, rm->id, &existed, err);
    if (r == 0)
        *ret_existed = existed;
    return r;
}
