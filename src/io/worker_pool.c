/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker threads: one locked queue in, one locked list of finished jobs out, which a single post to the loop empties.
 * Who rested last is woken first: its context (a database connection and the server process behind it) is the one whose
 * memory is still warm, and a service with little to do works on one connection instead of going round all of them.
 * The pool counts jobs from submit to done(), so that free() can tell when all were reported.
 */
#include "io/worker_pool.h"
#include "base/text.h"
#include "io/loop_internal.h"
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define THREADS_MAX 64

struct job_list {
    struct worker_job *first, **last;
    unsigned n;
};

struct worker {
    struct worker_pool *pool;
    pthread_t thread;
    unsigned index;
    pthread_cond_t wake; /* a job came, or stopping */
    struct worker *below;
    bool is_idle; /* on the pool's stack */
};

struct worker_pool {
    struct loop *loop;
    struct worker_pool_options opt;
    pthread_mutex_t lock;
    pthread_cond_t ready; /* a thread has its context, or failed to make one */
    struct job_list queue, finished;
    unsigned running, n_ready, n_failed;
    bool stopping;
    bool posted; /* a flush is on its way to the loop */
    struct sp_error init_error;
    unsigned n_workers;
    struct worker *idle; /* a stack */
    struct worker workers[THREADS_MAX];
};

static void list_init(struct job_list *list) {
    list->first = NULL;
    list->last = &list->first;
    list->n = 0;
}

static void list_push(struct job_list *list, struct worker_job *job) {
    job->next = NULL;
    *list->last = job;
    list->last = &job->next;
    list->n++;
}

static struct worker_job *list_pop(struct job_list *list) {
    struct worker_job *job = list->first;
    if (!job)
        return NULL;
    list->first = job->next;
    if (!list->first)
        list->last = &list->first;
    list->n--;
    return job;
}

static struct worker_job *pop_locked(struct worker_pool *p, struct job_list *list) {
    pthread_mutex_lock(&p->lock);
    struct worker_job *job = list_pop(list);
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void report_finished(struct worker_pool *p) {
    struct worker_job *job;
    while ((job = pop_locked(p, &p->finished)))
        job->done(job, job->ran);
}

static void on_finished(void *ctx) {
    struct worker_pool *p = ctx;
    pthread_mutex_lock(&p->lock);
    p->posted = false;
    pthread_mutex_unlock(&p->lock);
    report_finished(p);
}

/* Makes the thread's context; the pool's maker waits for all of them. */
static bool init_context(struct worker_pool *p, void **ret_context) {
    struct sp_error err = {0};
    int r = p->opt.thread_init ? p->opt.thread_init(p->opt.ctx, ret_context, &err) : 0;
    pthread_mutex_lock(&p->lock);
    if (r < 0) {
        p->n_failed++;
        p->init_error = err;
    } else {
        p->n_ready++;
    }
    pthread_cond_signal(&p->ready);
    pthread_mutex_unlock(&p->lock);
    return r == 0;
}

static void rest_locked(struct worker *w) {
    struct worker_pool *p = w->pool;
    w->below = p->idle;
    p->idle = w;
    w->is_idle = true;
    while (w->is_idle && !p->stopping)
        pthread_cond_wait(&w->wake, &p->lock);
}

static void wake_one_locked(struct worker_pool *p) {
    struct worker *w = p->idle;
    if (!w)
        return;
    p->idle = w->below;
    w->is_idle = false;
    pthread_cond_signal(&w->wake);
}

/* Waits for a job; NULL when the pool stops. Called and returns with the lock held. */
static struct worker_job *next_job(struct worker *w) {
    struct worker_pool *p = w->pool;
    while (!p->stopping && !p->queue.first)
        rest_locked(w);
    return p->stopping ? NULL : list_pop(&p->queue);
}

static void run_jobs(struct worker *w, void *context) {
    struct worker_pool *p = w->pool;
    struct worker_job *job;
    pthread_mutex_lock(&p->lock);
    while ((job = next_job(w))) {
        p->running++;
        pthread_mutex_unlock(&p->lock);
        job->run(job, context);
        pthread_mutex_lock(&p->lock);
        p->running--;
        job->ran = true;
        list_push(&p->finished, job);
        if (!p->posted) {
            p->posted = true;
            loop_post(p->loop, on_finished, p);
        }
    }
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct worker_pool *p = w->pool;
    void *context = NULL;
    char name[16];
    (void)snprintf(name, sizeof(name), "%.11s/%u", p->opt.name ? p->opt.name : "worker", w->index % 1000);
    (void)pthread_setname_np(pthread_self(), name);
    if (!init_context(p, &context))
        return NULL;
    run_jobs(w, context);
    if (p->opt.thread_done)
        p->opt.thread_done(p->opt.ctx, context);
    return NULL;
}

/* Stops and joins every thread that was started. */
static void join_workers(struct worker_pool *p) {
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    for (unsigned i = 0; i < p->n_workers; i++)
        pthread_cond_signal(&p->workers[i].wake);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->n_workers; i++) {
        (void)pthread_join(p->workers[i].thread, NULL);
        (void)pthread_cond_destroy(&p->workers[i].wake);
    }
    p->n_workers = 0;
}

