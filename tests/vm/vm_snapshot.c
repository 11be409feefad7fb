/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of running VMs on the real VMM: what they cost, that a clone of one (and of its clone) holds what the guest's
 * memory held, and that giving one up at any step leaves the VM as it was. TAP on stdout, figures as comments.
 */
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "harness.h"
#include "tap.h"
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define IDLE_SNAPSHOTS 10

static void start_clone(struct harness *h, struct harness_vm *vm, const char *snapshot) {
    harness_new(vm, true, h->work);
    harness_start(h, vm, snapshot);
    check(harness_wait_state(vm, "running|failed", 60000) && strcmp(harness_state(vm), "running") == 0, "a clone runs",
          vm->status ? json_string_value(json_object_get(json_object_get(vm->status, "error"), "message")) : NULL);
}

static unsigned count_fds(pid_t pid) {
    char name[64];
    unsigned n = 0;
    (void)text_printf(name, sizeof(name), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(name);
    while (dir && readdir(dir))
        n++;
    if (dir)
        (void)closedir(dir);
    return n;
}

static bool answers(const struct harness_vm *vm) {
    char text[64];
    return harness_run(vm, "echo here", text, sizeof(text)) == 0 && strcmp(text, "here\n") == 0;
}

/* The tenth in a row costs what the second did. *ret_base: the last one. */
static void check_idle(struct harness *h, struct harness_vm *vm, const char *snapshot, char ret_base[HARNESS_PATH]) {
    struct harness_snapshot s[IDLE_SNAPSHOTS];
    char name[32], detail[160];
    unsigned fds = count_fds(harness_vmm_pid(vm)), good = 0;
    (void)harness_path(ret_base, "%s", snapshot);
    for (int i = 0; i < IDLE_SNAPSHOTS; i++) {
        (void)text_printf(name, sizeof(name), "idle%d", i);
        harness_take_snapshot(h, vm, ret_base, name, "resume", NULL, &s[i]);
        if (!s[i].ok)
            break;
        good++;
        (void)harness_path(ret_base, "%s", s[i].dir);
        (void)usleep(300000);
    }
    check(good == IDLE_SNAPSHOTS, "ten snapshots in a row", good < IDLE_SNAPSHOTS ? s[good].code : NULL);
    if (good < IDLE_SNAPSHOTS)
        return;
    (void)text_printf(detail, sizeof(detail), "pages %ld, %ld … %ld; stall %.1f, %.1f … %.1f ms", s[0].pages,
                      s[1].pages, s[9].pages, (double)s[0].stall_us / 1e3, (double)s[1].stall_us / 1e3,
                      (double)s[9].stall_us / 1e3);
    (void)printf("# %s\n", detail);
    check(s[9].pages < 2 * s[1].pages + 500, "the tenth copies what the second did", detail);
    check(count_fds(harness_vmm_pid(vm)) <= fds + 1, "the VMM holds no more descriptors than before", NULL);
    check(answers(vm), "the guest goes on", NULL);
}

/* Memory that stays and memory that changes all the time, then a clone of it, and a clone of that. */
static void check_contents(struct harness *h, struct harness_vm *vm, const char *base) {
    struct harness_snapshot s, t;
    struct harness_vm fork, fork2;
    char sum[128], sum2[128], name[64];
    const char *tag = h->no_userfaultfd ? "compare" : "scan";
    check(harness_run(vm, "head -c 24M /dev/urandom > /dev/shm/keep; sha256sum < /dev/shm/keep", sum, sizeof(sum)) == 0,
          "the guest fills memory", NULL);
    (void)harness_run(vm,
                      "(while test ! -e /dev/shm/stop; do head -c 4M /dev/urandom > /dev/shm/change; cp "
                      "/dev/shm/change /dev/shm/change2; "
                      "cmp /dev/shm/change /dev/shm/change2 || echo bad > /dev/shm/bad; done) >/dev/null 2>&1 &",
                      sum2, sizeof(sum2));
    (void)text_printf(name, sizeof(name), "busy-%s", tag);
    harness_take_snapshot(h, vm, base, name, "resume", NULL, &s);
    check(s.ok, "a snapshot while the guest writes", s.code);
    start_clone(h, &fork, s.dir);
    check(harness_run(&fork, "sha256sum < /dev/shm/keep", sum2, sizeof(sum2)) == 0 && strcmp(sum, sum2) == 0,
          "a clone of it holds the same", sum2);
    check(harness_run(&fork,
                      "sleep 1; test ! -e /dev/shm/bad && head -c 1M /dev/urandom > /dev/shm/more && "
                      "cat /dev/shm/keep /dev/shm/more | sha256sum",
                      sum, sizeof(sum)) == 0,
          "and what was being written is whole", NULL);
    (void)text_printf(name, sizeof(name), "fork-%s", tag);
    harness_take_snapshot(h, &fork, s.dir, name, "stop", NULL, &t);
    check(t.ok && harness_wait_state(&fork, "paused", 1000) && json_object_get(fork.status, "snapshot") != NULL,
          "a snapshot of the clone, which then stands still", t.code);
    start_clone(h, &fork2, t.dir);
    check(harness_run(&fork2, "test ! -e /dev/shm/bad && cat /dev/shm/keep /dev/shm/more | sha256sum", sum2,
                      sizeof(sum2)) == 0 &&
              strcmp(sum, sum2) == 0,
          "a clone of the clone holds the same", sum2);
    _cleanup_json_ json_t *resumed = harness_operate(&fork, json_pack("{s:s}", "request", "resume"), NULL, 0);
    check(json_is_true(json_object_get(resumed, "ok")) && answers(&fork), "what stood still goes on", NULL);
    (void)harness_stop(&fork);
    (void)harness_stop(&fork2);
}

static void check_given_up(struct harness *h, struct harness_vm *vm, const char *base) {
    static const char *const steps[] = {"connected", "copied", "stopped", "gone"}, *const thens[] = {"resume", "stop"};
    struct harness_snapshot s;
    char what[96], sum[128], sum2[128];
    (void)harness_run(vm, "touch /dev/shm/stop; head -c 8M /dev/urandom > /dev/shm/late; sha256sum < /dev/shm/late",
                      sum, sizeof(sum));
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        for (size_t j = 0; j < ARRAY_SIZE(thens); j++) {
            harness_take_snapshot(h, vm, base, "given-up", thens[j], steps[i], &s);
            bool stays = strcmp(steps[i], "gone") == 0 && j == 1;
            (void)text_printf(what, sizeof(what), "given up after %s (then %s)", steps[i], thens[j]);
            if (stays) {
                bool paused = harness_wait_state(vm, "paused", 5000);
                _cleanup_json_ json_t *r = harness_operate(vm, json_pack("{s:s}", "request", "resume"), NULL, 0);
                check(paused && json_is_true(json_object_get(r, "ok")) && answers(vm), what, "it stood still");
                continue;
            }
            (void)usleep(300000);
            check(harness_wait_state(vm, "running", 5000) && answers(vm), what, harness_state(vm));
        }
    harness_take_snapshot(h, vm, base, "after-all", "resume", NULL, &s);
    check(s.ok, "a snapshot after all of them", s.code);
    struct harness_vm fork;
    start_clone(h, &fork, s.dir);
    check(harness_run(&fork, "sha256sum < /dev/shm/late", sum2, sizeof(sum2)) == 0 && strcmp(sum, sum2) == 0,
          "holds what the given-up ones had noted", sum2);
    (void)harness_stop(&fork);
}

static void check_paused(struct harness *h, struct harness_vm *vm, const char *base) {
    struct harness_snapshot s;
    _cleanup_json_ json_t *paused = harness_operate(vm, json_pack("{s:s}", "request", "pause"), NULL, 0);
    check(json_is_true(json_object_get(paused, "ok")), "paused", NULL);
    harness_take_snapshot(h, vm, base, "paused", "resume", NULL, &s);
    check(s.ok && strcmp(harness_state(vm), "paused") == 0, "a snapshot of a paused VM, which stays paused", s.code);
    struct harness_vm fork;
    start_clone(h, &fork, s.dir);
    check(answers(&fork), "a clone of it answers", NULL);
    (void)harness_stop(&fork);
    _cleanup_json_ json_t *resumed = harness_operate(vm, json_pack("{s:s}", "request", "resume"), NULL, 0);
    check(json_is_true(json_object_get(resumed, "ok")) && answers(vm), "and goes on when told to", NULL);
}

static void check_all(struct harness *h, const char *snapshot) {
    struct harness_vm vm;
    char base[HARNESS_PATH];
    start_clone(h, &vm, snapshot);
    check_idle(h, &vm, snapshot, base);
    check_contents(h, &vm, base);
    (void)harness_path(base, "%s/busy-%s", h->work, h->no_userfaultfd ? "compare" : "scan");
    check_given_up(h, &vm, base);
    (void)harness_path(base, "%s/after-all", h->work);
    check_paused(h, &vm, base);
    check(harness_stop(&vm) == 0, "space-vm ends when told to", NULL);
}

static void check_death(struct harness *h, const char *snapshot) {
    static const char *const when[] = {"killed while it runs", "killed while it stands"};
    for (size_t i = 0; i < ARRAY_SIZE(when); i++) {
        struct harness_vm vm;
        struct harness_snapshot s;
        start_clone(h, &vm, snapshot);
        harness_take_snapshot(h, &vm, snapshot, "killed", "resume", when[i], &s);
        check(!s.ok && harness_wait_state(&vm, "failed", 5000), when[i], s.code);
        check(strcmp(s.code, "vmm_killed") == 0, "which is its answer", s.code);
        (void)harness_stop(&vm);
    }
}

static void check_compared(struct harness *h, const char *snapshot) {
    struct harness_vm vm;
    start_clone(h, &vm, snapshot);
    check_contents(h, &vm, snapshot);
    (void)harness_stop(&vm);
}

int main(int argc, char **argv) {
    struct harness h;
    harness_init(&h, argc, argv);
    const char *snapshot = harness_snapshot(&h, false);
    check_all(&h, snapshot);
    check_death(&h, snapshot);
    h.no_userfaultfd = true; /* as on an older kernel: pages are compared instead */
    check_compared(&h, snapshot);
    return tap_done();
}
