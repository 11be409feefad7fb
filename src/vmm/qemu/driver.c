/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The QEMU driver's table: which QMP commands make up each operation, and the descriptors a running QEMU shares with us.
 * Memory never travels here: a device state is some 15 KiB (xen-save-devices-state has nothing to do with Xen), RAM
 * stays in its file.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "vmm/qemu/qemu.h"
#include "vmm/stub.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define QEMU_STATE_MAX (16 * 1024 * 1024) /* of a device state; one is some 15 KiB */

struct qemu {
    struct vmm vmm; /* first: a struct vmm * of this driver is a struct qemu * */
    struct qmp qmp;
    int fd_files;                 /* preload_wire.h; -1 once all was said */
    int fd_state, fd_state_write; /* where QEMU writes a device state: QEMU's end can only write */
    int last_fdset;               /* every save has its own */
    int first_fdset;              /* the oldest QEMU may still hold; above last_fdset: none */
};

static struct qemu *qemu_of(struct vmm *v) {
    return (struct qemu *)v;
}

static int command(struct vmm *v, const char *name, json_t *args, struct deadline d, struct sp_error *err) {
    return qmp_execute(&qemu_of(v)->qmp, name, args, -1, d, NULL, err);
}

/* --- start --------------------------------------------------------------------------------------------------------- */

/* Ours and the VMM's end of every connection. */
struct ends {
    int ours[VMM_FD_COUNT_], theirs[VMM_FD_COUNT_];
};

static void ends_close(int ends[VMM_FD_COUNT_]) {
    for (int i = 0; i < VMM_FD_COUNT_; i++)
        ends[i] = close_fd(ends[i]);
}

static void ends_done(struct ends *e) {
    ends_close(e->ours);
    ends_close(e->theirs);
}

static int pair(struct ends *e, enum vmm_fd which, int type) {
    int fds[2];
    if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) < 0)
        return -errno;
    e->ours[which] = fds[0];
    e->theirs[which] = fds[1];
    return 0;
}

/* stdin at its end, stdout and stderr into one pipe; control, guest, console and the files' as socketpairs; the tap as
 * it is. */
static int ends_make(struct ends *e, int fd_tap) {
    int nothing[2], log[2];
    if (pipe2(nothing, O_CLOEXEC) < 0)
        return -errno;
    (void)close(nothing[1]);
    e->theirs[0] = nothing[0];
    if (pipe2(log, O_CLOEXEC) < 0)
        return -errno;
    e->ours[1] = log[0];
    e->theirs[1] = log[1];
    e->theirs[2] = fcntl(log[1], F_DUPFD_CLOEXEC, 3);
    e->theirs[VMM_FD_TAP] = fcntl(fd_tap, F_DUPFD_CLOEXEC, 3);
    if (e->theirs[2] < 0 || e->theirs[VMM_FD_TAP] < 0)
        return -errno;
    for (enum vmm_fd i = VMM_FD_CONTROL; i <= VMM_FD_CONSOLE; i++) {
        int r = pair(e, i, SOCK_STREAM);
        if (r < 0)
            return r;
    }
    return pair(e, VMM_FD_FILES, SOCK_SEQPACKET);
}

static struct vmm *qemu_new(struct ends *e) {
    struct qemu *q = calloc(1, sizeof(*q));
    if (!q)
        return NULL;
    q->vmm = (struct vmm){
        .driver = &qemu_driver,
        .fd_control = TAKE_FD(e->ours[VMM_FD_CONTROL]),
        .fd_guest = TAKE_FD(e->ours[VMM_FD_GUEST]),
        .fd_console = TAKE_FD(e->ours[VMM_FD_CONSOLE]),
        .fd_log = TAKE_FD(e->ours[1]),
        .ram = {.fd_uffd = -1},
    };
    q->first_fdset = 1;
    q->fd_files = TAKE_FD(e->ours[VMM_FD_FILES]);
    (void)fd_set_nonblocking(q->vmm.fd_guest, true);
    (void)fd_set_nonblocking(q->vmm.fd_console, true);
    (void)fd_set_nonblocking(q->vmm.fd_log, true);
    qmp_init(&q->qmp, q->vmm.fd_control);
    return &q->vmm;
}

static void qemu_free(struct vmm *v) {
    if (!v)
        return;
    qmp_done(&qemu_of(v)->qmp);
    (void)close_fd(v->fd_control);
    (void)close_fd(v->fd_guest);
    (void)close_fd(v->fd_console);
    (void)close_fd(v->fd_log);
    (void)close_fd(v->ram.fd_uffd);
    (void)close_fd(qemu_of(v)->fd_files);
    (void)close_fd(qemu_of(v)->fd_state);
    (void)close_fd(qemu_of(v)->fd_state_write);
    free(qemu_of(v));
}

