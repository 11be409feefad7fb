/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups behind one interface: finding the hierarchies, making and removing groups. What differs between v1
 * and v2 (limits, entering, killing) is in the two backends. A process moves only into a group, never out of one.
 */
#include "host/cgroup.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "host/cgroup_backend.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define MOUNTINFO_MAX (1024u * 1024u)
#define CONTROL_FILE_MAX (256u * 1024u)

const char *const cgroup_controller_names[CGROUP_HIERARCHIES_MAX] = {"cpu", "memory", "pids"};

static struct cgroup_root *root_new(const struct cgroup_ops *ops, const char *parent) {
    struct cgroup_root *root = calloc(1, sizeof(*root));
    if (!root)
        abort();
    root->ops = ops;
    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX; h++)
        root->mounts[h] = root->parents[h] = -1;
    if (!text_copy(root->parent, sizeof(root->parent), parent))
        abort();
    return root;
}

struct cgroup_root *cgroup_root_free(struct cgroup_root *root) {
    for (unsigned h = 0; root && h < CGROUP_HIERARCHIES_MAX; h++) {
        (void)close_fd(root->parents[h]);
        (void)close_fd(root->mounts[h]);
    }
    free(root);
    return NULL;
}

static int open_parent_group(struct cgroup_root *root, unsigned h, const char *mount, struct sp_error *err) {
    root->mounts[h] = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root->mounts[h] < 0)
        return sp_error_errno(err, errno, "open", "%s", mount);
    if (mkdirat(root->mounts[h], root->parent, 0755) < 0 && errno != EEXIST)
        return sp_error_errno(err, errno, "mkdir", "%s/%s", mount, root->parent);
    root->parents[h] = openat(root->mounts[h], root->parent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root->parents[h] < 0)
        return sp_error_errno(err, errno, "open", "%s/%s", mount, root->parent);
    return 0;
}

static void note_missing(struct cgroup_root *root) {
    size_t at = 0;
    for (unsigned c = 0; c < CGROUP_HIERARCHIES_MAX; c++)
        if (!root->has_controller[c])
            at += (size_t)snprintf(root->missing + at, sizeof(root->missing) - at, "%s%s", at ? " " : "",
                                   cgroup_controller_names[c]);
}

/* Whether `word` is one of the words of `list`, which are separated by any of `separators`. */
static bool list_has_word(const char *list, const char *word, const char *separators) {
    size_t len = strlen(word);
    while (*list) {
        size_t n = strcspn(list, separators);
        if (n == len && strncmp(list, word, n) == 0)
            return true;
        list += n;
        list += strspn(list, separators);
    }
    return false;
}

/* The v2 controllers have to be switched on for the children of the mount's root and of the parent group. */
static void enable_v2_controllers(struct cgroup_root *root) {
    _cleanup_free_ char *have = NULL;
    int dirs[] = {root->mounts[0], root->parents[0]};

    if (file_read(root->mounts[0], "cgroup.controllers", 4096, &have, NULL, NULL) < 0)
        return;
    for (unsigned c = 0; c < CGROUP_HIERARCHIES_MAX; c++) {
        char word[16];
        root->has_controller[c] = list_has_word(have, cgroup_controller_names[c], " \n");
        (void)text_printf(word, sizeof(word), "+%s", cgroup_controller_names[c]);
        for (unsigned i = 0; root->has_controller[c] && i < ARRAY_SIZE(dirs); i++) {
            _cleanup_close_ int fd = openat(dirs[i], "cgroup.subtree_control", O_WRONLY | O_CLOEXEC);
            if (fd < 0 || write(fd, word, strlen(word)) < 0)
                root->has_controller[c] = false;
        }
    }
}

int cgroup_root_open_v2(const char *mount, const char *parent, struct cgroup_root **ret, struct sp_error *err) {
    struct cgroup_root *root = root_new(&cgroup_v2_ops, parent);
    int r = open_parent_group(root, 0, mount, err);

    if (r < 0) {
        (void)cgroup_root_free(root);
        return r;
    }
    enable_v2_controllers(root);
    note_missing(root);
    *ret = root;
    return 0;
}

struct mount_scan {
    char v2[256]; /* mount point of the unified tree, or "" */
    char v1[CGROUP_HIERARCHIES_MAX][256];
};

