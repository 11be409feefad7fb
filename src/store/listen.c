/* SPDX-License-Identifier: Apache-2.0 */
/* Receives what pg_notify() sends. */
#include "store/listen.h"
#include "store/pg.h"
#include "store/store_internal.h"
#include <errno.h>
#include <poll.h>

int store_listen(struct store *s, struct sp_error *err) {
    return pg_script(s, "LISTEN space", err);
}

static unsigned take_notes(struct store *s, void (*fn)(void *ctx, char kind, const char *id, int pid), void *ctx) {
    PGnotify *note;
    unsigned n = 0;
    while ((note = PQnotifies(s->conn))) {
        if (note->extra[0])
            fn(ctx, note->extra[0], note->extra + 1, note->be_pid);
        PQfreemem(note);
        n++;
    }
    return n;
}

int store_wait_notes(struct store *s, int wake_fd, int timeout_ms,
                     void (*fn)(void *ctx, char kind, const char *id, int pid), void *ctx, unsigned *ret_n,
                     struct sp_error *err) {
    *ret_n = 0;
    if (!s->conn)
        return sp_error_set(err, SP_E_UNAVAILABLE, "database: no connection");
    *ret_n = take_notes(s, fn, ctx);
    struct pollfd p[2] = {{.fd = PQsocket(s->conn), .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    int n = poll(p, 2, timeout_ms);
    if (n < 0 && errno != EINTR)
        return sp_error_errno(err, errno, "poll", "waiting for notifications");
    if (n > 0 && p[0].revents && !PQconsumeInput(s->conn)) {
        store_disconnect(s);
        return sp_error_set(err, SP_E_UNAVAILABLE, "database: connection lost");
    }
    *ret_n += take_notes(s, fn, ctx);
    return 0;
}
