/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pages of the guest's RAM were written since the snapshot that is its base, and their bytes.
 *
 * RAM is a private mapping of the base's file. What was written once since is private to the VMM, and says so in its
 * pagemap; from the first snapshot on that is not enough, because what is private stays so. With Linux 6.7 one scan
 * (PAGEMAP_SCAN) finds the private pages that are not write-protected and protects them in the same step, page by page
 * and race-free; a write takes the protection away without a word to anybody (userfaultfd, WP_ASYNC). A page that is
 * not private has not been written, so nothing has to be protected ahead and a VM that is never snapshotted pays nothing.
 * What a scan found is noted until the snapshot it went into is committed: copied once too often is right, once too
 * seldom is not. Without that system call private pages are compared with the base, every time.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text.h"
#include "vm/track_scan.h"
#include "vm/vm.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PAGE 4096u
#define PIECE (1024u * 1024u) /* copied at once; then the loop turns */
#define REGIONS 512
#define ENTRIES 4096 /* of a pagemap, read at once */
#define MARK_SWAPPED (1ull << 62)
#define MARK_PRESENT (1ull << 63)
#define MARK_FILE (1ull << 61)

/* One pass over the memory. */
struct pass {
    struct vm *vm;
    int fd;
    bool compare;
    uint64_t pages;
    struct sp_error *err;
};

void track_open(struct vm *vm) {
    static const char *const names[] = {"pagemap", "mem"};
    int *const fds[] = {&vm->track.fd_pagemap, &vm->track.fd_mem};
    char path[64];
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        (void)text_printf(path, sizeof(path), "/proc/%d/%s", (int)vm->vmm_pid, names[i]);
        *fds[i] = open(path, O_RDONLY | O_CLOEXEC);
        if (*fds[i] < 0) /* a VM without snapshots is still a VM: said when one is asked for */
            log_event(LOG_L_WARN, "memory_unreadable", "vm_id", vm->config.id, "file", names[i], "reason",
                      strerror(errno), NULL);
    }
}

void track_done(struct track *t) {
    t->fd_pagemap = close_fd(t->fd_pagemap);
    t->fd_mem = close_fd(t->fd_mem);
    free(t->noted);
    t->noted = NULL;
}

/* --- copying ------------------------------------------------------------------------------------------------------------- */

