/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine end to end, on the real VMM: a template boot, a clone of it, and the promises of space-vm that need no jail.
 * One check a line, TAP on stdout. Flags: see harness.c.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/text.h"
#include "harness.h"
#include "tap.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* One `key:` of a descriptor's fdinfo. */
static bool fd_is_writable(pid_t pid, const char *fd) {
    char name[96], text[256] = "";
    unsigned flags = 0;
    (void)text_printf(name, sizeof(name), "/proc/%d/fdinfo/%s", (int)pid, fd);
    int f = open(name, O_RDONLY | O_CLOEXEC);
    if (f >= 0) {
        (void)!read(f, text, sizeof(text) - 1);
        (void)close(f);
    }
    const char *at = strstr(text, "flags:");
    return at && sscanf(at, "flags: %o", &flags) == 1 && (flags & O_ACCMODE) != O_RDONLY;
}

/* The VMM holds the shared RAM file, and holds no writable descriptor or mapping of it. */
static void check_ram_read_only(pid_t pid, const char *memory) {
    char dir_name[64], name[96], target[256], detail[300] = "", maps[64], line[512];
    unsigned seen = 0, writable = 0, shared = 0;
    (void)text_printf(dir_name, sizeof(dir_name), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(dir_name);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        ssize_t n;
        (void)text_printf(name, sizeof(name), "/proc/%d/fd/%s", (int)pid, e->d_name);
        n = readlink(name, target, sizeof(target) - 1);
        if (n <= 0)
            continue;
        target[n] = '\0';
        if (strcmp(target, memory) != 0)
            continue;
        seen++;
        writable += fd_is_writable(pid, e->d_name);
    }
    if (dir)
        (void)closedir(dir);
    (void)text_printf(maps, sizeof(maps), "/proc/%d/maps", (int)pid);
    FILE *f = fopen(maps, "re");
    unsigned mapped = 0;
    while (f && fgets(line, sizeof(line), f))
        if (strstr(line, memory)) {
            mapped++;
            shared += line[strcspn(line, " ") + 4] == 's';
        }
    if (f)
        (void)fclose(f);
    (void)text_printf(detail, sizeof(detail), "%u descriptors, %u writable; %u mappings, %u shared", seen, writable,
                      mapped, shared);
    check(mapped > 0 && writable == 0 && shared == 0, "no writable descriptor on the shared RAM file", detail);
}

static unsigned long cpu_ticks(pid_t pid) {
    char name[64], text[512] = "";
    unsigned long user = 0, kernel = 0;
    (void)text_printf(name, sizeof(name), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(name, "re");
    if (f) {
        if (!fgets(text, sizeof(text), f))
            text[0] = '\0';
        (void)fclose(f);
    }
    const char *at = strrchr(text, ')');
    if (at)
        (void)sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel);
    return user + kernel;
}

static void report_idle(const struct harness_vm *vm) {
    (void)sleep(2); /* what waking up costs is over */
    unsigned long vmm = cpu_ticks(harness_vmm_pid(vm)), own = cpu_ticks(vm->pid);
    (void)sleep(5);
    vmm = cpu_ticks(harness_vmm_pid(vm)) - vmm;
    own = cpu_ticks(vm->pid) - own;
    /* A figure, not a promise: the machine may be busy. */
    (void)printf("# idle: VMM %.1f %% of a core, space-vm %.1f %%\n", (double)vmm / 5, (double)own / 5);
}

/* The guest's wall clock beside ours; what the command itself takes is the tolerance. */
static void check_clock(const struct harness_vm *vm) {
    char text[128], detail[128];
    double before = (double)clock_realtime_ns(), guest, after;
    int code = harness_run(vm, "date +%s%N", text, sizeof(text));
    after = (double)clock_realtime_ns();
    guest = strtod(text, NULL);
    (void)text_printf(detail, sizeof(detail), "%.0f ms after the question, answered after %.0f ms",
                      (guest - before) / 1e6, (after - before) / 1e6);
    check(code == 0 && guest > before - 100e6 && guest < after + 100e6, "the clone's wall clock is right", detail);
}

/* With the wrong clocksource an idle guest ticks 250 times a second. A guest that booted on a busy host may have given up
 * its APIC timer for the PIT, which cannot sleep longer than 27 ms: said, not failed. */
static void check_ticks(const struct harness_vm *vm) {
    char detail[128], device[64] = "", text[64];
    (void)harness_run(vm, "cat /sys/devices/system/clockevents/clockevent0/current_device", device, sizeof(device));
    device[strcspn(device, "\n")] = '\0';
    int code = harness_run(vm,
                           "awk 'function ticks(l, n, f, i) { n = 0; while ((getline l < \"/proc/interrupts\") > 0)"
                           " if (l ~ /^ *(LOC|0):/) { split(l, f); for (i = 2; f[i] ~ /^[0-9]+$/; i++) n += f[i] }"
                           " close(\"/proc/interrupts\"); return n }"
                           " BEGIN { a = ticks(); system(\"sleep 8\"); print ticks() - a }'",
                           text, sizeof(text));
    double rate =
        strtod(text, NULL) / 8; /* those of awk and sleep are in it: the more, the longer a busy host takes for them */
    (void)text_printf(detail, sizeof(detail), "%.0f a second by %s", rate, device);
    check(code == 0 && rate > 0 && rate < (strcmp(device, "lapic") == 0 ? 80 : 120), "an idle guest hardly ticks",
          detail);
}

