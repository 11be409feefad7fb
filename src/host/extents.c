/* SPDX-License-Identifier: Apache-2.0 */
/* FIEMAP in batches, and the comparison of two maps. */
#include "host/extents.h"
#include "base/cleanup.h"
#include <errno.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#define BATCH 1024
/* Where the bytes are is not known, or not as they are: never the same as anything. */
#define UNCLEAR                                                                                                        \
    (FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_DATA_ENCRYPTED |           \
     FIEMAP_EXTENT_NOT_ALIGNED | FIEMAP_EXTENT_DATA_INLINE | FIEMAP_EXTENT_DATA_TAIL)

static int append(struct extents *extents, const struct fiemap *map, struct sp_error *err) {
    struct extent *rows = realloc(extents->rows, (extents->n + map->fm_mapped_extents) * sizeof(*rows));
    if (!rows)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    extents->rows = rows;
    for (unsigned i = 0; i < map->fm_mapped_extents; i++) {
        const struct fiemap_extent *e = &map->fm_extents[i];
        rows[extents->n++] = (struct extent){.logical = e->fe_logical,
                                             .physical = e->fe_physical,
                                             .length = e->fe_length,
                                             .flags = e->fe_flags};
    }
    return 0;
}

int extents_read(int fd, bool sync, struct extents *ret, struct sp_error *err) {
    _cleanup_free_ struct fiemap *map = malloc(sizeof(*map) + BATCH * sizeof(struct fiemap_extent));
    struct extents extents = {0};
    uint64_t from = 0;
    int r = map ? 0 : sp_error_set(err, SP_E_INTERNAL, "out of memory");

    while (r == 0) {
        *map = (struct fiemap){.fm_start = from,
                               .fm_length = FIEMAP_MAX_OFFSET - from,
                               .fm_flags = sync ? FIEMAP_FLAG_SYNC : 0,
                               .fm_extent_count = BATCH};
        if (ioctl(fd, FS_IOC_FIEMAP, map) < 0) {
            r = errno == EOPNOTSUPP || errno == ENOTTY
                    ? sp_error_set(err, SP_E_UNSUPPORTED, "the file system does not say where files are (FIEMAP)")
                    : sp_error_errno(err, errno, "FIEMAP", "extents of a file");
            break;
        }
        sync = false;
        if (!map->fm_mapped_extents)
            break;
        r = append(&extents, map, err);
        if (r == 0 && (extents.rows[extents.n - 1].flags & FIEMAP_EXTENT_LAST))
            break;
        if (r == 0)
            from = extents.rows[extents.n - 1].logical + extents.rows[extents.n - 1].length;
    }
    if (r < 0)
        extents_done(&extents);
    *ret = extents;
    return r;
}

void extents_done(struct extents *extents) {
    free(extents->rows);
    *extents = (struct extents){0};
}

uint64_t extents_bytes(const struct extents *extents) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < extents->n; i++)
        bytes += extents->rows[i].length;
    return bytes;
}

uint64_t extents_exclusive(const struct extents *extents) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < extents->n; i++)
        if (!(extents->rows[i].flags & FIEMAP_EXTENT_SHARED))
            bytes += extents->rows[i].length;
    return bytes;
}

/* The extent at or behind `offset`, NULL when there is none. */
static const struct extent *seek(const struct extents *extents, size_t *at, uint64_t offset) {
    while (*at < extents->n && extents->rows[*at].logical + extents->rows[*at].length <= offset)
        (*at)++;
    return *at < extents->n ? &extents->rows[*at] : NULL;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Whether it is the same at `from`; the answer holds until *ret_end. */
static bool same_at(struct extents_walk *walk, uint64_t from, uint64_t to, uint64_t *ret_end) {
    const struct extent *a = seek(walk->a, &walk->at_a, from), *b = seek(walk->b, &walk->at_b, from);
    bool in_a = a && a->logical <= from, in_b = b && b->logical <= from;

    if (a)
        to = least(to, in_a ? a->logical + a->length : a->logical);
    if (b)
        to = least(to, in_b ? b->logical + b->length : b->logical);
    *ret_end = to;
    if (!in_a || !in_b)
        return in_a == in_b;
    return !((a->flags | b->flags) & UNCLEAR) && !((a->flags ^ b->flags) & FIEMAP_EXTENT_UNWRITTEN) &&
           a->physical + (from - a->logical) == b->physical + (from - b->logical);
}

bool extents_next_change(struct extents_walk *walk, uint64_t from, uint64_t to, uint64_t *ret_from, uint64_t *ret_to) {
    while (from < to) {
        uint64_t end;
        if (!same_at(walk, from, to, &end)) {
            *ret_from = from;
            *ret_to = end;
            return true;
        }
        from = end;
    }
    return false;
}