static int start_workers(struct worker_pool *p, struct sp_error *err) {
    sigset_t all, before;
    int r = 0;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (unsigned i = 0; i < p->opt.threads && r == 0; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .index = i};
        (void)pthread_cond_init(&w->wake, NULL);
        r = pthread_create(&w->thread, NULL, worker_main, w);
        if (r == 0)
            p->n_workers++;
        else
            (void)pthread_cond_destroy(&w->wake);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r ? sp_error_errno(err, r, "pthread_create", "cannot start worker threads") : 0;
}

static int wait_ready(struct worker_pool *p, struct sp_error *err) {
    int r = 0;
    pthread_mutex_lock(&p->lock);
    while (p->n_ready + p->n_failed < p->opt.threads)
        pthread_cond_wait(&p->ready, &p->lock);
    if (p->n_failed) {
        if (err)
            *err = p->init_error;
        r = p->init_error.code ? -(int)p->init_error.code : -SP_E_INTERNAL;
    }
    pthread_mutex_unlock(&p->lock);
    return r;
}

static void dispose(struct worker_pool *p) {
    (void)pthread_mutex_destroy(&p->lock);
    (void)pthread_cond_destroy(&p->ready);
    free(p);
}

int worker_pool_new(struct loop *l, const struct worker_pool_options *opt, struct worker_pool **ret,
                    struct sp_error *err) {
    assert(opt->threads >= 1 && opt->threads <= THREADS_MAX && opt->queue_max >= 1);
    struct worker_pool *p = loop_alloc(sizeof(*p));
    p->loop = l;
    p->opt = *opt;
    list_init(&p->queue);
    list_init(&p->finished);
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->ready, NULL);
    int r = start_workers(p, err);
    if (r == 0)
        r = wait_ready(p, err);
    if (r < 0) {
        join_workers(p);
        dispose(p);
        return r;
    }
    *ret = p;
    return 0;
}

int worker_pool_submit(struct worker_pool *p, struct worker_job *job) {
    int r = 0;
    pthread_mutex_lock(&p->lock);
    if (p->stopping || p->queue.n >= p->opt.queue_max) {
        r = -SP_E_UNAVAILABLE;
    } else {
        job->ran = false;
        list_push(&p->queue, job);
        wake_one_locked(p);
    }
    pthread_mutex_unlock(&p->lock);
    return r;
}

size_t worker_pool_load(struct worker_pool *p) {
    pthread_mutex_lock(&p->lock);
    size_t n = (size_t)p->queue.n + p->running;
    pthread_mutex_unlock(&p->lock);
    return n;
}

/* Runs on the loop after every post of the pool's: nothing refers to it any more. */
static void on_last_post(void *ctx) {
    dispose(ctx);
}

struct worker_pool *worker_pool_free(struct worker_pool *p) {
    struct worker_job *job;
    if (!p)
        return NULL;
    join_workers(p);
    report_finished(p);
    while ((job = list_pop(&p->queue)))
        job->done(job, false);
    loop_post(p->loop, on_last_post, p);
    return NULL;
}
