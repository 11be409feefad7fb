/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space-broker: the only root process of a node. Makes the host ready (directories, store, control group), listens, runs
 * the poll loop until SIGTERM or SIGINT. VMs go on without it and are found again by the next one.
 */
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/broker.h"
#include "broker/engine_ops.h"
#include "broker/fault.h"
#include "broker/release.h"
#include "broker/snapshot.h"
#include "broker/store_ops.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LOCK_NAME "broker.lock"
#define LOCK_TIMEOUT_MS 5000
#define STOP_TIMEOUT_MS 10000 /* for jobs that run when the broker is told to end */

static const char usage[] =
    "space-broker [--unmount | --release] [--space-vm PROGRAM] [--preload FILE] [--enable-faults] [settings]\n\n"
    "The privileged helper of a node: makes, jails and removes VMs for the node that talks to run/broker.sock.\n"
    "  --unmount        unmount the store, release its loop device and leave; refused while VMs run\n"
    "  --release        remove every VM first, then the same\n"
    "  --space-vm       program to run in the jail of each VM (default: beside this program, or in libexec)\n"
    "  --preload        file the VMM finds as preload.so (default: the same)\n"
    "  --enable-faults  obey SPACE_FAULT, for tests";

struct options {
    bool unmount, release, enable_faults;
    struct layout_programs programs;
    char **argv; /* what is left for the settings */
    int argc;
};

/* Takes the options that are no settings out of argv. */
static int parse_options(struct options *o, int argc, char **argv, struct sp_error *err) {
    *o = (struct options){.argv = calloc((size_t)argc + 1, sizeof(char *))};
    if (!o->argv)
        abort();
    for (int i = 0; i < argc; i++) {
        const char **value = NULL;
        if (strcmp(argv[i], "--unmount") == 0)
            o->unmount = true;
        else if (strcmp(argv[i], "--release") == 0)
            o->unmount = o->release = true;
        else if (strcmp(argv[i], "--enable-faults") == 0)
            o->enable_faults = true;
        else if (strcmp(argv[i], "--space-vm") == 0)
            value = &o->programs.vm;
        else if (strcmp(argv[i], "--preload") == 0)
            value = &o->programs.preload;
        else
            o->argv[o->argc++] = argv[i];
        if (value && i + 1 >= argc)
            return sp_error_set(err, SP_E_INVALID, "%s needs a value", argv[i]);
        if (value)
            *value = argv[++i];
    }
    return 0;
}

