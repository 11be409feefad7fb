/* SPDX-License-Identifier: Apache-2.0 */
/* libarchive with its secure-extract flags and our limits; no policy about where it runs. */
#include "cli/template/unpack.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define UNPACK_BLOCK 65536
#define UNPACK_PATH_MAX 4095
#define UNPACK_DEPTH_MAX 256

DEFINE_CLEANUP(struct archive *, archive_read_free)
DEFINE_CLEANUP(struct archive *, archive_write_free)

struct unpack {
    struct archive *in, *out;
    const struct unpack_limits *limits;
    struct unpack_counts counts;
};

static int archive_failed(struct archive *a, const char *name, struct sp_error *err) {
    char shown[128];
    const char *why = archive_error_string(a);
    int err_no = archive_errno(a);
    text_escape(shown, sizeof shown, name, strlen(name));
    if (err_no == ENOSPC || err_no == EDQUOT)
        return sp_error_set(err, SP_E_NO_SPACE, "the content does not fit into the template's disk (at %s)", shown);
    return sp_error_set(err, SP_E_INVALID, "entry %s: %s", shown, why ? why : "cannot be unpacked");
}

static int check_name(const char *name, struct sp_error *err) {
    size_t depth = 0, len = name ? strlen(name) : 0;
    if (len == 0 || len > UNPACK_PATH_MAX)
        return sp_error_set(err, SP_E_INVALID, "an entry's name has %zu bytes, 1 to %d are allowed", len,
                            UNPACK_PATH_MAX);
    for (const char *p = name; *p; p++)
        depth += *p == '/';
    if (depth > UNPACK_DEPTH_MAX)
        return sp_error_set(err, SP_E_INVALID, "an entry is nested over %d directories deep", UNPACK_DEPTH_MAX);
    return 0;
}

/* Only plain files, directories and links exist in a template. */
static bool entry_wanted(struct archive_entry *entry) {
    mode_t type = archive_entry_filetype(entry);
    return archive_entry_hardlink(entry) || type == S_IFREG || type == S_IFDIR || type == S_IFLNK;
}

static int copy_data(struct unpack *u, const char *name, struct sp_error *err) {
    const void *block;
    size_t size;
    la_int64_t offset;
    for (;;) {
        int r = archive_read_data_block(u->in, &block, &size, &offset);
        if (r == ARCHIVE_EOF)
            return 0;
        if (r < ARCHIVE_WARN)
            return archive_failed(u->in, name, err);
        u->counts.bytes += size;
        if (u->counts.bytes > u->limits->max_bytes)
            return sp_error_set(err, SP_E_TOO_LARGE, "the content is over the limit of %llu MiB",
                                (unsigned long long)(u->limits->max_bytes >> 20));
        if (archive_write_data_block(u->out, block, size, offset) < ARCHIVE_WARN)
            return archive_failed(u->out, name, err);
    }
}

static int unpack_entry(struct unpack *u, struct archive_entry *entry, struct sp_error *err) {
    const char *name = archive_entry_pathname(entry);
    int r = check_name(name, err);
    if (r < 0)
        return r;
    if (++u->counts.entries > u->limits->max_entries)
        return sp_error_set(err, SP_E_TOO_LARGE, "the archive has more than %llu entries",
                            (unsigned long long)u->limits->max_entries);
    if (!entry_wanted(entry)) {
        u->counts.skipped++;
        return 0;
    }
    if (archive_entry_size_is_set(entry) && archive_entry_size(entry) > 0 &&
        (uint64_t)archive_entry_size(entry) > u->limits->max_bytes)
        return sp_error_set(err, SP_E_TOO_LARGE, "an entry of %llu bytes is over the limit of %llu MiB",
                            (unsigned long long)archive_entry_size(entry),
                            (unsigned long long)(u->limits->max_bytes >> 20));
    if (archive_write_header(u->out, entry) < ARCHIVE_WARN)
        return archive_failed(u->out, name, err);
    if (!archive_entry_hardlink(entry) || archive_entry_size(entry) > 0)
        if ((r = copy_data(u, name, err)) < 0)
            return r;
    if (archive_write_finish_entry(u->out) < ARCHIVE_WARN)
        return archive_failed(u->out, name, err);
    return 0;
}

static int open_archives(struct unpack *u, int fd, struct sp_error *err) {
    u->in = archive_read_new();
    u->out = archive_write_disk_new();
    if (!u->in || !u->out)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    archive_read_support_filter_all(u->in);
    archive_read_support_format_tar(u->in);
    archive_read_support_format_gnutar(u->in);
    archive_write_disk_set_options(u->out, ARCHIVE_EXTRACT_OWNER | ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_TIME |
                                               ARCHIVE_EXTRACT_XATTR | ARCHIVE_EXTRACT_SECURE_SYMLINKS |
                                               ARCHIVE_EXTRACT_SECURE_NODOTDOT |
                                               ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS);
    if (archive_read_open_fd(u->in, fd, UNPACK_BLOCK) != ARCHIVE_OK)
        return sp_error_set(err, SP_E_INVALID, "this is no tar archive: %s", archive_error_string(u->in));
    return 0;
}

int unpack_archive(int fd, const struct unpack_limits *limits,
                   void (*progress)(void *user, const struct unpack_counts *c), void *user, struct unpack_counts *ret,
                   struct sp_error *err) {
    _cleanup_(cleanup_archive_read_freep) struct archive *in = NULL;
    _cleanup_(cleanup_archive_write_freep) struct archive *out = NULL;
    struct unpack u = {.limits = limits};
    struct archive_entry *entry;
    int r = open_archives(&u, fd, err);
    in = u.in;
    out = u.out;
    while (r == 0) {
        int step = archive_read_next_header(u.in, &entry);
        if (step == ARCHIVE_EOF)
            break;
        if (step < ARCHIVE_WARN)
            return sp_error_set(err, SP_E_INVALID, "the archive is damaged: %s", archive_error_string(u.in));
        r = unpack_entry(&u, entry, err);
        if (r == 0 && progress && u.counts.entries % 64 == 0)
            progress(user, &u.counts);
    }
    if (r == 0 && u.counts.entries == 0)
        return sp_error_set(err, SP_E_INVALID, "the archive is empty");
    /* Directory times and modes are written on close, so its failure counts. */
    if (r == 0 && archive_write_close(u.out) < ARCHIVE_WARN)
        return archive_failed(u.out, ".", err);
    if (r == 0)
        *ret = u.counts;
    return r;
}
