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
    uint64_t heard_ms;          /* loop time of its last message */
    uint64_t seq, pending;      /* of the last request; of the one under way, 0: none */
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
    bool was_pending = link->pending != 0;
    link->packet = packet_free(link->packet);
    link->pending = 0;
    if (link->retried) {
        gone(link, why);
        return;
    }
    link->retried = true;
    loop_timer_start(link->connect, PAUSE_MS, 0);
    loop_timer_start(link->silence, VM_LINK_RETRY_MS, 0);
    if (was_pending && link->events->on_done)
        link->events->on_done(link->ctx, NULL);
}

static void deliver(struct vm_link *link, const struct vm_message *m) {
    link->heard_ms = loop_now_ms(link->loop);
    if (m->kind == VM_MESSAGE_STATUS) {
        link->retried = false;
        loop_timer_stop(link->silence);
        link->events->on_status(link->ctx, &m->status);
    } else if (m->kind == VM_MESSAGE_PONG && link->events->on_pong) {
        link->events->on_pong(link->ctx, m->alive);
    } else if (m->kind == VM_MESSAGE_DONE && link->pending && m->done.seq == link->pending) {
        link->pending = 0;
        if (link->events->on_done)
            link->events->on_done(link->ctx, &m->done);
    }
}

static void on_message(void *ctx, const char *data, size_t len) {
    struct vm_link *link = ctx;
    struct vm_message m;
    struct sp_error err = {0};
    bool freed = false;
    if (vm_message_parse(data, len, link->id, &m, &err) < 0) {
        log_error(LOG_L_WARN, "vm_message_malformed", &err, "vm_id", link->id, NULL);
        link->retried = true; /* no second chance for one that does not speak the protocol */
        broken(link, "space-vm does not speak its protocol");
        return;
    }
    link->freed = &freed;
    deliver(link, &m);
    if (!freed)
        link->freed = NULL;
    vm_message_done(&m);
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

static bool set_address(struct vm_link *link, const char *state_dir, const char *id) {
    return text_copy(link->id, sizeof(link->id), id) &&
           text_printf(link->path, sizeof(link->path), "%s/run/vm/%s/control.sock", state_dir, id);
}

int vm_link_new(struct loop *l, const char *state_dir, const char *id, const struct vm_link_events *events, void *ctx,
                struct vm_link **ret, struct sp_error *err) {
    struct vm_link *link = calloc(1, sizeof(*link));
    if (!link)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    *link = (struct vm_link){.loop = l, .events = events, .ctx = ctx};
    if (!set_address(link, state_dir, id)) {
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

void vm_link_hand_over(struct vm_link *link, const char *state_dir, const char *id, const struct vm_link_events *events,
                       void *ctx) {
    (void)set_address(link, state_dir, id); /* it fitted one of that length */
    link->events = events;
    link->ctx = ctx;
}

bool vm_link_request(struct vm_link *link, const char *name, json_t *fields) {
    _cleanup_json_ json_t *request = fields ? fields : json_object();
    _cleanup_free_ char *text = NULL;
    if (!request || !link || !link->packet || link->pending)
        return false;
    (void)json_object_set_new(request, "request", json_string(name));
    (void)json_object_set_new(request, "seq", json_integer((json_int_t)++link->seq));
    text = json_print(request);
    if (packet_write(link->packet, text, strlen(text)) < 0)
        return false;
    link->pending = link->seq;
    return true;
}

bool vm_link_is_busy(const struct vm_link *link) {
    return link && link->pending;
}

void vm_link_forget(struct vm_link *link) {
    if (link)
        link->pending = 0;
}

bool vm_link_is_up(const struct vm_link *link) {
    return link && link->packet;
}

uint64_t vm_link_heard_ms(const struct vm_link *link) {
    return link->heard_ms;
}
