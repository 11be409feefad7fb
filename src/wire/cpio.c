/* SPDX-License-Identifier: Apache-2.0 */
/* The newc archive: a header of 110 characters of hex, the name, the data, each padded to four bytes. */
#include "wire/cpio.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define HEADER_SIZE 110

struct entry {
    const char *name;
    uint32_t mode, links;
    uint64_t size;
    uint32_t major, minor;
};

void cpio_init(struct cpio *c, int (*write)(void *arg, const void *data, size_t len), void *arg) {
    *c = (struct cpio){.write = write, .arg = arg};
}

static int fail(struct cpio *c, int err) {
    if (c->failed == 0)
        c->failed = err;
    return c->failed;
}

static int put(struct cpio *c, const void *data, size_t len) {
    int r;
    if (c->failed < 0)
        return c->failed;
    if (len == 0)
        return 0;
    r = c->write(c->arg, data, len);
    if (r < 0)
        return fail(c, r);
    c->written += len;
    return 0;
}

static int pad(struct cpio *c, unsigned to) {
    static const char zeros[512];
    return put(c, zeros, (size_t)((to - c->written % to) % to));
}

/* A name the kernel unpacks inside the root: no empty, "." or ".." part, no leading slash. */
static int name_is_good(const char *name) {
    size_t len = strlen(name);
    if (len == 0 || len > CPIO_MAX_NAME)
        return 0;
    for (const char *p = name;;) {
        size_t part = strcspn(p, "/");
        if (part == 0 || (part == 1 && p[0] == '.') || (part == 2 && p[0] == '.' && p[1] == '.'))
            return 0;
        if (p[part] == '\0')
            return 1;
        p += part + 1;
    }
}

static int header(struct cpio *c, const struct entry *e) {
    char text[HEADER_SIZE + 1];
    size_t name_size = strlen(e->name) + 1;

    if (c->left > 0 || e->size > UINT32_MAX)
        return fail(c, -EINVAL);
    (void)snprintf(text, sizeof(text),
                   "070701%08" PRIX32 "%08" PRIX32 "%08X%08X%08" PRIX32 "%08X%08" PRIX32 "%08X%08X%08" PRIX32
                   "%08" PRIX32 "%08" PRIX32 "%08X",
                   ++c->inode, e->mode, 0u, 0u, e->links, 0u, (uint32_t)e->size, 0u, 0u, e->major, e->minor,
                   (uint32_t)name_size, 0u);
    (void)put(c, text, HEADER_SIZE);
    (void)put(c, e->name, name_size);
    return pad(c, 4);
}

static int entry(struct cpio *c, const struct entry *e) {
    if (!name_is_good(e->name))
        return fail(c, -EINVAL);
    return header(c, e);
}

int cpio_directory(struct cpio *c, const char *name, uint32_t mode) {
    return entry(c, &(struct entry){.name = name, .mode = S_IFDIR | (mode & 07777), .links = 2});
}

int cpio_file(struct cpio *c, const char *name, uint32_t mode, uint64_t size) {
    int r = entry(c, &(struct entry){.name = name, .mode = S_IFREG | (mode & 07777), .links = 1, .size = size});
    if (r == 0)
        c->left = size;
    return r;
}

int cpio_data(struct cpio *c, const void *data, size_t len) {
    if (len > c->left)
        return fail(c, -EINVAL);
    (void)put(c, data, len);
    c->left -= len;
    return c->left == 0 ? pad(c, 4) : c->failed;
}

int cpio_symlink(struct cpio *c, const char *name, const char *target) {
    size_t len = strlen(target);
    int r = entry(c, &(struct entry){.name = name, .mode = S_IFLNK | 0777, .links = 1, .size = len});
    if (r < 0)
        return r;
    c->left = len;
    return cpio_data(c, target, len);
}

int cpio_device(struct cpio *c, const char *name, uint32_t mode, uint32_t major, uint32_t minor) {
    return entry(
        c, &(struct entry){.name = name, .mode = S_IFCHR | (mode & 07777), .links = 1, .major = major, .minor = minor});
}

int cpio_guest_skeleton(struct cpio *c) {
    static const char *const names[] = {"dev", "proc", "sys", "newroot", "modules"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)cpio_directory(c, names[i], 0755);
    return cpio_device(c, "dev/console", 0600, 5, 1);
}

int cpio_finish(struct cpio *c) {
    (void)header(c, &(struct entry){.name = "TRAILER!!!", .links = 1});
    return pad(c, 512);
}