static void check_guest(struct harness_vm *vm) {
    char text[128] = "", error[128] = "";
    _cleanup_json_ json_t *pong = harness_ping(vm), *ping = NULL, *console = NULL;
    check(pong != NULL, "the agent answers through guest.sock", NULL);
    const char *clocksource = json_string_value(json_object_get(pong, "clocksource"));
    check(clocksource && strcmp(clocksource, "tsc") == 0, "the guest's clocksource is tsc", clocksource);
    ping = harness_request(vm, "ping", "pong", 10000);
    check(json_object_get(ping, "agent") != NULL, "the agent answers through control.sock", NULL);
    console = harness_request(vm, "console", "console", 1000);
    check(json_string_value(json_object_get(console, "data")) != NULL, "the console is readable", NULL);
    check(harness_connect(vm, 4242, error, sizeof(error)) < 0 && text_starts_with(error, "ERR refused"),
          "a port nobody listens on is refused", error);
    check(harness_run(vm, "hostname; exit 7", text, sizeof(text)) == 7 && strcmp(text, "harness\n") == 0,
          "a command runs under the new host name", NULL);
    check_clock(vm);
    check_ticks(vm);
    report_idle(vm);
}

static void check_kill(struct harness_vm *vm) {
    char text[300], error[128] = "";
    int stream = harness_connect(vm, 1, error, sizeof(error));
    double killed = harness_now_ms();
    (void)kill(harness_vmm_pid(vm), SIGKILL);
    bool failed = harness_wait_state(vm, "failed", 5000);
    (void)!read(stream, text, 1); /* until the stream ends */
    (void)close_fd(stream);
    double took = harness_now_ms() - killed;
    (void)text_printf(text, sizeof(text), "%.0f ms", took);
    check(failed && took < 1500, "a killed VMM fails the VM and ends its streams", text);
    const char *code = json_string_value(json_object_get(json_object_get(vm->status, "error"), "code"));
    check(code && strcmp(code, "vmm_killed") == 0, "its reason is vmm_killed", code);
    check(harness_connect(vm, 1, error, sizeof(error)) < 0, "a failed VM refuses streams", error);
    check(harness_stop(vm) == 0, "space-vm ends when told to", NULL);
}

static void check_clone(struct harness *h, const char *snapshot) {
    struct harness_vm vm;
    char memory[HARNESS_PATH];
    harness_new(&vm, true, h->work);
    harness_start(h, &vm, snapshot);
    bool running = harness_wait_state(&vm, "running|failed", 60000) && strcmp(harness_state(&vm), "running") == 0;
    _cleanup_free_ char *status = vm.status ? json_dumps(vm.status, 0) : NULL;
    check(running, "a clone runs", status);
    check_ram_read_only(harness_vmm_pid(&vm), harness_path(memory, "%s/memory", snapshot));
    check_guest(&vm);
    check_kill(&vm);
}

static void check_stop(struct harness *h, const char *snapshot) {
    struct harness_vm vm;
    harness_new(&vm, true, h->work);
    harness_start(h, &vm, snapshot);
    check(harness_wait_state(&vm, "running|failed", 60000) && strcmp(harness_state(&vm), "running") == 0,
          "another clone of the same snapshot runs", NULL);
    pid_t vmm = harness_vmm_pid(&vm);
    check(harness_stop(&vm) == 0 && kill(vmm, 0) < 0, "stop ends VM and VMM", NULL);
}

/* The VMM must not outlive space-vm. */
static void check_orphan(struct harness *h, const char *snapshot) {
    struct harness_vm vm;
    harness_new(&vm, true, h->work);
    harness_start(h, &vm, snapshot);
    (void)harness_wait_state(&vm, "running|failed", 60000);
    pid_t vmm = harness_vmm_pid(&vm);
    (void)kill(vm.pid, SIGKILL);
    for (int i = 0; i < 200 && kill(vmm, 0) == 0; i++)
        (void)usleep(10000);
    check(vmm > 0 && kill(vmm, 0) < 0, "the VMM dies with space-vm", NULL);
    (void)harness_stop(&vm);
}

static void check_broken_snapshot(struct harness *h, const char *snapshot) {
    struct harness_vm vm;
    char whole[HARNESS_PATH], broken[HARNESS_PATH], file[HARNESS_PATH + 16], target[HARNESS_PATH + 16];
    static const char *const names[] = {"memory", "disk.img"};
    (void)text_copy(whole, sizeof(whole), snapshot);
    (void)text_printf(broken, sizeof(broken), "%s/broken", h->work);
    (void)dir_remove_tree(AT_FDCWD, broken, NULL);
    (void)dir_ensure(AT_FDCWD, broken, 0755, (uid_t)-1, (gid_t)-1, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        (void)text_printf(target, sizeof(target), "%s/%s", whole, names[i]);
        (void)text_printf(file, sizeof(file), "%s/%s", broken, names[i]);
        (void)!symlink(target, file);
    }
    (void)text_printf(file, sizeof(file), "%s/devices", broken);
    (void)file_replace(AT_FDCWD, file, "QEVM nonsense", 13, 0444, NULL);
    harness_new(&vm, true, h->work);
    harness_start(h, &vm, broken);
    (void)harness_wait_state(&vm, "running|failed", 60000);
    const json_t *error = json_object_get(vm.status, "error");
    const char *code = json_string_value(json_object_get(error, "code"));
    check(code && strcmp(code, "snapshot_broken") == 0, "a device state that does not load is snapshot_broken",
          json_string_value(json_object_get(error, "message")));
    (void)harness_stop(&vm);
    (void)dir_remove_tree(AT_FDCWD, broken, NULL);
}

int main(int argc, char **argv) {
    struct harness h;
    harness_init(&h, argc, argv);
    const char *snapshot = harness_snapshot(&h, true);
    check(true, "a template boots and is saved", NULL);
    check_clone(&h, snapshot);
    check_stop(&h, snapshot);
    check_orphan(&h, snapshot);
    check_broken_snapshot(&h, snapshot);
    return tap_done();
}