/* Held for life, and by every job until it is dead: two brokers never work on one state directory. */
static int take_lock(const struct broker *b, int *ret_fd, struct sp_error *err) {
    _cleanup_close_ int fd = openat(b->layout.run, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    struct deadline deadline = deadline_in_ms(LOCK_TIMEOUT_MS);

    if (fd < 0)
        return sp_error_errno(err, errno, "open", LOCK_NAME);
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return sp_error_errno(err, errno, "flock", LOCK_NAME);
        if (deadline_passed(deadline))
            return sp_error_set(err, SP_E_CONFLICT, "another broker works on this state directory");
        (void)usleep(10000);
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int open_cgroups(struct broker *b, struct sp_error *err) {
    char parent[32];
    int r;

    /* The uids are this installation's alone, so their first one names its group. */
    (void)text_printf(parent, sizeof(parent), "space-%llu", (unsigned long long)b->settings.uid_base);
    r = cgroup_root_open(parent, &b->cgroups, err);
    if (r == 0)
        r = cgroup_root_claim(b->cgroups, b->settings.state_dir, err);
    if (r == 0 && *cgroup_missing_controllers(b->cgroups))
        log_event(LOG_L_WARN, "cgroup_controllers_missing", "controllers", cgroup_missing_controllers(b->cgroups),
                  NULL);
    return r;
}

/* OpenSSL sets itself up at the first hash, which takes 10 ms: here once, instead of in every job. */
static void warm_up(void) {
    uint8_t digest[SHA256_SIZE];
    sha256_memory("", 0, digest);
}

static bool probe_kvm(void) {
    _cleanup_close_ int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    return fd >= 0;
}

/* --- signals ------------------------------------------------------------------------------------------------------- */

struct signals {
    struct broker *broker;
    struct watch watch;
    bool stop;
};

/* Jobs, and whatever a job or a jail left behind: this process is the subreaper of all of them. */
static void reap(struct broker *b) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        (void)jobs_note_exit(b->jobs, pid, status);
}

static void on_signal(void *ctx, uint32_t events) {
    struct signals *s = ctx;
    struct signalfd_siginfo info;

    (void)events;
    if (read(s->watch.fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGCHLD)
        reap(s->broker);
    else
        s->stop = true;
}

static int open_signals(struct signals *s, struct broker *b, struct sp_error *err) {
    sigset_t set;

    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return sp_error_errno(err, errno, "sigprocmask", "signals");
    *s = (struct signals){.broker = b};
    s->watch = (struct watch){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .on_event = on_signal, .ctx = s};
    if (s->watch.fd < 0)
        return sp_error_errno(err, errno, "signalfd", "signals");
    return reactor_add(b->reactor, &s->watch, EPOLLIN, err);
}

/* --- life ---------------------------------------------------------------------------------------------------------- */

static int open_host(struct broker *b, const struct options *o, int *ret_lock, struct sp_error *err) {
    static const char *const kinds[] = {
        [STORE_FS_NATIVE] = "native", [STORE_FS_MOUNTED] = "already_mounted", [STORE_FS_ATTACHED] = "mounted"};
    enum store_fs_kind kind = STORE_FS_NATIVE;
    int r;

    layout_name(&b->layout, &b->settings);
    r = layout_open_run(&b->layout, &b->settings, err);
    if (r == 0)
        r = take_lock(b, ret_lock, err);
    if (r == 0)
        r = layout_open(&b->layout, &b->settings, &o->programs, &kind, err);
    if (r < 0)
        return r;
    log_event(LOG_L_INFO, "store_ready", "store", b->layout.store_path, "file_system", kinds[kind], NULL);
    r = open_cgroups(b, err);
    if (r == 0)
        r = jail_filter_build(&b->filter, err);
    if (r == 0)
        r = process_boot_id(b->boot_id, err);
    b->has_kvm = probe_kvm();
    warm_up();
    engine_ops_discover(b);
    return r;
}

static int open_broker(struct broker *b, struct signals *signals, struct sp_error *err) {
    const struct server_handler handler = {.on_request = broker_on_request, .ctx = b};
    struct vm_table_load load = {.broker = b, .layout = &b->layout, .boot_id = b->boot_id};
    int r;

    b->reactor = load.reactor = reactor_open(err);
    if (b->reactor < 0)
        return b->reactor;
    b->jobs = jobs_new(b->reactor);
    r = open_signals(signals, b, err);
    if (r == 0)
        r = vm_table_load(&b->vms, &load, err);
    /* No job is left of an earlier broker, so nothing half-made is being worked on. */
    if (r == 0)
        r = snapshot_remove_temps(&b->layout, NULL, err);
    if (r == 0)
        r = engine_remove_temps(&b->layout, err);
    if (r == 0)
        r = server_open(b->reactor, b->layout.run_path, (uid_t)(b->settings.uid_base + SETTINGS_UID_NODE), &handler,
                        &b->server, err);
    if (r == 0)
        store_ops_check_all(b);
    return r;
}

/* After the signal the socket is gone, but what was begun is brought to an end. */
static int serve(struct broker *b, struct signals *signals, struct sp_error *err) {
    struct deadline stop_at = {0};
    int r = 0;

    while (r == 0) {
        uint64_t wait_ms = jobs_check_deadlines(b->jobs);
        if (signals->stop && !stop_at.at_ns)
            stop_at = deadline_in_ms(STOP_TIMEOUT_MS);
        if (signals->stop && (!jobs_running(b->jobs) || deadline_passed(stop_at)))
            return 0;
        r = reactor_turn(b->reactor, deadline_in_ms(signals->stop && wait_ms > 100 ? 100 : wait_ms), err);
    }
    return r;
}

static void close_broker(struct broker *b) {
    b->jobs = jobs_free(b->jobs);
    b->server = server_free(b->server);
    store_ops_free(b);
    engine_ops_free(b);
    vm_table_clear(&b->vms);
    if (b->cgroups)
        cgroup_root_remove(b->cgroups); /* does nothing while VMs are in it */
    b->cgroups = cgroup_root_free(b->cgroups);
    layout_close(&b->layout);
    b->reactor = close_fd(b->reactor);
}

static int run_broker(struct broker *b, const struct options *o, struct sp_error *err) {
    struct signals signals = {.watch.fd = -1};
    _cleanup_close_ int lock = -1;
    int r = open_host(b, o, &lock, err);

    if (r == 0)
        r = open_broker(b, &signals, err);
    if (r == 0) {
        log_event(LOG_L_INFO, "ready", "cgroup", cgroup_root_version(b->cgroups), NULL);
        r = serve(b, &signals, err);
    }
    close_broker(b);
    (void)close_fd(signals.watch.fd);
    return r;
}

struct alive_check {
    struct cgroup_root *cgroups;
    struct sp_error *err;
};

static int refuse_if_alive(void *ctx, const char *id) {
    struct alive_check *check = ctx;
    bool empty = false;
    int r = cgroup_is_empty(check->cgroups, id, &empty, check->err);
    return r < 0 || empty ? r : sp_error_set(check->err, SP_E_CONFLICT, "%s is still running", id);
}

/* Refused while a VM is alive, even though the kernel would allow it: the jails have mounts of their own. */
static int unmount_store(struct broker *b, const struct options *o, struct sp_error *err) {
    struct store_fs fs;
    enum store_fs_kind kind;
    _cleanup_close_ int lock = -1;
    int r;

    layout_name(&b->layout, &b->settings);
    fs = layout_store_fs(&b->layout, &b->settings);
    r = layout_open_run(&b->layout, &b->settings, err);
    if (r == 0)
        r = take_lock(b, &lock, err);
    if (r == 0)
        r = open_cgroups(b, err);
    if (r == 0 && o->release) {
        r = layout_open(&b->layout, &b->settings, &o->programs, &kind, err);
        if (r == 0)
            r = release_all(&b->layout, b->cgroups, err);
        layout_close(&b->layout); /* its descriptors hold the store */
    }
    if (r == 0)
        r = cgroup_list(b->cgroups, refuse_if_alive, &(struct alive_check){b->cgroups, err}, err);
    if (r == 0)
        r = store_fs_unmount(&fs, err);
    close_broker(b);
    return r;
}

static int run(int argc, char **argv, struct sp_error *err) {
    static struct broker broker = {.reactor = -1};
    struct options options;
    const char *fault = getenv("SPACE_FAULT");
    enum log_level level = LOG_L_INFO;
    int next, r;

    layout_init(&broker.layout);
    r = parse_options(&options, argc, argv, err);
    if (r == 0)
        r = settings_load(&broker.settings, options.argc, options.argv, usage, &next, err);
    if (r == 0 && next < options.argc)
        r = sp_error_set(err, SP_E_INVALID, "unexpected argument %s", options.argv[next]);
    if (r == 0 && geteuid() != 0)
        r = sp_error_set(err, SP_E_FORBIDDEN, "space-broker must run as root");
    if (r == 0 && options.enable_faults && fault)
        r = fault_setup(fault, err);
    if (r == 0) {
        (void)log_level_from_name(broker.settings.log_level, &level);
        log_set_level(level);
        broker.test_mode = options.enable_faults;
        (void)umask(0077);
        r = options.unmount ? unmount_store(&broker, &options, err) : run_broker(&broker, &options, err);
    }
    free(options.argv);
    return r;
}

int main(int argc, char **argv) {
    struct sp_error err = {0};

    log_init("space-broker", LOG_L_INFO);
    if (run(argc, argv, &err) < 0) {
        log_error(LOG_L_ERROR, "failed", &err, NULL);
        return sp_code_exit_status(err.code);
    }
    return 0;
}
