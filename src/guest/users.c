/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/users.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FIELDS 7u
#define MAX_ID 4294967294ull /* (uid_t)-1 means "leave" to the kernel */

struct field {
    const char *p;
    size_t len;
};

static bool field_is(struct field f, const char *s) {
    return strlen(s) == f.len && memcmp(f.p, s, f.len) == 0;
}

static bool field_copy(struct field f, char *dst, size_t size) {
    dst[0] = '\0';
    if (f.len >= size)
        return false;
    memcpy(dst, f.p, f.len);
    dst[f.len] = '\0';
    return true;
}

static bool field_id(struct field f, unsigned *ret) {
    char text[16];
    uint64_t v;
    if (!field_copy(f, text, sizeof(text)) || !text_to_u64(text, 0, MAX_ID, &v))
        return false;
    *ret = (unsigned)v;
    return true;
}

/* The next line's fields (at most MAX_FIELDS); *text moves on. False at the end. */
static bool next_line(const char **text, struct field fields[MAX_FIELDS], size_t *ret_n) {
    const char *p = *text;
    size_t n = 0;

    if (*p == '\0')
        return false;
    for (;;) {
        size_t len = strcspn(p, ":\n");
        if (n < MAX_FIELDS)
            fields[n++] = (struct field){p, len};
        p += len;
        if (*p != ':')
            break;
        p++;
    }
    *text = *p == '\n' ? p + 1 : p;
    *ret_n = n;
    return true;
}

/* name:password:uid:gid:comment:home:shell */
static bool take_passwd(const struct field f[MAX_FIELDS], size_t n, struct guest_user *u) {
    unsigned uid, gid;

    if (n < 6 || !field_id(f[2], &uid) || !field_id(f[3], &gid))
        return false;
    if (!field_copy(f[0], u->name, sizeof(u->name)) || !field_copy(f[5], u->home, sizeof(u->home)))
        return false;
    if (n < 7 || f[6].len == 0 || !field_copy(f[6], u->shell, sizeof(u->shell)))
        (void)text_copy(u->shell, sizeof(u->shell), "/bin/sh");
    if (u->home[0] != '/')
        (void)text_copy(u->home, sizeof(u->home), "/");
    u->uid = uid;
    u->gid = gid;
    return true;
}

static bool find_user(const char *passwd, const char *name, struct guest_user *u) {
    struct field f[MAX_FIELDS];
    uint64_t wanted = 0;
    bool numeric = text_to_u64(name, 0, MAX_ID, &wanted);
    unsigned uid;
    size_t n;

    while (next_line(&passwd, f, &n)) {
        bool match = numeric ? n > 2 && field_id(f[2], &uid) && uid == wanted : field_is(f[0], name);
        if (match && take_passwd(f, n, u))
            return true;
    }
    if (!numeric && strcmp(name, "root") != 0)
        return false;
    *u = (struct guest_user){.uid = (uid_t)wanted, .gid = (gid_t)wanted};
    (void)text_copy(u->name, sizeof(u->name), name);
    (void)text_copy(u->home, sizeof(u->home), "/");
    (void)text_copy(u->shell, sizeof(u->shell), "/bin/sh");
    return true;
}

static bool list_has(struct field list, const char *name) {
    const char *p = list.p, *end = list.p + list.len;
    while (p <= end) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        struct field item = {p, (size_t)((comma ? comma : end) - p)};
        if (field_is(item, name))
            return true;
        if (!comma)
            return false;
        p = comma + 1;
    }
    return false;
}

/* name:password:gid:member,member */
static void add_groups(const char *group, struct guest_user *u) {
    struct field f[MAX_FIELDS];
    unsigned gid;
    size_t n;

    u->groups[0] = u->gid;
    u->n_groups = 1;
    while (u->n_groups < USERS_MAX_GROUPS && next_line(&group, f, &n))
        if (n >= 4 && field_id(f[2], &gid) && gid != u->gid && list_has(f[3], u->name))
            u->groups[u->n_groups++] = gid;
}

bool users_parse(const char *passwd, const char *group, const char *name, struct guest_user *ret) {
    memset(ret, 0, sizeof(*ret));
    if (!find_user(passwd, name[0] ? name : "root", ret))
        return false;
    add_groups(group, ret);
    return true;
}

/* A regular file of bounded size as a string; a missing one is "". A FIFO or device put there must not hold us up. */
static int read_text(const char *path, char **ret) {
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    _cleanup_free_ char *text = NULL;
    struct stat st;
    size_t len = 0;

    if (fd < 0 && errno != ENOENT)
        return -errno;
    if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)))
        return -EINVAL;
    size_t size = fd < 0 ? 0 : (size_t)st.st_size < USERS_FILE_MAX ? (size_t)st.st_size : USERS_FILE_MAX;
    text = malloc(size + 1);
    if (!text)
        return -ENOMEM;
    while (len < size) {
        ssize_t n = read(fd, text + len, size - len);
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    text[len] = '\0';
    *ret = TAKE_PTR(text);
    return 0;
}

int users_lookup(const char *name, struct guest_user *ret) {
    _cleanup_free_ char *passwd = NULL, *group = NULL;
    int r = read_text("/etc/passwd", &passwd);

    if (r == 0)
        r = read_text("/etc/group", &group);
    if (r < 0 || !passwd || !group)
        return r;
    return users_parse(passwd, group, name, ret) ? 0 : -ENOENT;
}
