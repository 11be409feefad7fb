/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before the first VM: a work directory on a reflink file system (a loop-mounted btrfs of its own unless one was named),
 * the root image out of a tree, and the initramfs out of the agent and the kernel's modules.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "harness.h"
#include "wire/cpio.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define DISK_SIZE "4G"
#define FILE_MAX (64u << 20)

static char made_dir[HARNESS_PATH]; /* ours to remove */
static pid_t maker;

/* A shell command with up to two values as $1 and $2. */
static int shell(const char *command, const char *a, const char *b) {
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(2, 1);
        execl("/bin/sh", "sh", "-c", command, "sh", a, b, (char *)NULL);
        _exit(127);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

static void remove_work(void) {
    char store[HARNESS_PATH];
    if (getpid() != maker)
        return;
    (void)umount2(harness_path(store, "%s/store", made_dir), MNT_DETACH);
    (void)dir_remove_tree(AT_FDCWD, made_dir, NULL);
}

static void make_work(struct harness *h) {
    char command[160];
    (void)text_copy(made_dir, sizeof(made_dir), "/var/tmp/space-engine-XXXXXX");
    if (!mkdtemp(made_dir))
        harness_die("mkdtemp: %s", strerror(errno));
    maker = getpid();
    (void)atexit(remove_work);
    (void)harness_path(h->work, "%s/store", made_dir);
    harness_make_dir(made_dir, 0755, 0);
    harness_make_dir(h->work, 0755, 0);
    (void)text_printf(command, sizeof(command),
                      "chmod 755 $1 && truncate -s %uM $1/store.img && mkfs.btrfs -q $1/store.img && "
                      "mount -o loop $1/store.img $2",
                      h->store_mib);
    if (shell(command, made_dir, h->work) != 0)
        harness_die("no loop-mounted btrfs; name a directory on a reflink file system with --work");
}

static void make_disk(struct harness *h) {
    char image[HARNESS_PATH];
    (void)harness_path(image, "%s/template.img", h->work);
    if (access(image, F_OK) < 0 &&
        shell(h->disk[0] ? "cp --sparse=always -- \"$1\" \"$2\""
                         : "truncate -s " DISK_SIZE " \"$2\" && mke2fs -q -F -t ext4 -m 1 -L root -E "
                           "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0,nodiscard -d \"$1\" \"$2\"",
              h->disk[0] ? h->disk : h->rootfs, image) != 0)
        harness_die("no root image");
    (void)text_copy(h->disk, sizeof(h->disk), image);
}

static int append(void *arg, const void *data, size_t len) {
    return buf_append(arg, data, len);
}

static void add_file(struct cpio *c, const char *path, const char *name, uint32_t mode) {
    _cleanup_free_ char *data = NULL;
    struct sp_error err = {0};
    size_t len;
    if (file_read(AT_FDCWD, path, FILE_MAX, &data, &len, &err) < 0)
        harness_die("%s: %s", path, err.text);
    (void)cpio_file(c, name, mode, len);
    (void)cpio_data(c, data, len);
}

static void add_modules(struct harness *h, struct cpio *c) {
    _cleanup_free_ char *order = NULL;
    char path[HARNESS_PATH], name[HARNESS_PATH], *save = NULL;
    size_t len;
    if (file_read(AT_FDCWD, harness_path(path, "%s/modules.order.txt", h->kernel_dir), 65536, &order, &len, NULL) < 0)
        return; /* everything is built in */
    add_file(c, path, "modules/modules.order.txt", 0444);
    for (char *line = strtok_r(order, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        add_file(c, harness_path(path, "%s/modules/%s", h->kernel_dir, line), harness_path(name, "modules/%s", line),
                 0444);
}

static void make_initrd(struct harness *h) {
    char path[HARNESS_PATH];
    _cleanup_buf_ struct buf out = {0};
    struct sp_error err = {0};
    struct cpio c;
    if (h->initrd[0])
        return;
    buf_init(&out, FILE_MAX);
    cpio_init(&c, append, &out);
    (void)cpio_guest_skeleton(&c);
    add_file(&c, harness_path(path, "%s/space-guest", h->libexec), "init", 0755);
    add_modules(h, &c);
    (void)harness_path(h->initrd, "%s/initrd-%s.cpio", h->work, h->kernel);
    if (cpio_finish(&c) < 0 || file_replace(AT_FDCWD, h->initrd, out.data, out.len, 0444, &err) < 0)
        harness_die("initramfs: %s", err.text);
}

void harness_prepare(struct harness *h) {
    if (!h->work[0])
        make_work(h);
    make_disk(h);
    make_initrd(h);
}
