/* SPDX-License-Identifier: Apache-2.0 */
/* Forked jobs: a bounded number at once, the rest in a bounded queue, each with a deadline and a pipe for its result. */
#include "broker/job.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/reactor.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define JOBS_RUNNING_MAX 8
#define JOBS_QUEUE_MAX 1024 /* the server lets fewer requests in than that; sweeps add the rest */
#define RESULT_MAX 32768    /* less than a pipe holds, so a job never waits for the broker to read */

struct job {
    struct job_spec spec;
    struct jobs *jobs;
    struct job *next;
    pid_t pid;
    int pidfd, result_fd;
    bool reaped;
    int status;
    bool timed_out;
    struct deadline deadline;
    struct watch watch;
};

struct jobs {
    int reactor;
    struct job *running;
    struct job *waiting, **waiting_end;
    unsigned n_running, n_waiting;
};

struct jobs *jobs_new(int reactor) {
    struct jobs *jobs = calloc(1, sizeof(*jobs));
    if (!jobs)
        abort();
    jobs->reactor = reactor;
    jobs->waiting_end = &jobs->waiting;
    return jobs;
}

static void job_free(struct job *job) {
    if (job->pidfd >= 0)
        reactor_remove(job->jobs->reactor, &job->watch);
    (void)close_fd(job->pidfd);
    (void)close_fd(job->result_fd);
    free(job);
}

struct jobs *jobs_free(struct jobs *jobs) {
    struct job *next;
    if (!jobs)
        return NULL;
    for (struct job *job = jobs->running; job; job = next) {
        next = job->next;
        if (!job->reaped) {
            (void)kill(job->pid, SIGKILL);
            (void)waitpid(job->pid, NULL, 0);
        }
        job_free(job);
    }
    for (struct job *job = jobs->waiting; job; job = next) {
        next = job->next;
        job_free(job);
    }
    free(jobs);
    return NULL;
}

/* --- the child ----------------------------------------------------------------------------------------------------- */

static _Noreturn void run_child(const struct job *job, int out, pid_t broker) {
    struct sp_error err = {0};
    json_t *result = NULL, *reply;
    char *text;
    sigset_t none;
    int r;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != broker)
        _exit(1); /* it died in between */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    r = job->spec.work(job->spec.arg, &result, &err);
    if (r < 0)
        reply = json_pack("{s:b, s:o}", "ok", false, "error", sp_error_encode(&err));
    else
        reply = json_pack("{s:b, s:o}", "ok", true, "result", result ? result : json_object());
    if (!reply)
        _exit(1);
    text = json_print(reply);
    if (strlen(text) > RESULT_MAX || fd_write_all(out, text, strlen(text), NULL) < 0)
        _exit(1);
    _exit(0);
}

/* --- the broker's side ------------------------------------------------------------------------------------------------ */

static void unlink_running(struct job *job) {
    struct job **at = &job->jobs->running;
    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    job->jobs->n_running--;
}

static int read_reply(struct job *job, json_t **ret, struct sp_error *err) {
    char text[RESULT_MAX + 1];
    size_t len = 0;
    ssize_t n;

    while ((n = read(job->result_fd, text + len, sizeof(text) - len)) > 0)
        len += (size_t)n;
    if (job->timed_out)
        return sp_error_set(err, SP_E_TIMEOUT, "%s took too long and was ended", job->spec.name);
    if (len == 0 || len > RESULT_MAX || json_parse(text, len, RESULT_MAX, ret, NULL) < 0)
        return sp_error_set(err, SP_E_INTERNAL, "%s ended without a result (wait status %d)", job->spec.name,
                            job->status);
    return 0;
}

static void start_waiting(struct jobs *jobs);

static void finish(struct job *job) {
    struct job_spec spec = job->spec;
    struct jobs *jobs = job->jobs;
    _cleanup_json_ json_t *reply = NULL;
    struct sp_error err = {0};
    int r;

    if (!job->reaped)
        (void)waitpid(job->pid, &job->status, 0);
    r = read_reply(job, &reply, &err);
    unlink_running(job);
    job_free(job);
    if (r == 0 && !json_is_true(json_object_get(reply, "ok"))) {
        struct sp_error sent = {0};
        r = sp_error_decode(json_object_get(reply, "error"), &sent, &err) < 0 ? -(int)SP_E_INTERNAL : -(int)sent.code;
        if (sent.code != SP_OK)
            err = sent;
    }
    start_waiting(jobs);
    spec.done(spec.arg, r < 0 ? NULL : json_object_get(reply, "result"), r < 0 ? &err : NULL);
}

