/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: what this host has and lacks, in plain words, with what to do about it. Looks only; changes nothing. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fdio.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/up/database.h"
#include "host/reflink.h"
#include "io/http_client.h"
#include "io/spawn.h"
#include <fcntl.h>
#include <jansson.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>

enum verdict { VERDICT_OK, VERDICT_NOTE, VERDICT_MISSING };
static const char *const verdict_names[] = {"ok", "note", "MISSING"};

struct finding {
    enum verdict verdict;
    char text[240];
};

__attribute__((format(printf, 3, 4))) static void say(struct finding *f, enum verdict v, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    f->verdict = v;
}

static void check_root(const struct settings *s, struct finding *f) {
    (void)s;
    if (geteuid() == 0)
        say(f, VERDICT_OK, "running as root");
    else
        say(f, VERDICT_NOTE, "not root: `space up` and `space template build` need it, the other commands do not");
}

static void check_kvm(const struct settings *s, struct finding *f) {
    if (access("/dev/kvm", R_OK | W_OK) == 0)
        say(f, VERDICT_OK, "/dev/kvm works: guests run in hardware");
    else if (strcmp(s->accelerator, "kvm") == 0)
        say(f, VERDICT_MISSING,
            "accelerator = kvm, but /dev/kvm cannot be opened; use auto or tcg, or enable virtualisation");
    else
        say(f, VERDICT_NOTE, "no /dev/kvm: guests are emulated (tcg), still real VMs, 5 to 7 times slower inside");
}

static void check_qemu(const struct settings *s, struct finding *f) {
    const char *const argv[] = {s->qemu, "--version", NULL};
    const struct spawn_options opt = {.argv = argv};
    _cleanup_buf_ struct buf out = {0};
    struct sp_error err = {0};
    buf_init(&out, 4096);
    if (access(s->qemu, X_OK) < 0) {
        say(f, VERDICT_MISSING, "no %s: install the package qemu-system-x86", s->qemu);
        return;
    }
    if (spawn_run(&opt, NULL, 0, deadline_in_ms(10000), &out, NULL, &err) < 0) {
        say(f, VERDICT_MISSING, "%s does not start: %s", s->qemu, err.text);
        return;
    }
    out.data[strcspn(out.data, "\n")] = '\0';
    unsigned major = 0;
    const char *v = strstr(out.data, "version ");
    if (v)
        major = (unsigned)strtoul(v + strlen("version "), NULL, 10);
    if (major < 7)
        say(f, VERDICT_MISSING, "%.100s: version 7.2 or newer is needed", out.data);
    else
        say(f, VERDICT_OK, "%.100s", out.data);
}

static void check_kernel(const struct settings *s, struct finding *f) {
    char lean[SETTINGS_PATH_MAX + 32], stock[SETTINGS_PATH_MAX + 32];
    (void)text_printf(lean, sizeof lean, "%s/lean/vmlinux", s->kernel_dir);
    (void)text_printf(stock, sizeof stock, "%s/stock/vmlinuz", s->kernel_dir);
    bool has_lean = access(lean, R_OK) == 0, has_stock = access(stock, R_OK) == 0;
    if (!has_lean && !has_stock)
        say(f, VERDICT_MISSING, "no guest kernel in %.120s: run `./do kernel stock`", s->kernel_dir);
    else
        say(f, VERDICT_OK, "guest kernels:%s%s; setting kernel = %s", has_lean ? " lean" : "",
            has_stock ? " stock" : "", s->kernel);
}

static void check_store(const struct settings *s, struct finding *f) {
    char store[SETTINGS_PATH_MAX + 16];
    (void)text_printf(store, sizeof store, "%s/store", s->state_dir);
    _cleanup_close_ int dir = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0 && geteuid() == 0 && reflink_is_supported(dir))
        say(f, VERDICT_OK, "%s shares file extents (reflink)", store);
    else if (access("/usr/sbin/mkfs.btrfs", X_OK) < 0 && access("/sbin/mkfs.btrfs", X_OK) < 0)
        say(f, VERDICT_MISSING, "the store cannot share file extents and there is no mkfs.btrfs: install btrfs-progs");
    else
        say(f, VERDICT_NOTE, "`space up` mounts a btrfs image of up to %llu MiB (sparse) at %s",
            (unsigned long long)s->store_size_mib, store);
}

static void check_loop(const struct settings *s, struct finding *f) {
    (void)s;
    if (access("/dev/loop-control", R_OK | W_OK) == 0)
        say(f, VERDICT_OK, "loop devices can be made");
    else
        say(f, VERDICT_MISSING,
            "/dev/loop-control cannot be opened: without it there is no store image and no tar or OCI build");
}

static void check_tun(const struct settings *s, struct finding *f) {
    (void)s;
    if (access("/dev/net/tun", R_OK | W_OK) == 0)
        say(f, VERDICT_OK, "/dev/net/tun works");
    else
        say(f, VERDICT_MISSING, "/dev/net/tun cannot be opened: a sandbox's network card is a tap (modprobe tun)");
}

