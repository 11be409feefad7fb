/* SPDX-License-Identifier: Apache-2.0 */
/* One poll loop over pidfds and a signalfd; see supervisor.h. */
#include "cli/up/supervisor.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/up/layout.h"
#include "host/process.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#define BACKOFF_FIRST_MS 200
#define BACKOFF_MAX_MS 3000
#define STABLE_MS 30000 /* after so long a run the pause starts over */
#define STOP_TIMEOUT_MS 60000

enum service_state { SERVICE_WAITING, SERVICE_RUNNING, SERVICE_STOPPED };

struct supervised {
    const struct service *sv;
    enum service_state state;
    struct child child;      /* RUNNING */
    uint64_t started_ns;     /* RUNNING */
    struct deadline restart; /* WAITING */
    uint64_t backoff_ms;
};

static void set_running(struct supervised *x, struct child c) {
    x->state = SERVICE_RUNNING;
    x->child = c;
    x->started_ns = clock_monotonic_ns();
}

static void set_waiting(struct supervised *x) {
    uint64_t ran_ms = x->state == SERVICE_RUNNING ? (clock_monotonic_ns() - x->started_ns) / NSEC_PER_MSEC : 0;
    x->child.pidfd = close_fd(x->child.pidfd);
    x->child.pid = 0;
    x->backoff_ms = x->backoff_ms == 0 || ran_ms > STABLE_MS ? BACKOFF_FIRST_MS
                    : x->backoff_ms * 2 < BACKOFF_MAX_MS     ? x->backoff_ms * 2
                                                             : BACKOFF_MAX_MS;
    x->restart = deadline_in_ms(x->backoff_ms);
    x->state = SERVICE_WAITING;
}

static void start(struct supervised *x) {
    struct sp_error err = {0};
    struct child c = CHILD_NONE;
    int r = service_start(x->sv, &c, &err);
    if (r < 0) {
        log_error(LOG_L_ERROR, "service_start_failed", &err, "service", x->sv->name, NULL);
        set_waiting(x);
        return;
    }
    char pid[24];
    (void)text_printf(pid, sizeof pid, "%d", (int)c.pid);
    log_event(LOG_L_INFO, "service_started", "service", x->sv->name, "pid", pid, NULL);
    set_running(x, c);
}

static void adopt_or_start(struct supervised *x) {
    struct child c = CHILD_NONE;
    struct sp_error err = {0};
    if (service_find(x->sv, &c, &err) > 0) {
        log_event(LOG_L_INFO, "service_adopted", "service", x->sv->name, NULL);
        set_running(x, c);
        return;
    }
    start(x);
}

/* Ended: our own child is reaped, an adopted one belongs to init. */
static void ended(struct supervised *x) {
    int status = 0;
    char text[64] = "ended";
    if (waitpid(x->child.pid, &status, WNOHANG) == x->child.pid)
        (void)spawn_status_text(text, status);
    set_waiting(x);
    char pause[24];
    (void)text_printf(pause, sizeof pause, "%llu", (unsigned long long)x->backoff_ms);
    log_event(LOG_L_WARN, "service_ended", "service", x->sv->name, "how", text, "restart_in_ms", pause, NULL);
}

static int next_timeout(const struct supervised *all, size_t n) {
    int best = -1;
    for (size_t i = 0; i < n; i++) {
        if (all[i].state != SERVICE_WAITING)
            continue;
        int ms = deadline_poll_ms(all[i].restart);
        best = best < 0 || ms < best ? ms : best;
    }
    return best;
}

/* Returns once a stop was asked for. */
static void supervise(struct supervised *all, size_t n, int signals) {
    for (;;) {
        struct pollfd fds[SERVICES_MAX + 1];
        for (size_t i = 0; i < n; i++)
            fds[i] = (struct pollfd){.fd = all[i].state == SERVICE_RUNNING ? all[i].child.pidfd : -1, .events = POLLIN};
        fds[n] = (struct pollfd){.fd = signals, .events = POLLIN};
        if (poll(fds, n + 1, next_timeout(all, n)) < 0 && errno != EINTR)
            return;
        if (fds[n].revents)
            return;
        for (size_t i = 0; i < n; i++) {
            if (all[i].state == SERVICE_RUNNING && fds[i].revents)
                ended(&all[i]);
            else if (all[i].state == SERVICE_WAITING && deadline_passed(all[i].restart))
                start(&all[i]);
        }
    }
}

static void wait_gone(const struct child *c, uint64_t ms) {
    struct pollfd p = {.fd = c->pidfd, .events = POLLIN};
    struct deadline d = deadline_in_ms(ms);
    while (poll(&p, 1, deadline_poll_ms(d)) < 0 && errno == EINTR)
        continue;
    (void)waitpid(c->pid, NULL, WNOHANG);
}