static int read_memory(struct vm *vm, uint64_t offset, void *dst, size_t len, struct sp_error *err) {
    for (size_t done = 0; done < len;) {
        ssize_t n =
            pread(vm->track.fd_mem, (char *)dst + done, len - done, (off_t)(vm->vmm->ram.address + offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return sp_error_errno(err, n < 0 ? errno : EIO, "read", "memory of the VMM");
        done += (size_t)n;
    }
    return 0;
}

static int write_file(int fd, uint64_t offset, const void *src, size_t len, struct sp_error *err) {
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, (const char *)src + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return sp_error_errno(err, n < 0 ? errno : EIO, "write", "the snapshot's memory");
        done += (size_t)n;
    }
    return 0;
}

/* Of a piece that was read, only what differs from the file, in runs. */
static int write_differences(struct pass *p, uint64_t offset, const char *have, size_t len) {
    static char base[PIECE];
    size_t from = 0, at = 0;
    ssize_t n = pread(p->fd, base, len, (off_t)offset);
    if (n != (ssize_t)len)
        return sp_error_errno(p->err, n < 0 ? errno : EIO, "read", "the snapshot's memory");
    for (;; at += PAGE) {
        bool differs = at < len && memcmp(have + at, base + at, PAGE) != 0;
        if (differs)
            continue;
        if (at > from) {
            int r = write_file(p->fd, offset + from, have + from, at - from, p->err);
            if (r < 0)
                return r;
            p->pages += (at - from) / PAGE;
        }
        from = at + PAGE;
        if (at >= len)
            return 0;
    }
}

/* Turns the loop between pieces of a machine that runs: its streams go on. */
static int copy_run(struct pass *p, uint64_t offset, uint64_t len) {
    static char piece[PIECE];
    while (len > 0) {
        size_t n = len < sizeof(piece) ? (size_t)len : sizeof(piece);
        int r = read_memory(p->vm, offset, piece, n, p->err);
        if (r < 0)
            return r;
        r = p->compare ? write_differences(p, offset, piece, n) : write_file(p->fd, offset, piece, n, p->err);
        if (r < 0)
            return r;
        p->pages += p->compare ? 0 : n / PAGE;
        offset += n;
        len -= n;
        if (!p->vm->standing && n == sizeof(piece)) {
            struct deadline now = {.at_ns = 1};
            vm_turn(p->vm, &now);
            if (p->vm->state == VM_FAILED)
                return sp_error_set(p->err, SP_E_GONE, "the VM failed");
        }
    }
    return 0;
}

/* --- by scan -------------------------------------------------------------------------------------------------------------- */

static void note(struct track *t, uint64_t first, uint64_t n) {
    for (uint64_t page = first; page < first + n; page++)
        t->noted[page / 64] |= 1ull << (page % 64);
}

static bool is_noted(const struct track *t, uint64_t page) {
    return page < t->n_pages && (t->noted[page / 64] & (1ull << (page % 64)));
}

/* What an earlier, uncommitted snapshot had noted, in runs. */
static int copy_noted(struct pass *p) {
    const struct track *t = &p->vm->track;
    for (uint64_t page = 0; page < t->n_pages; page++) {
        uint64_t first = page;
        int r;
        if (page % 64 == 0 && t->noted[page / 64] == 0) {
            page += 63;
            continue;
        }
        while (is_noted(t, page))
            page++;
        if (page > first && (r = copy_run(p, first * PAGE, (page - first) * PAGE)) < 0)
            return r;
    }
    return 0;
}

/* Finds, protects, notes and copies, some regions at a time. Private and not protected: written; to the scan, what is not
 * there at all is written too. */
static int copy_scanned(struct pass *p) {
    struct vm *vm = p->vm;
    const struct vmm_ram *ram = &vm->vmm->ram;
    uint64_t at = ram->address, end = ram->address + ram->length;
    while (at < end) {
        struct page_region regions[REGIONS];
        struct pm_scan_arg scan = {.size = sizeof(scan),
                                   .flags = PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
                                   .start = at,
                                   .end = end,
                                   .vec = (uintptr_t)regions,
                                   .vec_len = REGIONS,
                                   .category_inverted = PAGE_IS_FILE,
                                   .category_mask = PAGE_IS_WRITTEN | PAGE_IS_FILE,
                                   .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                                   .return_mask = PAGE_IS_WRITTEN};
        int n = ioctl(vm->track.fd_pagemap, PAGEMAP_SCAN, &scan);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return sp_error_errno(p->err, errno, "pagemap_scan", "memory of the VMM");
        if (scan.walk_end <= at || scan.walk_end > end)
            return sp_error_set(p->err, SP_E_INTERNAL, "pagemap_scan does not move on");
        for (int i = 0; i < n; i++) /* all of them first: a failed copy may not forget what was protected */
            note(&vm->track, (regions[i].start - ram->address) / PAGE, (regions[i].end - regions[i].start) / PAGE);
        at = scan.walk_end;
        for (int i = 0; i < n; i++) {
            int r = copy_run(p, regions[i].start - ram->address, regions[i].end - regions[i].start);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

/* --- by comparing ----------------------------------------------------------------------------------------------------------- */

static int copy_compared(struct pass *p) {
    static uint64_t marks[ENTRIES];
    const struct vmm_ram *ram = &p->vm->vmm->ram;
    uint64_t n_pages = ram->length / PAGE;
    for (uint64_t page = 0; page < n_pages; page += ENTRIES) {
        size_t n = n_pages - page < ENTRIES ? (size_t)(n_pages - page) : ENTRIES, first = 0;
        ssize_t got = pread(p->vm->track.fd_pagemap, marks, n * sizeof(*marks),
                            (off_t)((ram->address / PAGE + page) * sizeof(*marks)));
        if (got != (ssize_t)(n * sizeof(*marks)))
            return sp_error_errno(p->err, got < 0 ? errno : EIO, "read", "pagemap of the VMM");
        for (size_t i = 0; i <= n; i++) {
            bool is_private = i < n && (marks[i] & (MARK_PRESENT | MARK_SWAPPED)) && !(marks[i] & MARK_FILE);
            int r;
            if (is_private)
                continue;
            if (i > first && (r = copy_run(p, (page + first) * PAGE, (i - first) * PAGE)) < 0)
                return r;
            first = i + 1;
        }
    }
    return 0;
}

/* --- both --------------------------------------------------------------------------------------------------------------------- */

/* Registers the mapping; a kernel that cannot do one of the two is found out by trying. */
static bool can_scan(struct vm *vm) {
    const struct vmm_ram *ram = &vm->vmm->ram;
    struct uffdio_register reg = {.range = {.start = ram->address, .len = ram->length},
                                  .mode = UFFDIO_REGISTER_MODE_WP};
    struct page_region region;
    struct pm_scan_arg scan = {.size = sizeof(scan),
                               .flags = PM_SCAN_CHECK_WPASYNC,
                               .start = ram->address,
                               .end = ram->address + PAGE,
                               .vec = (uintptr_t)&region,
                               .vec_len = 1,
                               .category_mask = PAGE_IS_WRITTEN,
                               .return_mask = PAGE_IS_WRITTEN};
    return ram->fd_uffd >= 0 && ioctl(ram->fd_uffd, UFFDIO_REGISTER, &reg) >= 0 &&
           ioctl(vm->track.fd_pagemap, PAGEMAP_SCAN, &scan) >= 0;
}

static int decide(struct vm *vm, struct sp_error *err) {
    struct track *t = &vm->track;
    if (t->how != TRACK_UNDECIDED)
        return 0;
    if (t->fd_pagemap < 0 || t->fd_mem < 0 || vm->vmm->ram.length == 0)
        return sp_error_set(err, SP_E_UNSUPPORTED, "the VMM's memory cannot be read");
    t->n_pages = vm->vmm->ram.length / PAGE;
    t->noted = calloc(t->n_pages / 64 + 1, sizeof(*t->noted));
    if (!t->noted)
        return sp_error_errno(err, ENOMEM, "track", "bitmap");
    t->how = can_scan(vm) ? TRACK_SCAN : TRACK_COMPARE;
    log_event(LOG_L_INFO, "memory_tracking", "vm_id", vm->config.id, "how",
              t->how == TRACK_SCAN ? "pagemap_scan" : "compare", NULL);
    return 0;
}

int track_copy(struct vm *vm, int fd, bool first, uint64_t *ret_pages, struct sp_error *err) {
    struct pass p = {.vm = vm, .fd = fd, .err = err};
    int r = decide(vm, err);
    if (r < 0)
        return r;
    p.compare = vm->track.how == TRACK_COMPARE;
    if (p.compare) {
        r = copy_compared(&p);
    } else {
        if (first)
            r = copy_noted(&p);
        if (r >= 0)
            r = copy_scanned(&p);
    }
    *ret_pages += p.pages;
    return r;
}

void track_committed(struct vm *vm) {
    struct track *t = &vm->track;
    if (t->noted)
        memset(t->noted, 0, (t->n_pages / 64 + 1) * sizeof(*t->noted));
}