/* One line of mountinfo: "id parent dev root MOUNTPOINT options ... - TYPE source SUPEROPTIONS". */
static void scan_mount_line(struct mount_scan *scan, char *line) {
    char *fields[5] = {0}, *tail = strstr(line, " - "), *save = NULL, *type, *super;

    if (!tail)
        return;
    *tail = '\0';
    tail += 3;
    for (unsigned i = 0; i < ARRAY_SIZE(fields); i++)
        fields[i] = strtok_r(i ? NULL : line, " ", &save);
    type = strtok_r(tail, " ", &save);
    (void)strtok_r(NULL, " ", &save);
    super = strtok_r(NULL, " ", &save);
    if (!fields[4] || !type)
        return;
    if (strcmp(type, "cgroup2") == 0 && !scan->v2[0])
        (void)text_copy(scan->v2, sizeof(scan->v2), fields[4]);
    for (unsigned c = 0; super && strcmp(type, "cgroup") == 0 && c < CGROUP_HIERARCHIES_MAX; c++)
        if (!scan->v1[c][0] && list_has_word(super, cgroup_controller_names[c], ","))
            (void)text_copy(scan->v1[c], sizeof(scan->v1[c]), fields[4]);
}

static int scan_mounts(struct mount_scan *scan, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    char *save = NULL;
    int r = file_read(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_MAX, &text, NULL, err);

    if (r < 0)
        return r;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        scan_mount_line(scan, line);
    return 0;
}

static int root_open_v1(const struct mount_scan *scan, const char *parent, struct cgroup_root **ret,
                        struct sp_error *err) {
    struct cgroup_root *root = root_new(&cgroup_v1_ops, parent);

    for (unsigned c = 0; c < CGROUP_HIERARCHIES_MAX; c++) {
        int r;
        if (!scan->v1[c][0])
            continue;
        r = open_parent_group(root, c, scan->v1[c], err);
        if (r < 0) {
            (void)cgroup_root_free(root);
            return r;
        }
        root->has_controller[c] = true;
    }
    note_missing(root);
    *ret = root;
    return 0;
}

int cgroup_root_open(const char *parent, struct cgroup_root **ret, struct sp_error *err) {
    struct mount_scan scan = {0};
    bool any_v1 = false;
    int r = scan_mounts(&scan, err);

    if (r < 0)
        return r;
    for (unsigned c = 0; c < CGROUP_HIERARCHIES_MAX; c++)
        any_v1 = any_v1 || scan.v1[c][0];
    /* A hybrid host mounts an empty v2 tree beside the v1 controllers: the controllers decide. */
    if (any_v1)
        return root_open_v1(&scan, parent, ret, err);
    if (scan.v2[0])
        return cgroup_root_open_v2(scan.v2, parent, ret, err);
    return sp_error_set(err, SP_E_UNSUPPORTED, "no control groups are mounted on this host");
}

void cgroup_root_remove(struct cgroup_root *root) {
    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX; h++)
        if (root->mounts[h] >= 0)
            (void)unlinkat(root->mounts[h], root->parent, AT_REMOVEDIR);
}

const char *cgroup_root_version(const struct cgroup_root *root) {
    return root->ops->version;
}

const char *cgroup_missing_controllers(const struct cgroup_root *root) {
    return root->missing;
}

unsigned cgroup_first_hierarchy(const struct cgroup_root *root) {
    unsigned h = 0;
    while (h + 1 < CGROUP_HIERARCHIES_MAX && root->parents[h] < 0)
        h++;
    return h;
}

int cgroup_open_file(struct cgroup_root *root, unsigned h, const char *id, const char *file, int flags,
                     struct sp_error *err) {
    char path[128];
    int fd;

    if (!text_printf(path, sizeof(path), "%s/%s", id, file))
        return sp_error_set(err, SP_E_INTERNAL, "name of a control group is too long");
    fd = openat(root->parents[h], path, flags | O_CLOEXEC);
    if (fd < 0)
        return sp_error_errno(err, errno, "open", "cgroup %s", path);
    return fd;
}

int cgroup_write_file(struct cgroup_root *root, unsigned h, const char *id, const char *file, const char *value,
                      struct sp_error *err) {
    _cleanup_close_ int fd = cgroup_open_file(root, h, id, file, O_WRONLY, err);
    if (fd < 0)
        return fd;
    if (write(fd, value, strlen(value)) < 0)
        return sp_error_errno(err, errno, "write", "cgroup %s/%s", id, file);
    return 0;
}