/* Made at the start: a second descriptor that can only write takes a path, and later nobody may open one. */
static int make_state(struct qemu *q) {
    char path[64];
    q->fd_state = memfd_create("device-state", MFD_CLOEXEC);
    (void)text_printf(path, sizeof(path), "/proc/self/fd/%d", q->fd_state);
    q->fd_state_write = q->fd_state < 0 ? -1 : open(path, O_WRONLY | O_CLOEXEC);
    return q->fd_state_write < 0 ? -errno : 0;
}

static int qemu_start(const struct vmm_start *start, struct deadline d, struct vmm **ret, struct sp_error *err) {
    _cleanup_vmm_args_ struct vmm_args args = {0};
    _cleanup_(ends_done) struct ends e;
    struct vmm_stub_request request;
    struct vmm *v;
    int r;

    memset(&e, 0xff, sizeof(e)); /* all -1 */
    r = qemu_build_args(&start->machine, start->purpose, &args, err);
    if (r < 0)
        return r;
    r = ends_make(&e, start->fd_tap);
    if (r < 0)
        return sp_error_errno(err, -r, "socketpair", "connections to the VMM");
    request = (struct vmm_stub_request){
        .argv = (const char *const *)args.argv,
        .env = (const char *const *)args.env,
        .fds = e.theirs,
        .n_fds = VMM_FD_COUNT_,
    };
    r = vmm_stub_exec(start->fd_stub, &request, d, err);
    if (r < 0)
        return r;
    v = qemu_new(&e);
    if (!v)
        return sp_error_errno(err, ENOMEM, "qemu", "start");
    r = make_state(qemu_of(v));
    if (r < 0) {
        qemu_free(v);
        return sp_error_errno(err, -r, "memfd", "device state");
    }
    *ret = v;
    return 0;
}

static int qemu_wait_held(struct vmm *v, struct deadline d, struct sp_error *err) {
    return qemu_files_wait_held(qemu_of(v)->fd_files, d, err);
}

static int qemu_give_files(struct vmm *v, int fd_memory, int fd_disk, struct deadline d, struct sp_error *err) {
    (void)d; /* an empty socket takes a message at once */
    return qemu_files_give(qemu_of(v)->fd_files, fd_memory, fd_disk, err);
}

static int qemu_wait_up(struct vmm *v, struct deadline d, struct sp_error *err) {
    int r = qemu_files_mapped(qemu_of(v)->fd_files, d, &v->ram, err);
    qemu_of(v)->fd_files = close_fd(qemu_of(v)->fd_files);
    return r < 0 ? r : qmp_negotiate(&qemu_of(v)->qmp, d, err);
}

/* --- device state -------------------------------------------------------------------------------------------------- */

/* Waits until the incoming state is in. A state that does not load ends QEMU (before 9.1) or gives "failed". */
static int wait_migrated(struct qmp *q, struct deadline d, struct sp_error *err) {
    for (;;) {
        struct qmp_event e;
        const char *status;
        bool completed, failed;
        int r = qmp_wait_event(q, "MIGRATION", d, &e, err);
        if (r < 0)
            return r == -SP_E_GONE ? sp_error_set(err, SP_E_VMM, "the VMM ended while it loaded the device state") : r;
        status = json_string_value(json_object_get(e.data, "status"));
        completed = status && strcmp(status, "completed") == 0;
        failed = status && strcmp(status, "failed") == 0;
        json_decref(e.data);
        if (completed)
            return 0;
        if (failed)
            return sp_error_set(err, SP_E_VMM, "the device state does not load");
    }
}

static int qemu_load(struct vmm *v, int fd, struct deadline d, struct sp_error *err) {
    struct qmp *q = &qemu_of(v)->qmp;
    json_t *events = json_pack("{s:[{s:s, s:b}]}", "capabilities", "capability", "events", "state", 1);
    int r = command(v, "migrate-set-capabilities", events, d, err);
    if (r < 0)
        return r;
    r = qmp_execute(q, "getfd", json_pack("{s:s}", "fdname", "devices"), fd, d, NULL, err);
    if (r < 0)
        return r;
    r = command(v, "migrate-incoming", json_pack("{s:s}", "uri", "fd:devices"), d, err);
    if (r < 0)
        return r;
    return wait_migrated(q, d, err);
}

/* What QEMU has written, into the file. */
static int copy_state(int from, int to, struct sp_error *err) {
    char chunk[16384];
    for (off_t at = 0;;) {
        ssize_t n = pread(from, chunk, sizeof(chunk), at);
        int r;
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            return 0;
        if (n < 0)
            return sp_error_errno(err, errno, "read", "device state");
        if (at + n > QEMU_STATE_MAX)
            return sp_error_set(err, SP_E_TOO_LARGE, "the device state is over %d bytes", QEMU_STATE_MAX);
        r = fd_write_all(to, chunk, (size_t)n, err);
        if (r < 0)
            return r;
        at += n;
    }
}

/* QEMU lets go of a descriptor set only while the machine runs, however often it is told to. */
static void forget_fdsets(struct qemu *q, struct deadline d) {
    for (; q->first_fdset <= q->last_fdset; q->first_fdset++)
        (void)command(&q->vmm, "remove-fd", json_pack("{s:i}", "fdset-id", q->first_fdset), d, NULL);
}

