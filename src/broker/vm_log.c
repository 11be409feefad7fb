/* SPDX-License-Identifier: Apache-2.0 */
/* Making and keeping the logs of VMs. What is in one may come from a guest: it is bounded and escaped. */
#include "broker/vm_log.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/random.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define NAME "vm.log"
#define SHARED_NAME "space-vm.log"
#define LINE_MAX_ 2048

int vm_log_create(int dirfd, int *ret_fd, struct sp_error *err) {
    int fd = openat(dirfd, NAME, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return sp_error_errno(err, errno, "create", NAME);
    *ret_fd = fd;
    return 0;
}

/* The last VM_LOG_KEPT bytes, from the start of a line on. *ret_from is 0 when there is nothing. */
static int read_end(int fd, char data[VM_LOG_KEPT], size_t *ret_from, size_t *ret_len, struct sp_error *err) {
    struct stat st;
    ssize_t n;
    const char *newline;
    off_t at;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return sp_error_errno(err, errno, "fstat", NAME);
    at = st.st_size > VM_LOG_KEPT ? st.st_size - VM_LOG_KEPT : 0;
    n = pread(fd, data, VM_LOG_KEPT, at);
    if (n < 0)
        return sp_error_errno(err, errno, "read", NAME);
    newline = at ? memchr(data, '\n', (size_t)n) : NULL;
    *ret_from = newline ? (size_t)(newline + 1 - data) : 0;
    *ret_len = (size_t)n;
    return 0;
}

/* Lines of JSON are ASCII but for what they quote; bytes that are not printable become \xNN. */
static void append_line(struct buf *out, const char *line, size_t len) {
    char text[LINE_MAX_];
    if (len && buf_append_str(out, text_escape(text, sizeof(text), line, len)) == 0)
        (void)buf_append_byte(out, '\n');
}

int vm_log_keep(const struct layout *layout, const char *id, struct sp_error *err) {
    _cleanup_buf_ struct buf out = {0};
    _cleanup_close_ int fd = -1, shared = -1;
    char path[ID_SIZE + sizeof("/" NAME)], data[VM_LOG_KEPT];
    size_t from = 0, len = 0;
    int r;

    (void)text_printf(path, sizeof(path), "%s/" NAME, id);
    fd = openat(layout->sandboxes, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : sp_error_errno(err, errno, "open", "%s", path);
    r = read_end(fd, data, &from, &len, err);
    if (r < 0 || from == len)
        return r;
    buf_init(&out, 8 * VM_LOG_KEPT);
    (void)buf_printf(&out, "--- end of the log of %s\n", id);
    for (size_t at = from; at < len;) {
        const char *end = memchr(data + at, '\n', len - at);
        size_t n = end ? (size_t)(end - (data + at)) : len - at;
        append_line(&out, data + at, n);
        at += n + 1;
    }
    shared = openat(layout->log, SHARED_NAME, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0640);
    if (shared < 0)
        return sp_error_errno(err, errno, "open", SHARED_NAME);
    return fd_write_all(shared, out.data, out.len, err);
}
