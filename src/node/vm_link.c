/* SPDX-License-Identifier: Apache-2.0 */
/* Connection, one reconnection, messages. */
#include "node/vm_link.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text.h"
#include "io/packet.h"
#include "io/unix_socket.h"
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define QUEUE_MAX 16
#define PAUSE_MS 50u
#define TRIES_MAX 100u

struct vm_link {
    struct loop *loop;
    char id[ID_SIZE];
    char path[128];
    struct packet *packet;
    struct loop_timer *connect; /* fires: (re)connect */
    struct loop_timer *silence; /* fires: no status since the connection was made again */
    bool connected;             /* at least once */
    unsigned tries;             /* before that, for a socket that is not there */
    bool retried;               /* the connection broke and no status came since */
    bool *freed;                /* of the callback that is running */
    const struct vm_link_events *events;
    void *ctx;
};

struct vm_link *vm_link_free(struct vm_link *link) {
    if (!link)
        return NULL;
    if (link->freed)
        *link->freed = true;
    packet_free(link->packet);
    loop_timer_free(link->connect);
    loop_timer_free(link->silence);
    free(link);
    return NULL;
}

static void gone(struct vm_link *link, const char *why) {
    link->packet = packet_free(link->packet);
    loop_timer_stop(link->connect);
    loop_timer_stop(link->silence);
    link->events->on_gone(link->ctx, why);
}

static void broken(struct vm_link *link, const char *why) {
    link->packet = packet_free(link->packet);
    if (link->retried) {
        gone(link, why);
        return;
    }
    link->retried = true;
    loop_timer_start(link->connect, PAUSE_MS, 0);
    loop_timer_start(link->silence, VM_LINK_RETRY_MS, 0);
}

static void on_message(void *ctx, const char *data, size_t len) {
    struct vm_link *link = ctx;
    struct vm_status status;
    struct sp_error err = {0};
    enum vm_message kind;
    bool alive = false, freed = false;
    if (vm_message_parse(data, len, link->id, &kind, &status, &alive, &err) < 0) {
        log_error(LOG_L_WARN, "vm_message_malformed", &err, "vm_id", link->id, NULL);
        link->retried = true; /* no second chance for one that does not speak the protocol */
        broken(link, "space-vm does not speak its protocol");
        return;
    }
    link->freed = &freed;
    if (kind == VM_MESSAGE_STATUS) {
        link->retried = false;
        loop_timer_stop(link->silence);
        link->events->on_status(link->ctx, &status);
    } else if (kind == VM_MESSAGE_PONG && link->events->on_pong) {
        link->events->on_pong(link->ctx, alive);
    }
    if (!freed)
        link->freed = NULL;
    vm_status_done(&status);
}

static void on_end(void *ctx, const struct sp_error *err) {
    broken(ctx, err ? err->text : "space-vm is gone");
}

/* A unix socket connects at once or not at all. */
static void on_connect(void *ctx) {
    static const struct packet_events events = {.on_message = on_message, .on_end = on_end};
    struct vm_link *link = ctx;
    struct sp_error err = {0};
    int fd = -1;
    if (unix_connect(link->path, SOCK_SEQPACKET | SOCK_NONBLOCK, deadline_in_ms(0), &fd, &err) == 0 &&
        packet_new(link->loop, fd, VM_STATUS_MESSAGE_MAX, QUEUE_MAX, &events, link, &link->packet, &err) == 0) {
        link->connected = true;
        return;
    }
    (void)close_fd(fd);
    if (!link->connected && err.code == SP_E_NOT_FOUND && link->tries++ < TRIES_MAX)
        loop_timer_start(link->connect, PAUSE_MS, 0); /* adopted while the broker still makes it */
    else
        broken(link, err.text);
}

static void on_silence(void *ctx) {
    struct vm_link *link = ctx;
    link->retried = true;
    broken(link, "space-vm does not answer");
}

int vm_link_new(struct loop *l, const char *state_dir, const char *id, const struct vm_link_events *events, void *ctx,
                struct vm_link **ret, struct sp_error *err) {
    struct vm_link *link = calloc(1, sizeof(*link));
    if (!link)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    *link = (struct vm_link){.loop = l, .events = events, .ctx = ctx};
    if (!text_copy(link->id, sizeof(link->id), id) ||
        !text_printf(link->path, sizeof(link->path), "%s/run/vm/%s/control.sock", state_dir, id)) {
        free(link);
        return sp_error_set(err, SP_E_INTERNAL, "path of the control socket is too long");
    }
    link->connect = loop_timer_new(l, on_connect, link);
    link->silence = loop_timer_new(l, on_silence, link);
    loop_timer_start(link->connect, 0, 0);
    *ret = link;
    return 0;
}

void vm_link_ping(struct vm_link *link) {
    static const char ping[] = "{\"request\":\"ping\"}";
    if (link->packet)
        (void)packet_write(link->packet, ping, sizeof(ping) - 1);
}
