/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of vm_snapshot, in order, each with a fault point of its name. */
#include "broker/snapshot_take.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/text.h"
#include "broker/fault.h"
#include "broker/snapshot_files.h"
#include "broker/vm_files.h"
#include "broker/vm_talk.h"
#include "host/reflink.h"
#include "host/sync_files.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define COPY_MS 300000 /* pages written since the base, while the VM runs */
#define STOP_MS 20000  /* the guest freezes its processes, the VMM saves its devices */
#define GO_MS 15000    /* and goes on */
#define LET_GO_MS 1000
#define COMMIT_MS 1000 /* to forget pages; not waited for any longer */
#define MIB 1048576ull

/* memory or disk.img: the snapshot's own file, and its base's (-1: it begins empty). */
struct part {
    const char *name;
    const char *from; /* the base's key */
    int fd, base;
    struct extents extents, base_extents;
    struct piece_digests digests, base_digests;
    uint64_t base_size;
    size_t hashed;
};
enum { MEMORY, DISK, PARTS };

struct work {
    const struct snapshot_take *take;
    struct vm_record *record;
    char temp[SNAPSHOT_TEMP_SIZE];
    int dir, vm_disk;
    int saved, devices; /* what the VMM writes its device state into; for writing, then the snapshot's own file */
    struct part parts[PARTS];
    struct vm_talk *talk;
    json_t *files;
    uint64_t pages, stall_us;
    struct sync_files sync; /* of memory, disk.img and devices */
    bool published;
};

static bool is_full(const struct work *w) {
    return w->take->content == CONTENT_FULL;
}

static void part_done(struct part *part) {
    (void)close_fd(part->fd);
    (void)close_fd(part->base);
    extents_done(&part->extents);
    extents_done(&part->base_extents);
    piece_digests_done(&part->digests);
    piece_digests_done(&part->base_digests);
}

static void work_done(struct work *w) {
    (void)sync_files_wait(&w->sync, NULL);
    w->talk = vm_talk_close(w->talk);
    (void)close_fd(w->dir);
    (void)close_fd(w->saved);
    (void)close_fd(w->devices);
    (void)close_fd(w->vm_disk);
    for (size_t i = 0; i < PARTS; i++)
        part_done(&w->parts[i]);
    json_decref(w->files);
}

/* --- before the VM stands still -------------------------------------------------------------------------------------- */