static void stop_one(const struct service *sv, struct child *c) {
    struct sp_error ignored;
    struct pollfd p = {.fd = c->pidfd, .events = POLLIN};
    (void)spawn_kill(c, sv->stop_signal, &ignored);
    wait_gone(c, sv->stop_grace_ms);
    if (poll(&p, 1, 0) == 0) {
        log_event(LOG_L_WARN, "service_stop_forced", "service", sv->name, NULL);
        (void)spawn_kill(c, SIGKILL, &ignored);
        wait_gone(c, 5000);
    }
    c->pidfd = close_fd(c->pidfd);
    (void)unlink(sv->pid_file);
}

static int take_lock(const struct settings *s, bool wait, int *ret_fd, struct sp_error *err) {
    char path[512];
    int r = layout_path(s, "run/supervisor.lock", path, sizeof path, err);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return sp_error_errno(err, errno, "open", "%s", path);
    if (flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB)) < 0)
        return errno == EWOULDBLOCK ? sp_error_set(err, SP_E_CONFLICT, "the supervisor is running already")
                                    : sp_error_errno(err, errno, "flock", "%s", path);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int write_own_pid(const struct settings *s, struct sp_error *err) {
    char path[512], text[64];
    struct process_ref self;
    int r = layout_path(s, "run/supervisor.pid", path, sizeof path, err);
    if (r < 0 || (r = process_ref_get(getpid(), &self, err)) < 0)
        return r;
    if (!text_printf(text, sizeof text, "%d %llu\n", (int)self.pid, (unsigned long long)self.start_time))
        return sp_error_set(err, SP_E_INTERNAL, "pid file too long");
    return file_replace(AT_FDCWD, path, text, strlen(text), 0644, err);
}

int supervisor_run(const struct settings *s, const struct service *services, size_t n, struct sp_error *err) {
    struct supervised all[SERVICES_MAX] = {0};
    sigset_t mask;
    _cleanup_close_ int lock = -1;
    int r = take_lock(s, false, &lock, err);
    if (r < 0 || (r = write_own_pid(s, err)) < 0)
        return r;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    _cleanup_close_ int signals = signalfd(-1, &mask, SFD_CLOEXEC);
    if (signals < 0)
        return sp_error_errno(err, errno, "signalfd", "supervisor");
    for (size_t i = 0; i < n; i++) {
        all[i].sv = &services[i];
        all[i].child = CHILD_NONE;
        adopt_or_start(&all[i]);
    }
    supervise(all, n, signals);
    for (size_t i = n; i-- > 0;) {
        if (all[i].state == SERVICE_RUNNING)
            stop_one(all[i].sv, &all[i].child);
        all[i].state = SERVICE_STOPPED;
    }
    log_event(LOG_L_INFO, "supervisor_stopped", NULL);
    return 0;
}

/* The detached process: own session, its log as stderr. */
_Noreturn static void supervisor_main(const struct settings *s, const struct service *services, size_t n) {
    struct sp_error err = {0};
    char log[512];
    enum log_level level = LOG_L_INFO;
    (void)setsid();
    if (chdir("/") == 0 && layout_path(s, "log/supervisor.log", log, sizeof log, &err) == 0) {
        int fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644),
            null = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd >= 0 && null >= 0) {
            (void)dup2(null, STDIN_FILENO);
            (void)dup2(fd, STDOUT_FILENO);
            (void)dup2(fd, STDERR_FILENO);
        }
    }
    /* Nothing of the caller's may stay open: a pipe it reads to the end would never end. */
    (void)close_range(3, ~0u, 0);
    log_level_from_name(s->log_level, &level);
    log_init("space-supervisor", level);
    int r = supervisor_run(s, services, n, &err);
    if (r < 0)
        log_error(LOG_L_ERROR, "supervisor_failed", &err, NULL);
    _exit(r < 0 ? 1 : 0);
}

int supervisor_spawn(const struct settings *s, const struct service *services, size_t n, bool *ret_started,
                     struct sp_error *err) {
    int lock = -1;
    struct sp_error busy = {0};
    int r = take_lock(s, false, &lock, &busy);
    if (r < 0) {
        *ret_started = false;
        return busy.code == SP_E_CONFLICT ? 0 : sp_error_set(err, busy.code, "%s", busy.text);
    }
    close(lock);
    pid_t pid = fork();
    if (pid < 0)
        return sp_error_errno(err, errno, "fork", "supervisor");
    if (pid == 0)
        supervisor_main(s, services, n);
    *ret_started = true;
    return 0;
}

int supervisor_stop(const struct settings *s, const struct service *services, size_t n, struct sp_error *err) {
    struct service self = {.name = "supervisor", .stop_signal = SIGTERM, .stop_grace_ms = STOP_TIMEOUT_MS};
    struct child c = CHILD_NONE;
    int r = layout_path(s, "run/supervisor.pid", self.pid_file, sizeof self.pid_file, err);
    if (r < 0 || (r = service_find(&self, &c, err)) < 0)
        return r;
    if (r > 0)
        stop_one(&self, &c);
    for (size_t i = n; i-- > 0;) {
        if ((r = service_find(&services[i], &c, err)) < 0)
            return r;
        if (r > 0)
            stop_one(&services[i], &c);
    }
    return 0;
}
