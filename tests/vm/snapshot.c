/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's part of a snapshot (spec/node-protocol.md §4), with a place to give up at; see harness.h. */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "harness.h"
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The connection ends as it would with its broker; a new one follows. */
static void hang_up(struct harness_vm *vm, struct harness_snapshot *s) {
    (void)text_copy(s->code, sizeof(s->code), "given up");
    (void)close_fd(vm->control);
    vm->control = harness_control_connect(vm);
}

static bool is(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

static void take_error(const json_t *done, struct harness_snapshot *s) {
    const char *code = json_string_value(json_object_get(json_object_get(done, "error"), "code"));
    (void)text_copy(s->code, sizeof(s->code), code ? code : done ? "no code" : "no answer");
}

/* The next step's event, or `done` instead of it. */
static bool wait_step(struct harness_vm *vm, const char *step, struct harness_snapshot *s) {
    for (;;) {
        _cleanup_json_ json_t *event = harness_wait_event(vm, NULL, -1, 60000);
        const char *name = json_string_value(json_object_get(event, "event"));
        if (!event || is(name, "done")) {
            take_error(event, s);
            return false;
        }
        if (is(name, "snapshot") && is(json_string_value(json_object_get(event, "step")), step))
            return true;
    }
}

static void say(struct harness_vm *vm, const char *request, long seq) {
    harness_send(vm, json_pack("{s:s, s:I}", "request", request, "seq", (json_int_t)seq), NULL, 0);
}

static void seal(const char *dir) {
    static const char *const names[] = {"memory", "devices", "disk.img"};
    char name[HARNESS_PATH];
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        if (access(harness_path(name, "%s/%s", dir, names[i]), F_OK) < 0)
            continue; /* of the disk alone */
        if (chown(harness_path(name, "%s/%s", dir, names[i]), 0, 0) < 0 || chmod(name, 0444) < 0)
            harness_die("seal %s", name);
    }
}

static void commit(struct harness_vm *vm, const char *name) {
    _cleanup_json_ json_t *done =
        harness_operate(vm, json_pack("{s:s, s:s}", "request", "snapshot_committed", "snapshot", name), NULL, 0);
    if (!json_is_true(json_object_get(done, "ok")))
        harness_die("snapshot_committed was refused");
}

static void exchange(const struct harness *h, struct harness_vm *vm, long seq, const char *give_up,
                     struct harness_snapshot *s) {
    char disk[HARNESS_PATH], copy[HARNESS_PATH];
    double start = harness_now_ms();
    if (is(give_up, "connected")) {
        hang_up(vm, s);
        return;
    }
    if (!wait_step(vm, "copied", s))
        return;
    s->ahead_ms = harness_now_ms() - start;
    if (is(give_up, "copied")) {
        hang_up(vm, s);
        return;
    }
    if (is(give_up, "killed while it runs"))
        (void)kill(harness_vmm_pid(vm), SIGKILL);
    int fd = open(harness_path(disk, "%s/disk.img", vm->dir), O_RDONLY | O_CLOEXEC);
    (void)fdatasync(fd);
    (void)close(fd);
    say(vm, "snapshot_stop", seq);
    if (!wait_step(vm, "stopped", s))
        return;
    if (is(give_up, "stopped")) {
        hang_up(vm, s);
        return;
    }
    if (is(give_up, "killed while it stands"))
        (void)kill(harness_vmm_pid(vm), SIGKILL);
    harness_reflink(disk, harness_path(copy, "%s/disk.img", s->dir), 0600, h->uid);
    say(vm, "snapshot_go", seq);
    if (is(give_up, "gone")) {
        hang_up(vm, s);
        return;
    }
    _cleanup_json_ json_t *done = harness_wait_event(vm, "done", seq, 60000);
    s->total_ms = harness_now_ms() - start;
    s->ok = json_is_true(json_object_get(done, "ok"));
    if (!s->ok) {
        take_error(done, s);
        return;
    }
    s->pages = (long)json_integer_value(json_object_get(done, "pages"));
    s->stall_us = (long)json_integer_value(json_object_get(done, "stall_us"));
    _cleanup_free_ char *timings = json_dumps(json_object_get(done, "timings"), 0);
    (void)printf("# snapshot %s: %ld pages, stall %.1f ms, %s\n", s->dir + strlen(h->work) + 1, s->pages,
                 (double)s->stall_us / 1e3, timings);
}

void harness_take_snapshot(const struct harness *h, struct harness_vm *vm, const char *base, const char *name,
                           const char *then, const char *give_up, struct harness_snapshot *ret) {
    static long seq = 100;
    char from[HARNESS_PATH], to[HARNESS_PATH];
    bool disk = is(then, "disk");
    int fds[2] = {-1, -1};
    *ret = (struct harness_snapshot){.ok = false};
    (void)harness_path(ret->dir, "%s/%s", h->work, name);
    (void)dir_remove_tree(AT_FDCWD, ret->dir, NULL);
    harness_make_dir(ret->dir, 0755, 0);
    if (disk) {
        harness_send(vm,
                     json_pack("{s:s, s:I, s:s}", "request", "snapshot_disk", "seq", (json_int_t)++seq, "snapshot",
                               name),
                     NULL, 0);
    } else {
        (void)harness_path(to, "%s/memory", ret->dir);
        if (access(harness_path(from, "%s/memory", base), F_OK) == 0)
            harness_reflink(from, to, 0600, 0);
        fds[0] = open(to, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fds[0] < 0 || ftruncate(fds[0], (off_t)h->memory_mib << 20) < 0)
            harness_die("memory of a snapshot");
        fds[1] = open(harness_path(to, "%s/devices", ret->dir), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        harness_send(vm,
                     json_pack("{s:s, s:I, s:s, s:s}", "request", "snapshot", "seq", (json_int_t)++seq, "then", then,
                               "snapshot", name),
                     fds, 2);
    }
    exchange(h, vm, seq, give_up, ret);
    (void)close_fd(fds[0]);
    (void)close_fd(fds[1]);
    if (ret->ok)
        seal(ret->dir);
    if (ret->ok && !disk)
        commit(vm, name);
}