static void check_cgroup(const struct settings *s, struct finding *f) {
    (void)s;
    _cleanup_free_ char *controllers = NULL;
    size_t len;
    if (file_read(AT_FDCWD, "/sys/fs/cgroup/cgroup.controllers", 4096, &controllers, &len, NULL) == 0) {
        controllers[strcspn(controllers, "\n")] = '\0';
        if (strstr(controllers, "memory") && strstr(controllers, "pids") && strstr(controllers, "cpu"))
            say(f, VERDICT_OK, "cgroup v2 with %.120s", controllers);
        else
            say(f, VERDICT_MISSING, "cgroup v2 lacks one of cpu, memory, pids (it has: %.120s)", controllers);
        return;
    }
    bool all = access("/sys/fs/cgroup/memory/cgroup.procs", F_OK) == 0 &&
               access("/sys/fs/cgroup/pids/cgroup.procs", F_OK) == 0 &&
               access("/sys/fs/cgroup/cpu/cgroup.procs", F_OK) == 0;
    if (all)
        say(f, VERDICT_OK, "cgroup v1 with cpu, memory and pids");
    else
        say(f, VERDICT_MISSING, "no cgroups with cpu, memory and pids under /sys/fs/cgroup");
}

static void check_memory(const struct settings *s, struct finding *f) {
    struct sysinfo si;
    if (sysinfo(&si) < 0)
        return;
    uint64_t mib = (uint64_t)si.totalram * si.mem_unit >> 20;
    if (mib < s->memory_reserve_mib + 512)
        say(f, VERDICT_MISSING, "%llu MiB of memory; %llu are reserved for the host, so no sandbox fits",
            (unsigned long long)mib, (unsigned long long)s->memory_reserve_mib);
    else
        say(f, VERDICT_OK, "%llu MiB of memory, %llu kept for the host", (unsigned long long)mib,
            (unsigned long long)s->memory_reserve_mib);
}

static void check_disk(const struct settings *s, struct finding *f) {
    struct statvfs v;
    if (statvfs(s->state_dir, &v) < 0 && statvfs("/", &v) < 0)
        return;
    uint64_t mib = (uint64_t)v.f_bavail * v.f_frsize >> 20;
    say(f, mib < s->disk_reserve_mib + 4096 ? VERDICT_MISSING : VERDICT_OK, "%llu MiB free for %s, %llu kept free",
        (unsigned long long)mib, s->state_dir, (unsigned long long)s->disk_reserve_mib);
}

static void check_database(const struct settings *s, struct finding *f) {
    struct sp_error err = {0};
    struct database db;
    if (s->database_url[0])
        say(f, VERDICT_OK, "a PostgreSQL server is named in database_url");
    else if (database_locate(&db, &err) < 0)
        say(f, VERDICT_MISSING, "%s", err.text);
    else
        say(f, VERDICT_OK, "PostgreSQL in %s", db.bin_dir);
}

static void check_files(const struct settings *s, struct finding *f) {
    struct rlimit r;
    (void)s;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return;
    say(f, r.rlim_max < 4096 ? VERDICT_NOTE : VERDICT_OK, "up to %llu open files a process",
        (unsigned long long)r.rlim_max);
}

static void check_running(const struct settings *s, struct finding *f) {
    _cleanup_http_result_ struct http_result res = {0};
    char origin[96];
    if (!text_printf(origin, sizeof origin, "http://%s", s->control_listen))
        return;
    struct http_request req = {.origin = origin, .target = "/readyz", .timeout_ms = 2000, .connect_timeout_ms = 500};
    if (http_client_call_sync(&req, &res, NULL) < 0)
        say(f, VERDICT_NOTE, "not running here (nothing answers on %s)", s->control_listen);
    else if (res.status == 200)
        say(f, VERDICT_OK, "running, API on http://%s", s->control_listen);
    else
        say(f, VERDICT_MISSING, "the API on %s says it is not ready (%d); see the logs in %s/log", s->control_listen,
            res.status, s->state_dir);
}

static const struct {
    const char *name;
    void (*check)(const struct settings *s, struct finding *f);
} checks[] = {
    {"user", check_root},      {"kvm", check_kvm},   {"qemu", check_qemu},         {"kernel", check_kernel},
    {"store", check_store},    {"loop", check_loop}, {"tap", check_tun},           {"cgroup", check_cgroup},
    {"memory", check_memory},  {"disk", check_disk}, {"database", check_database}, {"files", check_files},
    {"system", check_running},
};

int cmd_doctor(const struct command_args *in, int *ret_status, struct sp_error *err) {
    unsigned missing = 0;
    int r = command_expect(in, 0, 0, "no words", err);
    if (r < 0)
        return r;
    json_t *all = json_array();
    for (size_t i = 0; i < ARRAY_SIZE(checks); i++) {
        struct finding f = {.text = "could not be looked at"};
        checks[i].check(in->settings, &f);
        missing += f.verdict == VERDICT_MISSING;
        json_array_append_new(all, json_pack("{s:s,s:s,s:s}", "check", checks[i].name, "verdict",
                                             verdict_names[f.verdict], "text", f.text));
        if (output_format() == OUTPUT_TABLE)
            (void)printf("%-8s %-9s %s\n", verdict_names[f.verdict], checks[i].name, f.text);
    }
    if (output_format() == OUTPUT_JSON)
        output_list(all, NULL, 0);
    else
        (void)printf("\n%s\n",
                     missing ? "What is MISSING keeps sandboxes from starting here." : "Sandboxes can run here.");
    json_decref(all);
    *ret_status = missing ? 1 : 0;
    return 0;
}
