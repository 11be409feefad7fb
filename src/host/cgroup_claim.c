/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose an installation's group is. Two installations with one uid base would take each other's VMs for leftovers of their
 * own: a lock on the group's directory tells about one that runs, a name on it about one whose VMs do.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "host/cgroup_backend.h"
#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define OWNER_NAME "trusted.space_owner"
#define OWNER_MAX 4096
#define LOCK_MS 5000 /* jobs of a broker that died hold it until they are dead */

static int refused(const struct cgroup_root *root, const char *owner, struct sp_error *err) {
    return sp_error_field(err, SP_E_CONFLICT, "uid_base",
                          "control group %s belongs to %s: choose another uid_base, the two would share user ids",
                          root->parent, owner);
}

static int look_inside(void *ctx, const char *id) {
    struct cgroup_root *root = ctx;
    bool empty = true;
    return cgroup_is_empty(root, id, &empty, NULL) == 0 && !empty;
}

int cgroup_root_claim(struct cgroup_root *root, const char *owner, struct sp_error *err) {
    int fd = root->parents[cgroup_first_hierarchy(root)], r;
    struct deadline deadline = deadline_in_ms(LOCK_MS);
    char have[OWNER_MAX + 1];
    ssize_t n;

    (void)fchmod(fd, 0700); /* so that nobody else can hold the lock */
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return sp_error_errno(err, errno, "flock", "cgroup %s", root->parent);
        if (deadline_passed(deadline))
            return refused(root, "another installation that runs", err);
        (void)usleep(10000);
    }
    n = fgetxattr(fd, OWNER_NAME, have, OWNER_MAX);
    have[n > 0 ? n : 0] = '\0';
    if (n > 0 && strcmp(have, owner) != 0 && access(have, F_OK) == 0) {
        r = cgroup_list(root, look_inside, root, err);
        if (r)
            return r < 0 ? r : refused(root, have, err);
    }
    /* A kernel without attributes here leaves the lock, which is enough for two that run. */
    (void)fsetxattr(fd, OWNER_NAME, owner, strlen(owner), 0);
    return 0;
}