int cgroup_read_file(struct cgroup_root *root, unsigned h, const char *id, const char *file, char **ret,
                     struct sp_error *err) {
    char path[128];
    if (!text_printf(path, sizeof(path), "%s/%s", id, file))
        return sp_error_set(err, SP_E_INTERNAL, "name of a control group is too long");
    return file_read(root->parents[h], path, CONTROL_FILE_MAX, ret, NULL, err);
}

int cgroup_create(struct cgroup_root *root, const char *id, const struct cgroup_limits *limits, struct sp_error *err) {
    int r = 0;

    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX && r == 0; h++)
        if (root->parents[h] >= 0 && mkdirat(root->parents[h], id, 0755) < 0)
            r = errno == EEXIST ? sp_error_set(err, SP_E_CONFLICT, "control group %s exists", id)
                                : sp_error_errno(err, errno, "mkdir", "cgroup %s", id);
    if (r == -SP_E_CONFLICT)
        return r; /* someone else's group: not ours to remove */
    if (r == 0)
        r = root->ops->set_limits(root, id, limits, err);
    if (r < 0)
        (void)cgroup_remove(root, id, NULL);
    return r;
}

int cgroup_entry_open(struct cgroup_root *root, const char *id, struct cgroup_entry *ret, struct sp_error *err) {
    struct cgroup_entry entry = {.clone_fd = -1, .task_fds = {-1, -1, -1}};
    int r = root->ops->open_entry(root, id, &entry, err);

    if (r < 0) {
        cgroup_entry_close(&entry);
        return r;
    }
    *ret = entry;
    return 0;
}

void cgroup_entry_close(struct cgroup_entry *entry) {
    entry->clone_fd = close_fd(entry->clone_fd);
    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX; h++)
        entry->task_fds[h] = close_fd(entry->task_fds[h]);
}

int cgroup_entry_join_self(const struct cgroup_entry *entry) {
    /* "0" into `tasks` moves the calling thread alone and so spares the kernel its global lock: 0.4 ms against up to
     * 10 ms for `cgroup.procs`. */
    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX; h++)
        if (entry->task_fds[h] >= 0 && write(entry->task_fds[h], "0", 1) != 1)
            return -errno;
    return 0;
}

int cgroup_kill(struct cgroup_root *root, const char *id, struct sp_error *err) {
    int r = root->ops->kill(root, id, err);
    return r == -SP_E_NOT_FOUND ? 0 : r;
}

int cgroup_is_empty(struct cgroup_root *root, const char *id, bool *ret_empty, struct sp_error *err) {
    int r = root->ops->is_empty(root, id, ret_empty, err);
    if (r == -SP_E_NOT_FOUND) {
        *ret_empty = true;
        return 0;
    }
    return r;
}

int cgroup_remove(struct cgroup_root *root, const char *id, struct sp_error *err) {
    int r = 0;
    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX; h++) {
        if (root->parents[h] < 0 || unlinkat(root->parents[h], id, AT_REMOVEDIR) == 0 || errno == ENOENT)
            continue;
        r = errno == EBUSY ? sp_error_set(err, SP_E_CONFLICT, "control group %s has members", id)
                           : sp_error_errno(err, errno, "rmdir", "cgroup %s", id);
    }
    return r;
}

int cgroup_list(struct cgroup_root *root, int (*fn)(void *ctx, const char *id), void *ctx, struct sp_error *err) {
    for (unsigned h = 0; h < CGROUP_HIERARCHIES_MAX; h++) {
        _cleanup_closedir_ DIR *dir = NULL;
        struct dirent *entry;
        int fd;

        if (root->parents[h] < 0)
            continue;
        fd = openat(root->parents[h], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        dir = fd < 0 ? NULL : fdopendir(fd);
        if (!dir) {
            (void)close_fd(fd);
            return sp_error_errno(err, errno, "opendir", "cgroup %s", root->parent);
        }
        while ((entry = readdir(dir))) {
            int r = entry->d_type == DT_DIR && entry->d_name[0] != '.' ? fn(ctx, entry->d_name) : 0;
            if (r)
                return r;
        }
    }
    return 0;
}
