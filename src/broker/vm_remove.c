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
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define POLL_FIRST_US 100 /* it mostly is a matter of microseconds */
#define POLL_US 2000
#define CGROUP_BUSY_MS 1000

static void wait_a_moment(useconds_t *us) {
    (void)usleep(*us);
    *us = *us * 2 < POLL_US ? *us * 2 : POLL_US;
}

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
    for (useconds_t us = POLL_FIRST_US;; wait_a_moment(&us)) {
        bool empty;
        int r = cgroup_is_empty(rm->cgroups, rm->cgroup, &empty, err);
        if (r < 0 || empty)
            return r;
        *existed = true;
        r = cgroup_kill(rm->cgroups, rm->cgroup, err);
        if (r < 0)
            return r;
        if (deadline_passed(deadline))
            return sp_error_set(err, SP_E_TIMEOUT, "processes of %s did not die in time", rm->id);
    }
}

/* A group stays busy for a moment after its last process. */
static int remove_cgroup(const struct vm_remove *rm, struct sp_error *err) {
    struct deadline deadline = deadline_in_ms(CGROUP_BUSY_MS);
    useconds_t us = POLL_FIRST_US;
    int r;
    while ((r = cgroup_remove(rm->cgroups, rm->cgroup, err)) == -SP_E_CONFLICT && !deadline_passed(deadline))
        wait_a_moment(&us);
    return r;
}

static int remove_dir(int parent, const char *name, bool *existed, struct sp_error *err) {
    struct stat st;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        *existed = true;
    return dir_remove_tree(parent, name, err);
}

/* Of a VM that nobody knows any more. */
static void find_cgroup(const struct vm_remove *rm, char dst[ID_SIZE]) {
    _cleanup_close_ int dir = openat(rm->layout->sandboxes, rm->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct vm_record record;
    bool known = dir >= 0 && vm_record_read(dir, rm->id, &record, NULL) == 0;
    (void)text_copy(dst, ID_SIZE, known ? record.cgroup : rm->id);
}

/* A spare whose binding was cut off has some of it under the name it was born with. */
static int remove_dirs(const struct vm_remove *rm, int parent, bool *existed, struct sp_error *err) {
    int r = remove_dir(parent, rm->id, existed, err);
    return r < 0 || strcmp(rm->id, rm->cgroup) == 0 ? r : remove_dir(parent, rm->cgroup, existed, err);
}

static int remove_rest(const struct vm_remove *rm, bool *existed, struct sp_error *err) {
    struct sp_error log_err = {0};
    int r = remove_cgroup(rm, err);

    if (r == 0)
        r = remove_dirs(rm, rm->layout->run_vm, existed, err);
    if (r == 0)
        r = snapshot_remove_temps(rm->layout, rm->id, err);
    if (r == 0)
        r = fault_point("remove.files", err);
    if (r == 0 && vm_log_keep(rm->layout, rm->id, &log_err) < 0)
        log_error(LOG_L_WARN, "vm_log_lost", &log_err, "sandbox_id", rm->id, NULL); /* no reason to keep the VM */
    return r < 0 ? r : remove_dirs(rm, rm->layout->sandboxes, existed, err);
}

int vm_remove(const struct vm_remove *remove, bool *ret_existed, struct sp_error *err) {
    struct deadline deadline = deadline_in_ms(VM_REMOVE_DEATH_MS);
    struct vm_remove rm = *remove;
    char cgroup[ID_SIZE];
    bool existed = false;
    int r;

    if (!rm.cgroup)
        find_cgroup(&rm, cgroup);
    rm.cgroup = rm.cgroup ? rm.cgroup : cgroup;
    r = end_process(&rm, deadline, &existed, err);
    if (r == 0)
        r = end_members(&rm, deadline, &existed, err);
    if (r == 0)
        r = fault_point("remove.dead", err);
    if (r == 0)
        r = remove_rest(&rm, &existed, err);
    if (r == 0)
        *ret_existed = existed;
    return r;
}
