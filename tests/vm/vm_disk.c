/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of the disk alone on the real VMM: what the guest had written is in them and nothing else comes back, the file
 * system is clean, those with memory before and after them are whole, and a VM that booted on one has snapshots like any
 * other. TAP on stdout, figures as comments.
 */
#include "base/cleanup.h"
#include "base/text.h"
#include "harness.h"
#include "tap.h"
#include <string.h>
#include <unistd.h>

#define WRITER                                                                                                         \
    "(i=0; while test ! -e /dev/shm/stop; do i=$((i+1)); head -c 2M /dev/urandom > /var/tmp/busy.$((i % 3)); done) "   \
    ">/dev/null 2>&1 &"

static void start(struct harness *h, struct harness_vm *vm, const char *snapshot, bool boots) {
    harness_new(vm, true, h->work);
    vm->boots = boots;
    harness_start(h, vm, snapshot);
    bool runs = harness_wait_state(vm, "running|failed", 90000) && strcmp(harness_state(vm), "running") == 0;
    check(runs, boots ? "a VM boots on it" : "a clone runs",
          json_string_value(json_object_get(json_object_get(vm->status, "error"), "message")));
    (void)printf("# %s: up after %.0f ms\n", boots ? "boot" : "clone", harness_timing(vm, "total_ms"));
}

static bool says(const struct harness_vm *vm, const char *command, const char *want) {
    char text[256] = "";
    bool good = harness_run(vm, command, text, sizeof(text)) >= 0 && strcmp(text, want) == 0;
    if (!good)
        (void)printf("# %s: %s\n", command, text);
    return good;
}

static void check_booted(const struct harness_vm *vm, const char *sum) {
    check(says(vm, "sha256sum < /var/tmp/synced", sum), "what was synced is there", NULL);
    check(says(vm, "cat /var/tmp/unsynced", "not synced\n"), "and what was only written", NULL);
    check(says(vm, "ls /dev/shm; pgrep sleep", ""), "memory and processes are not", NULL);
    check(says(vm, "dmesg | grep -ciE 'ext4.*(error|corrupt)|i/o error'", "0\n"), "the file system has no error", NULL);
    check(says(vm, "dmesg | grep -c 'mounted filesystem'", "1\n"), "and was mounted", NULL);
    check(says(vm, "hostname", "harness\n"), "its identity is set", NULL);
}

/* Memory that was written before, between and after is all there in the next one that holds it. */
static void check_chain(struct harness *h, struct harness_vm *vm, const char *base) {
    struct harness_snapshot disk, s;
    struct harness_vm fork;
    char sum[128], sum2[128];
    (void)harness_run(vm, "head -c 6M /dev/urandom > /dev/shm/before", sum, sizeof(sum));
    harness_take_snapshot(h, vm, NULL, "disk-between", "disk", NULL, &disk);
    check(disk.ok, "a snapshot of the disk in between", disk.code);
    check(harness_run(vm, "head -c 6M /dev/urandom > /dev/shm/after; cat /dev/shm/before /dev/shm/after | sha256sum",
                      sum, sizeof(sum)) == 0,
          "the guest goes on", NULL);
    harness_take_snapshot(h, vm, base, "with-memory", "resume", NULL, &s);
    check(s.ok && s.pages > 2 * 6 * 256, "the next one with memory copies what was written since the last such",
          s.code);
    start(h, &fork, s.dir, false);
    check(harness_run(&fork, "cat /dev/shm/before /dev/shm/after | sha256sum", sum2, sizeof(sum2)) == 0 &&
              strcmp(sum, sum2) == 0,
          "a clone of it holds all of it", sum2);
    (void)harness_stop(&fork);
}

static void check_given_up(struct harness *h, struct harness_vm *vm) {
    static const char *const steps[] = {"connected", "copied", "stopped", "gone"};
    struct harness_snapshot s;
    char what[96];
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        harness_take_snapshot(h, vm, NULL, "given-up", "disk", steps[i], &s);
        (void)usleep(300000);
        (void)text_printf(what, sizeof(what), "given up after %s", steps[i]);
        check(harness_wait_state(vm, "running", 5000) && says(vm, "echo here", "here\n"), what, harness_state(vm));
    }
    _cleanup_json_ json_t *paused = harness_operate(vm, json_pack("{s:s}", "request", "pause"), NULL, 0);
    harness_take_snapshot(h, vm, NULL, "paused", "disk", NULL, &s);
    check(json_is_true(json_object_get(paused, "ok")) && !s.ok && strcmp(s.code, "conflict") == 0,
          "refused of a paused VM", s.code);
    _cleanup_json_ json_t *resumed = harness_operate(vm, json_pack("{s:s}", "request", "resume"), NULL, 0);
    check(json_is_true(json_object_get(resumed, "ok")) && says(vm, "echo here", "here\n"), "which goes on", NULL);
}

int main(int argc, char **argv) {
    struct harness h;
    struct harness_vm vm, booted;
    struct harness_snapshot s;
    char sum[128] = "", text[64], first[HARNESS_PATH];
    harness_init(&h, argc, argv);
    const char *snapshot = harness_snapshot(&h, false);
    start(&h, &vm, snapshot, false);
    check(harness_run(&vm,
                      "mkdir -p /var/tmp; head -c 3M /dev/urandom > /var/tmp/synced; sync /var/tmp/synced; "
                      "sha256sum < /var/tmp/synced",
                      sum, sizeof(sum)) == 0,
          "the guest writes and syncs", NULL);
    (void)harness_run(&vm, WRITER " sleep 1000 >/dev/null 2>&1 & echo not synced > /var/tmp/unsynced", text,
                      sizeof(text));
    harness_take_snapshot(&h, &vm, NULL, "disk", "disk", NULL, &s);
    check(s.ok && s.pages == 0, "a snapshot of the disk while the guest writes", s.code);
    check(access(harness_path(first, "%s/memory", s.dir), F_OK) < 0, "holds no memory", NULL);
    (void)harness_path(first, "%s", s.dir);
    start(&h, &booted, first, true);
    check_booted(&booted, sum);
    check_chain(&h, &booted, first);
    check_given_up(&h, &booted);
    check(harness_stop(&booted) == 0, "a booted VM ends when told to", NULL);
    (void)harness_run(&vm, "touch /dev/shm/stop; sleep 1", text, sizeof(text));
    check_chain(&h, &vm, snapshot);
    check(harness_stop(&vm) == 0, "the other too", NULL);
    return tap_done();
}
