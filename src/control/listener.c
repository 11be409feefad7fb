/* SPDX-License-Identifier: Apache-2.0 */
/* Straight-line: connect, listen, wait, hand on; on a broken connection begin again, and wake everything once, because
 * what was said meanwhile was not heard. */
#include "control/listener.h"
#include "base/log.h"
#include "base/text.h"
#include "control/keeper.h"
#include "control/parking.h"
#include "store/listen.h"
#include "store/store.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BACKOFF_FIRST_MS 100
#define BACKOFF_MAX_MS 3000
#define QUIET_MS 15000 /* ping, so that a dead connection is noticed */

struct listener {
    struct control *c;
    struct store *db;
    pthread_t thread;
    int stop_fd;
};

/* One notification on its way to the loop. */
struct note {
    struct control *c;
    char kind;
    char id[72];
    int pid;
};

static void deliver(void *ctx) {
    struct note *n = ctx;
    parking_heard(&n->c->parking, n->kind, n->id, n->pid);
    free(n);
}

static void deliver_all(void *ctx) {
    struct control *c = ctx;
    parking_wake_all(&c->parking);
}

static void on_note(void *ctx, char kind, const char *id, int pid) {
    struct listener *l = ctx;
    atomic_fetch_add_explicit(&l->c->metrics.notes, 1, memory_order_relaxed);
    if (kind == NOTE_RECONCILE) {
        keeper_wake(l->c->keeper, *id != '\0');
        return;
    }
    struct note *n = calloc(1, sizeof(*n));
    if (!n)
        abort();
    n->c = l->c;
    n->kind = kind;
    n->pid = pid;
    (void)text_copy(n->id, sizeof(n->id), id);
    loop_post(l->c->loop, deliver, n);
}

static bool should_stop(const struct listener *l, int wait_ms) {
    struct pollfd p = {.fd = l->stop_fd, .events = POLLIN};
    return poll(&p, 1, wait_ms) > 0;
}

static int serve(struct listener *l, struct sp_error *err) {
    int r = store_connect(l->db, err);
    if (r == 0)
        r = store_listen(l->db, err);
    if (r < 0)
        return r;
    atomic_fetch_add_explicit(&l->c->metrics.listener_connects, 1, memory_order_relaxed);
    loop_post(l->c->loop, deliver_all, l->c);
    keeper_wake(l->c->keeper, false);
    while (r == 0 && !should_stop(l, 0)) {
        unsigned n = 0;
        r = store_wait_notes(l->db, l->stop_fd, QUIET_MS, on_note, l, &n, err);
        if (r == 0 && n == 0 && !should_stop(l, 0))
            r = store_ping(l->db, err);
    }
    return r;
}

static void *run(void *ctx) {
    struct listener *l = ctx;
    int backoff_ms = BACKOFF_FIRST_MS;
    while (!should_stop(l, 0)) {
        struct sp_error err = {0};
        uint64_t connects = store_connects(l->db);
        int r = serve(l, &err);
        if (r == 0)
            break;
        backoff_ms = store_connects(l->db) != connects ? BACKOFF_FIRST_MS : backoff_ms * 2;
        if (backoff_ms > BACKOFF_MAX_MS)
            backoff_ms = BACKOFF_MAX_MS;
        log_error(LOG_L_WARN, "listener_disconnected", &err, NULL);
        store_disconnect(l->db);
        if (should_stop(l, backoff_ms))
            break;
    }
    return NULL;
}

int listener_start(struct control *c, struct sp_error *err) {
    struct listener *l = calloc(1, sizeof(*l));
    if (!l)
        abort();
    l->c = c;
    l->stop_fd = eventfd(0, EFD_CLOEXEC);
    int r = l->stop_fd < 0 ? sp_error_errno(err, errno, "eventfd", "listener")
                           : store_new(c->database_url, CONTROL_STATEMENT_MS, &l->db, err);
    if (r == 0 && pthread_create(&l->thread, NULL, run, l) != 0)
        r = sp_error_set(err, SP_E_INTERNAL, "no thread for the listener");
    if (r < 0) {
        (void)close_fd(l->stop_fd);
        (void)store_free(l->db);
        free(l);
        return r;
    }
    c->listener = l;
    return 0;
}

struct listener *listener_stop(struct listener *l) {
    if (l) {
        (void)eventfd_write(l->stop_fd, 1);
        (void)pthread_join(l->thread, NULL);
        (void)store_free(l->db);
        (void)close_fd(l->stop_fd);
        free(l);
    }
    return NULL;
}