static void on_exit_event(void *ctx, uint32_t events) {
    (void)events;
    finish(ctx);
}

static int launch(struct job *job, struct sp_error *err) {
    const pid_t broker = getpid();
    int result[2];

    if (pipe2(result, O_CLOEXEC | O_NONBLOCK) < 0)
        return sp_error_errno(err, errno, "pipe", "%s", job->spec.name);
    job->pid = fork();
    if (job->pid == 0) {
        (void)close(result[0]);
        run_child(job, result[1], broker);
    }
    (void)close(result[1]);
    job->result_fd = result[0];
    if (job->pid < 0)
        return sp_error_errno(err, errno, "fork", "%s", job->spec.name);
    job->pidfd = pidfd_open(job->pid, 0);
    job->watch = (struct watch){.fd = job->pidfd, .on_event = on_exit_event, .ctx = job};
    if (job->pidfd < 0 || reactor_add(job->jobs->reactor, &job->watch, EPOLLIN, err) < 0) {
        int e = errno;
        (void)kill(job->pid, SIGKILL);
        (void)waitpid(job->pid, NULL, 0);
        job->pidfd = close_fd(job->pidfd);
        return sp_error_errno(err, e, "pidfd_open", "%s", job->spec.name);
    }
    job->deadline = deadline_in_ms(job->spec.timeout_ms);
    job->next = job->jobs->running;
    job->jobs->running = job;
    job->jobs->n_running++;
    return 0;
}

static void start_waiting(struct jobs *jobs) {
    while (jobs->waiting && jobs->n_running < JOBS_RUNNING_MAX) {
        struct job *job = jobs->waiting;
        struct job_spec spec = job->spec;
        struct sp_error err = {0};

        jobs->waiting = job->next;
        if (!jobs->waiting)
            jobs->waiting_end = &jobs->waiting;
        jobs->n_waiting--;
        if (launch(job, &err) < 0) {
            job_free(job);
            spec.done(spec.arg, NULL, &err);
        }
    }
}

int jobs_add(struct jobs *jobs, const struct job_spec *spec, struct sp_error *err) {
    struct job *job;
    int r;

    if (jobs->n_waiting >= JOBS_QUEUE_MAX)
        return sp_error_set(err, SP_E_UNAVAILABLE, "the broker has too much to do");
    job = calloc(1, sizeof(*job));
    if (!job)
        abort();
    *job = (struct job){.spec = *spec, .jobs = jobs, .pidfd = -1, .result_fd = -1};
    if (jobs->n_running < JOBS_RUNNING_MAX) {
        r = launch(job, err);
        if (r < 0)
            job_free(job);
        return r;
    }
    *jobs->waiting_end = job;
    jobs->waiting_end = &job->next;
    jobs->n_waiting++;
    return 0;
}

void jobs_hurry(struct jobs *jobs, const void *arg, uint64_t ms) {
    struct deadline soon = deadline_in_ms(ms);

    for (struct job *job = jobs->running; job; job = job->next)
        if (job->spec.arg == arg && soon.at_ns < job->deadline.at_ns)
            job->deadline = soon;
    for (struct job **at = &jobs->waiting; *at; at = &(*at)->next) {
        struct job *job = *at;
        struct job_spec spec = job->spec;
        struct sp_error err;

        if (spec.arg != arg)
            continue;
        *at = job->next;
        if (!*at)
            jobs->waiting_end = at;
        jobs->n_waiting--;
        job_free(job);
        (void)sp_error_set(&err, SP_E_CONFLICT, "%s was not begun any more", spec.name);
        spec.done(spec.arg, NULL, &err);
        return;
    }
}

bool jobs_note_exit(struct jobs *jobs, pid_t pid, int status) {
    for (struct job *job = jobs->running; job; job = job->next)
        if (job->pid == pid && !job->reaped) {
            job->reaped = true;
            job->status = status;
            return true; /* its pidfd is readable and finishes it */
        }
    return false;
}

uint64_t jobs_check_deadlines(struct jobs *jobs) {
    uint64_t next = 60000;
    for (struct job *job = jobs->running; job; job = job->next) {
        uint64_t left = (uint64_t)deadline_poll_ms(job->deadline);
        if (left == 0 && !job->timed_out) {
            job->timed_out = true;
            (void)pidfd_send_signal(job->pidfd, SIGKILL, NULL, 0);
            log_event(LOG_L_ERROR, "job_timed_out", "job", job->spec.name, NULL);
        }
        if (!job->timed_out && left < next)
            next = left;
    }
    return next;
}

unsigned jobs_running(const struct jobs *jobs) {
    return jobs->n_running + jobs->n_waiting;
}