static int create(const struct work *w, const char *name, int flags, int *ret_fd, struct sp_error *err) {
    *ret_fd = openat(w->dir, name, flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return *ret_fd >= 0 ? 0 : sp_error_errno(err, errno, "create", "%s of snapshot %s", name, w->take->key);
}

/* Device state is written into memory and copied from there: QEMU closes what it was given only once it runs again. */
static int make_saved(struct work *w, struct sp_error *err) {
    char path[64];
    w->saved = memfd_create(LAYOUT_DEVICES, MFD_CLOEXEC);
    if (w->saved < 0)
        return sp_error_errno(err, errno, "memfd_create", LAYOUT_DEVICES);
    (void)text_printf(path, sizeof(path), "/proc/self/fd/%d", w->saved);
    w->devices = open(path, O_WRONLY | O_CLOEXEC);
    return w->devices >= 0 ? 0 : sp_error_errno(err, errno, "open", LAYOUT_DEVICES);
}

/* Memory starts from the base's, or from nothing in a VM that was booted. The disk is told from the last one there is of it. */
static int open_bases(struct work *w, struct sp_error *err) {
    const struct layout *layout = w->take->layout;
    const struct vm_record *rec = w->record;
    struct part *memory = &w->parts[MEMORY], *disk = &w->parts[DISK];
    enum request_content content = CONTENT_DISK;
    int r = 0;

    disk->from = rec->disk_base[0] && snapshot_exists(layout, rec->disk_base) ? rec->disk_base : rec->base;
    memory->from = rec->base;
    if (is_full(w))
        r = snapshot_content(layout, rec->base, &content, err);
    if (r == 0 && content == CONTENT_FULL)
        r = vm_files_open(layout, memory->from, LAYOUT_MEMORY, O_RDONLY, &memory->base, err);
    return r < 0 ? r : vm_files_open(layout, disk->from, LAYOUT_DISK, O_RDONLY, &disk->base, err);
}

static int begin(struct work *w, struct sp_error *err) {
    const struct layout *layout = w->take->layout;
    char disk[ID_SIZE + 16];
    int r;

    snapshot_temp_name(w->temp, w->take->key, w->record->id);
    r = snapshot_remove_temps(layout, w->record->id, err);
    if (r < 0)
        return r;
    (void)text_printf(disk, sizeof(disk), "%s/" LAYOUT_DISK, w->record->id);
    w->vm_disk = openat(layout->sandboxes, disk, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (w->vm_disk < 0)
        return sp_error_errno(err, errno, "open", "%s", disk);
    if (mkdirat(layout->snapshots, w->temp, 0711) < 0)
        return sp_error_errno(err, errno, "mkdir", "%s", w->temp);
    w->dir = openat(layout->snapshots, w->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (w->dir < 0 || fchmod(w->dir, 0711) < 0)
        return sp_error_errno(err, errno, "open", "%s", w->temp);
    r = open_bases(w, err);
    return r < 0 || !is_full(w) ? r : make_saved(w, err);
}

static int clone_memory(struct work *w, struct sp_error *err) {
    struct part *memory = &w->parts[MEMORY];
    int r;

    if (!is_full(w))
        return 0;
    r = create(w, LAYOUT_MEMORY, O_RDWR, &memory->fd, err);
    if (r < 0)
        return r;
    if (memory->base >= 0)
        return reflink_clone(memory->fd, memory->base, "memory", err);
    memory->base_size = w->record->memory_mib * MIB;
    return ftruncate(memory->fd, (off_t)memory->base_size) < 0 ? sp_error_errno(err, errno, "ftruncate", LAYOUT_MEMORY)
                                                               : 0;
}

/* What is dirty is written out by a clone, while the VM stands still: so it is before. Without a flush of the disk's cache,
 * which fsync is for. */
static int write_out(int fd, bool wait, struct sp_error *err) {
    unsigned flags = SYNC_FILE_RANGE_WRITE | (wait ? SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER : 0);
    return sync_file_range(fd, 0, 0, flags) < 0 ? sp_error_errno(err, errno, "sync_file_range", "before a snapshot")
                                                : 0;
}

static int begin_flush(struct work *w, struct sp_error *err) {
    return write_out(w->vm_disk, false, err);
}

static int ask(struct work *w, struct sp_error *err) {
    const int fds[] = {w->parts[MEMORY].fd, w->devices};

    w->talk = vm_talk_open(w->take->layout, w->record->id, err);
    if (!w->talk)
        return -(int)SP_E_VMM;
    if (!is_full(w))
        return vm_talk_send(w->talk, "snapshot_disk", true, json_pack("{s:s}", "snapshot", w->take->key), NULL, 0, err);
    return vm_talk_send(w->talk, "snapshot", true,
                        json_pack("{s:s, s:s}", "snapshot", w->take->key, "then", request_then_names[w->take->then]),
                        fds, ARRAY_SIZE(fds), err);
}

static int read_part(const struct work *w, struct part *part, struct sp_error *err) {
    _cleanup_close_ int dir = -1;
    _cleanup_json_ json_t *manifest = NULL;
    char hash[SHA256_HEX_SIZE];
    struct stat st = {0};
    int r = snapshot_open(w->take->layout, part->from, &dir, err);

    if (r == 0)
        r = snapshot_read_manifest(dir, part->from, &manifest, err);
    if (r == 0 && fstat(part->base, &st) < 0)
        r = sp_error_errno(err, errno, "fstat", "%s of snapshot %s", part->name, part->from);
    if (r == 0)
        r = snapshot_manifest_hash(manifest, part->name, hash, err);
    if (r == 0)
        r = snapshot_pieces_read(dir, part->name, hash, &part->base_digests, err);
    if (r < 0)
        return r;
    part->base_size = (uint64_t)st.st_size;
    r = extents_read(part->base, false, &part->base_extents, err);
    return r == -SP_E_UNSUPPORTED ? 0 : r;
}

/* What is known of the base, read while space-vm copies. Without it every piece is hashed. */
static int read_base(struct work *w, struct sp_error *err) {
    int r = 0;
    for (size_t i = 0; i < PARTS && r == 0; i++)
        if (w->parts[i].base >= 0)
            r = read_part(w, &w->parts[i], err);
    return r;
}

static int wait_copied(struct work *w, struct sp_error *err) {
    return vm_talk_wait(w->talk, "copied", deadline_in_ms(COPY_MS), NULL, err);
}

static int flush(struct work *w, struct sp_error *err) {
    int r = is_full(w) ? write_out(w->parts[MEMORY].fd, false, err) : 0;
    return r < 0 ? r : write_out(w->vm_disk, true, err);
}

/* --- while it stands still ------------------------------------------------------------------------------------------- */

static int stop(struct work *w, struct sp_error *err) {
    int r = vm_talk_send(w->talk, "snapshot_stop", false, NULL, NULL, 0, err);
    return r < 0 ? r : vm_talk_wait(w->talk, "stopped", deadline_in_ms(STOP_MS), NULL, err);
}

static int clone_disk(struct work *w, struct sp_error *err) {
    struct part *disk = &w->parts[DISK];
    int r = create(w, LAYOUT_DISK, O_RDWR, &disk->fd, err);
    return r < 0 ? r : reflink_clone(disk->fd, w->vm_disk, "disk image", err);
}

static int go(struct work *w, struct sp_error *err) {
    _cleanup_json_ json_t *done = NULL;
    int r = vm_talk_send(w->talk, "snapshot_go", false, NULL, NULL, 0, err);

    if (r == 0)
        r = vm_talk_wait(w->talk, NULL, deadline_in_ms(GO_MS), &done, err);
    if (r == 0)
        r = json_get_opt_u64(done, "", "pages", 0, INT64_MAX, 0, &w->pages, err);
    return r < 0 ? r : json_get_opt_u64(done, "", "stall_us", 0, INT64_MAX, 0, &w->stall_us, err);
}

/* --- after it ---------------------------------------------------------------------------------------------------------- */

static int copy_devices(struct work *w, struct sp_error *err) {
    _cleanup_free_ char *bytes = NULL;
    struct stat st;
    int r;

    w->devices = close_fd(w->devices);
    if (fstat(w->saved, &st) < 0)
        return sp_error_errno(err, errno, "fstat", LAYOUT_DEVICES);
    if (st.st_size == 0 || st.st_size > SNAPSHOT_DEVICES_MAX)
        return sp_error_set(err, SP_E_VMM, "space-vm left %s device state", st.st_size ? "too much" : "no");
    bytes = malloc((size_t)st.st_size);
    if (!bytes || pread(w->saved, bytes, (size_t)st.st_size, 0) != st.st_size)
        return sp_error_errno(err, errno, "pread", LAYOUT_DEVICES);
    r = create(w, LAYOUT_DEVICES, O_WRONLY, &w->devices, err);
    return r < 0 ? r : fd_write_all(w->devices, bytes, (size_t)st.st_size, err);
}

/* Read-only from here on, and proven to be so. space-vm lets go of memory about when it says that it is done. */
static int reopen(struct work *w, const char *name, int *fd, struct sp_error *err) {
    struct deadline deadline = deadline_in_ms(LET_GO_MS);
    int r;

    *fd = close_fd(*fd);
    *fd = openat(w->dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0)
        return sp_error_errno(err, errno, "open", "%s", name);
    while ((r = snapshot_file_own(*fd, name, err)) == -SP_E_CONFLICT && !deadline_passed(deadline))
        (void)usleep(1000);
    return r;
}

static int own_devices(struct work *w, struct sp_error *err) {
    int r = copy_devices(w, err);
    return r < 0 ? r : reopen(w, LAYOUT_DEVICES, &w->devices, err);
}

static int own(struct work *w, struct sp_error *err) {
    struct part *memory = &w->parts[MEMORY];
    struct stat st;
    int r = is_full(w) ? own_devices(w, err) : 0;

    for (size_t i = 0; i < PARTS && r == 0; i++)
        if (w->parts[i].fd >= 0)
            r = reopen(w, w->parts[i].name, &w->parts[i].fd, err);
    if (r < 0 || !is_full(w))
        return r;
    if (fstat(memory->fd, &st) < 0)
        return sp_error_errno(err, errno, "fstat", "snapshot %s", w->take->key);
    return (uint64_t)st.st_size == w->record->memory_mib * MIB
               ? 0
               : sp_error_set(err, SP_E_VMM, "space-vm left memory of another size");
}

/* Those that are there; how many. */
static size_t present(const int *fds, size_t n, int *ret) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            ret[found++] = fds[i];
    return found;
}

/* Goes on beside the hashing. */
static int begin_sync(struct work *w, struct sp_error *err) {
    const int fds[] = {w->parts[MEMORY].fd, w->parts[DISK].fd, w->devices};
    int there[ARRAY_SIZE(fds)];
    (void)err;
    sync_files_begin(&w->sync, there, present(fds, ARRAY_SIZE(fds), there));
    return 0;
}

static int hash_part(struct part *part, struct sp_error *err) {
    const struct piece_base base = {.size = part->base_size,
                                    .digests = &part->base_digests,
                                    .extents = &part->base_extents};
    int r = extents_read(part->fd, true, &part->extents, err);

    if (r < 0 && r != -SP_E_UNSUPPORTED)
        return r;
    return r == 0 ? piece_digests_since(part->fd, &base, &part->extents, &part->digests, &part->hashed, err)
                  : piece_digests_fd(part->fd, &part->digests, err);
}

static int hash(struct work *w, struct sp_error *err) {
    char text[SHA256_HEX_SIZE];
    int r = 0;

    for (size_t i = 0; i < PARTS && r == 0; i++) {
        if (w->parts[i].fd < 0)
            continue;
        r = hash_part(&w->parts[i], err);
        if (r < 0)
            break;
        piece_digests_hex(&w->parts[i].digests, text);
        r = snapshot_file_row(w->files, w->parts[i].fd, w->parts[i].name, text, err);
    }
    if (r == 0 && is_full(w))
        r = piece_hash_fd(w->devices, text, err);
    return r < 0 || !is_full(w) ? r : snapshot_file_row(w->files, w->devices, LAYOUT_DEVICES, text, err);
}

static int write_manifest(const struct work *w, int *ret_fd, struct sp_error *err) {
    const struct snapshot_manifest manifest = {.key = w->take->key,
                                               .content = w->take->content,
                                               .record = w->record,
                                               .base = w->parts[is_full(w) ? MEMORY : DISK].from,
                                               .files = w->files,
                                               .node = w->take->node_manifest};
    _cleanup_free_ char *text = snapshot_manifest_print(&manifest, err);
    int r = text ? create(w, LAYOUT_MANIFEST, O_WRONLY, ret_fd, err) : -(int)SP_E_INTERNAL;

    if (r == 0)
        r = fd_write_all(*ret_fd, text, strlen(text), err);
    return r == 0 && fchmod(*ret_fd, 0444) < 0 ? sp_error_errno(err, errno, "chmod", LAYOUT_MANIFEST) : r;
}

/* The manifest among the rest: what makes the snapshot exist is the name the directory gets afterwards. */
static int sync_rest(struct work *w, struct sp_error *err) {
    int pieces[PARTS] = {-1, -1}, manifest = -1, r = 0;

    for (size_t i = 0; i < PARTS && r == 0; i++)
        if (w->parts[i].fd >= 0)
            r = snapshot_pieces_write(w->dir, w->parts[i].name, &w->parts[i].digests, &pieces[i], err);
    if (r == 0)
        r = fault_point("snapshot.manifest", err);
    if (r == 0)
        r = write_manifest(w, &manifest, err);
    if (r == 0) {
        const int fds[] = {w->parts[MEMORY].fd, w->parts[DISK].fd, w->devices, pieces[MEMORY],
                           pieces[DISK],        manifest,          w->dir};
        int there[ARRAY_SIZE(fds)];
        r = sync_files(there, present(fds, ARRAY_SIZE(fds), there), err);
    }
    (void)close_fd(pieces[MEMORY]);
    (void)close_fd(pieces[DISK]);
    (void)close_fd(manifest);
    return r;
}

static int publish(struct work *w, struct sp_error *err) {
    int r = snapshot_publish(w->take->layout, w->temp, w->take->key, err);
    w->published = r == 0 || faccessat(w->take->layout->snapshots, w->temp, F_OK, AT_SYMLINK_NOFOLLOW) < 0;
    return r;
}

void snapshot_take_based(struct vm_record *record, const char *key, enum request_content content) {
    if (content == CONTENT_FULL)
        (void)text_copy(record->base, sizeof(record->base), key);
    (void)text_copy(record->disk_base, sizeof(record->disk_base), content == CONTENT_DISK ? key : "");
}

static int write_record(struct work *w, struct sp_error *err) {
    _cleanup_close_ int dir =
        openat(w->take->layout->sandboxes, w->record->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct vm_record next = *w->record;
    int r;

    if (dir < 0)
        return sp_error_errno(err, errno, "open", "directory of %s", w->record->id);
    snapshot_take_based(&next, w->take->key, w->take->content);
    r = vm_record_write(dir, &next, err);
    if (r == 0)
        *w->record = next;
    return r;
}

/* From here on it is done, whatever space-vm says: what it does not forget it copies once more. */
static int commit(struct work *w, struct sp_error *err) {
    (void)err;
    if (is_full(w) && vm_talk_send(w->talk, "snapshot_committed", true, json_pack("{s:s}", "snapshot", w->take->key),
                                   NULL, 0, NULL) == 0)
        (void)vm_talk_wait(w->talk, NULL, deadline_in_ms(COMMIT_MS), NULL, NULL);
    return 0;
}

static const struct step {
    const char *fault; /* the point before it */
    int (*run)(struct work *w, struct sp_error *err);
} steps[] = {
    {"snapshot.begin", begin},
    {"snapshot.clone", clone_memory},
    {"snapshot.flush", begin_flush},
    {"snapshot.ask", ask},
    {"snapshot.base", read_base},
    {"snapshot.copy", wait_copied},
    {"snapshot.copied", flush},
    {"snapshot.stop", stop},
    {"snapshot.stopped", clone_disk},
    {"snapshot.disk", go},
    {"snapshot.own", own},
    {"snapshot.sync", begin_sync},
    {"snapshot.hash", hash},
    {"snapshot.fsync", sync_rest},
    {"snapshot.publish", publish},
    {"snapshot.record", write_record},
    {"snapshot.committed", commit},
};
#define COMMITTED (ARRAY_SIZE(steps) - 1) /* before it the snapshot has become the VM's base */

static uint64_t allocated(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

static json_t *describe(const struct work *w, json_t *times) {
    const struct part *memory = &w->parts[MEMORY], *disk = &w->parts[DISK];
    uint64_t exclusive = extents_exclusive(&memory->extents) + extents_exclusive(&disk->extents);
    uint64_t hashed = memory->hashed + disk->hashed;
    return json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I}", "existed", false, "memory_bytes",
                     (json_int_t)allocated(memory->fd), "disk_bytes", (json_int_t)allocated(disk->fd),
                     "exclusive_bytes", (json_int_t)exclusive, "pages", (json_int_t)w->pages, "stall_us",
                     (json_int_t)w->stall_us, "timings_us", times, "extents", (json_int_t)memory->extents.n,
                     "pieces_hashed", (json_int_t)hashed);
}

int snapshot_take(const struct snapshot_take *take, struct vm_record *record, json_t **ret, struct sp_error *err) {
    struct work w = {.take = take,
                     .record = record,
                     .dir = -1,
                     .saved = -1,
                     .devices = -1,
                     .vm_disk = -1,
                     .files = json_object(),
                     .parts = {{.name = LAYOUT_MEMORY, .fd = -1, .base = -1},
                               {.name = LAYOUT_DISK, .fd = -1, .base = -1}}};
    json_t *times = json_object();
    size_t at;
    int r = 0;

    for (at = 0; at < ARRAY_SIZE(steps); at++) {
        uint64_t from = clock_monotonic_ns();
        r = fault_point(steps[at].fault, err);
        if (at == COMMITTED)
            r = 0; /* too late to fail */
        if (r == 0)
            r = steps[at].run(&w, err);
        (void)json_object_set_new(times, steps[at].fault + strlen("snapshot."),
                                  json_integer((json_int_t)((clock_monotonic_ns() - from) / 1000)));
        if (r < 0)
            break;
    }
    if (r < 0 && w.published)
        (void)snapshot_remove(take->layout, take->key, NULL);
    if (r == 0)
        *ret = describe(&w, times);
    else
        json_decref(times);
    work_done(&w);
    return r;
}

int snapshot_take_undo(const struct layout *layout, const char *key, struct vm_record *record, bool *ret_published,
                       struct sp_error *err) {
    _cleanup_close_ int dir = openat(layout->sandboxes, record->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct vm_record now;
    int r = snapshot_remove_temps(layout, record->id, err);

    *ret_published = r == 0 && snapshot_exists(layout, key);
    if (r == 0 && *ret_published && fsync(layout->snapshots) < 0)
        r = sp_error_errno(err, errno, "fsync", "snapshots");
    if (r == 0 && dir >= 0 && vm_record_read(dir, record->id, &now, NULL) == 0) {
        (void)text_copy(record->base, sizeof(record->base), now.base);
        (void)text_copy(record->disk_base, sizeof(record->disk_base), now.disk_base);
    }
    return r;
}