/* Through memory of ours: QEMU keeps the descriptor for a while, and whoever takes it over must not be able to write into
 * a snapshot that is sealed. */
static int qemu_save(struct vmm *v, int fd, struct deadline d, struct sp_error *err) {
    struct qemu *q = qemu_of(v);
    char name[32];
    int r;
    (void)text_printf(name, sizeof(name), "/dev/fdset/%d", ++q->last_fdset);
    if (lseek(q->fd_state_write, 0, SEEK_SET) < 0) /* it shares its position with the copies of earlier saves */
        return sp_error_errno(err, errno, "lseek", "device state");
    r = qmp_execute(&q->qmp, "add-fd", json_pack("{s:i}", "fdset-id", q->last_fdset), q->fd_state_write, d, NULL, err);
    if (r < 0)
        return r;
    r = command(v, "xen-save-devices-state", json_pack("{s:s, s:b}", "filename", name, "live", 0), d, err);
    return r < 0 ? r : copy_state(q->fd_state, fd, err);
}

/* --- the rest ------------------------------------------------------------------------------------------------------- */

static int qemu_stop(struct vmm *v, struct deadline d, struct sp_error *err) {
    forget_fdsets(qemu_of(v), d);
    return command(v, "stop", NULL, d, err);
}

static int qemu_cont(struct vmm *v, struct deadline d, struct sp_error *err) {
    return command(v, "cont", NULL, d, err);
}

/* -no-reboot turns a reset into the end of QEMU; for this one it is suspended. */
static int qemu_reset(struct vmm *v, struct deadline d, struct sp_error *err) {
    struct qmp_event e;
    int r = command(v, "set-action", json_pack("{s:s}", "reboot", "reset"), d, err);
    if (r < 0)
        return r;
    r = command(v, "system_reset", NULL, d, err);
    if (r < 0)
        return r;
    r = qmp_wait_event(&qemu_of(v)->qmp, "RESET", d, &e, err);
    if (r < 0)
        return r;
    json_decref(e.data);
    return command(v, "set-action", json_pack("{s:s}", "reboot", "shutdown"), d, err);
}

/* The timer's local vector is masked for as long as the guest does not use it. */
static int qemu_timer_is_apic(struct vmm *v, struct deadline d, bool *ret, struct sp_error *err) {
    _cleanup_json_ json_t *answer = NULL;
    bool masked = false;
    int r = qmp_execute(&qemu_of(v)->qmp, "human-monitor-command", json_pack("{s:s}", "command-line", "info lapic"), -1,
                        d, &answer, err);
    if (r < 0)
        return r;
    if (!json_is_string(answer) || !qemu_lapic_timer_masked(json_string_value(answer), &masked))
        return sp_error_set(err, SP_E_UNSUPPORTED, "qmp info lapic: no timer in it");
    *ret = !masked;
    return 0;
}

static int qemu_quit(struct vmm *v, struct deadline d, struct sp_error *err) {
    int r = command(v, "quit", NULL, d, err);
    return r == -SP_E_GONE ? 0 : r; /* it may be gone before it answers */
}

static int qemu_status(struct vmm *v, struct deadline d, enum vmm_status *ret, struct sp_error *err) {
    _cleanup_json_ json_t *answer = NULL;
    const char *name;
    int r = qmp_execute(&qemu_of(v)->qmp, "query-status", NULL, -1, d, &answer, err);
    if (r < 0)
        return r;
    name = json_string_value(json_object_get(answer, "status"));
    if (!name)
        return sp_error_set(err, SP_E_PROTOCOL, "qmp query-status: no status");
    *ret = qemu_status_from_name(name);
    return 0;
}

static int qemu_pump(struct vmm *v, struct sp_error *err) {
    return qmp_pump(&qemu_of(v)->qmp, err);
}

static bool qemu_next_event(struct vmm *v, struct vmm_event *ret) {
    struct qmp_event e;
    while (qmp_next_event(&qemu_of(v)->qmp, &e)) {
        bool known = qemu_event_from_qmp(&e, ret);
        json_decref(e.data);
        if (known)
            return true;
    }
    return false;
}

const struct vmm_driver qemu_driver = {
    .name = "qemu",
    .probe = qemu_probe,
    .build_args = qemu_build_args,
    .start = qemu_start,
    .wait_held = qemu_wait_held,
    .give_files = qemu_give_files,
    .wait_up = qemu_wait_up,
    .load = qemu_load,
    .save = qemu_save,
    .stop = qemu_stop,
    .cont = qemu_cont,
    .reset = qemu_reset,
    .timer_is_apic = qemu_timer_is_apic,
    .quit = qemu_quit,
    .status = qemu_status,
    .pump = qemu_pump,
    .next_event = qemu_next_event,
    .free = qemu_free,
};
