/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of the broker. Each is in one state: NEW (only hello is permitted), OPEN (everything but hello), and has a
 * bounded number of requests in work and of replies waiting to be read. Does not know what requests mean.
 */
#include "broker/server.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "broker/reactor.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define SOCKET_NAME "broker.sock"
#define CONNECTIONS_MAX 8
#define BACKLOG 8
#define IN_WORK_MAX 64 /* requests of one connection; further ones stay unread */
#define UNSENT_MAX 64  /* replies the peer has not read; more and it is dropped */

enum connection_state { CONN_NEW, CONN_OPEN, CONN_STATES_ };

/* Which requests a state permits: the order of the conversation, enforced here and nowhere else. */
static const bool permitted[CONN_STATES_][REQUEST_COUNT_] = {
    [CONN_NEW] = {[REQUEST_HELLO] = true},
    [CONN_OPEN] = {[REQUEST_VM_START] = true,
                   [REQUEST_VM_LOAD] = true,
                   [REQUEST_VM_BIND] = true,
                   [REQUEST_VM_SNAPSHOT] = true,
                   [REQUEST_VM_STOP] = true,
                   [REQUEST_VM_LIST] = true,
                   [REQUEST_SNAPSHOT_SEAL] = true,
                   [REQUEST_SNAPSHOT_COPY] = true,
                   [REQUEST_SNAPSHOT_STAT] = true,
                   [REQUEST_SNAPSHOT_LIST] = true,
                   [REQUEST_SNAPSHOT_REMOVE] = true,
                   [REQUEST_TEMPLATE_LIST] = true,
                   [REQUEST_TEMPLATE_REMOVE] = true,
                   [REQUEST_ENGINE_LIST] = true,
                   [REQUEST_ENGINE_REMOVE] = true,
                   [REQUEST_STAT] = true,
                   [REQUEST_SWEEP] = true},
};

struct connection {
    struct server *server;
    uint64_t id;
    int fd; /* -1: the slot is free */
    enum connection_state state;
    unsigned in_work;
    char *unsent[UNSENT_MAX];
    unsigned unsent_first, n_unsent;
    struct watch watch;
};

struct server {
    int reactor, listener;
    const char *run_path;
    uid_t node_uid;
    struct server_handler handler;
    uint64_t next_id;
    struct watch watch;
    struct connection connections[CONNECTIONS_MAX];
};

static void drop(struct connection *c, const char *why, const struct sp_error *err) {
    char id[24];

    (void)text_printf(id, sizeof(id), "%llu", (unsigned long long)c->id);
    if (err)
        log_error(LOG_L_WARN, "peer_dropped", err, "connection", id, "reason", why, NULL);
    else
        log_event(LOG_L_INFO, "peer_gone", "connection", id, "reason", why, NULL);
    reactor_remove(c->server->reactor, &c->watch);
    (void)shutdown(c->fd, SHUT_RDWR); /* a job may hold a copy of the descriptor */
    (void)close(c->fd);
    for (; c->n_unsent; c->n_unsent--) {
        free(c->unsent[c->unsent_first]);
        c->unsent_first = (c->unsent_first + 1) % UNSENT_MAX;
    }
    *c = (struct connection){.server = c->server, .fd = -1};
}

static struct connection *find(struct server *server, uint64_t id) {
    for (size_t i = 0; id && i < CONNECTIONS_MAX; i++)
        if (server->connections[i].fd >= 0 && server->connections[i].id == id)
            return &server->connections[i];
    return NULL;
}

static void update_watch(struct connection *c) {
    reactor_change(c->server->reactor, &c->watch,
                   (c->in_work < IN_WORK_MAX ? (uint32_t)EPOLLIN : 0) | (c->n_unsent ? (uint32_t)EPOLLOUT : 0));
}

/* --- out ----------------------------------------------------------------------------------------------------------- */

/* 1: sent, 0: the peer's buffer is full, negative: the connection is broken. */
static int send_text(struct connection *c, const char *text) {
    ssize_t n = send(c->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0)
        return 1;
    return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

static void flush(struct connection *c) {
    while (c->n_unsent) {
        int r = send_text(c, c->unsent[c->unsent_first]);
        if (r < 0) {
            drop(c, "cannot send", NULL);
            return;
        }
        if (r == 0)
            break;
        free(c->unsent[c->unsent_first]);
        c->unsent_first = (c->unsent_first + 1) % UNSENT_MAX;
        c->n_unsent--;
    }
    update_watch(c);
}

static void send_object(struct server *server, const struct reply_to *to, json_t *obj) {
    struct connection *c = find(server, to->connection);
    char *text;

    if (!c) {
        json_decref(obj);
        return;
    }
    if (to->has_seq)
        (void)json_object_set_new(obj, "seq", json_integer((json_int_t)to->seq));
    text = json_print(obj);
    json_decref(obj);
    c->in_work--;
    if (strlen(text) > BROKER_MESSAGE_MAX || c->n_unsent == UNSENT_MAX) {
        struct sp_error err;
        (void)sp_error_set(&err, SP_E_TOO_LARGE, "a reply of %zu bytes with %u unread before it", strlen(text),
                           c->n_unsent);
        free(text);
        drop(c, "it does not read its replies", &err);
        return;
    }
    c->unsent[(c->unsent_first + c->n_unsent++) % UNSENT_MAX] = text;
    flush(c);
}

void server_reply(struct server *server, const struct reply_to *to, json_t *fields) {
    json_t *obj = fields ? fields : json_object();
    (void)json_object_set_new(obj, "ok", json_true());
    send_object(server, to, obj);
}

void server_fail(struct server *server, const struct reply_to *to, const struct sp_error *error) {
    json_t *obj = json_object();
    (void)json_object_set_new(obj, "ok", json_false());
    (void)json_object_set_new(obj, "error", sp_error_encode(error));
    log_error(LOG_L_WARN, "request_failed", error, "request", request_type_name(to->type), NULL);
    send_object(server, to, obj);
}

/* --- in ------------------------------------------------------------------------------------------------------------ */

static void take_message(struct connection *c, const char *data, size_t len) {
    struct server *server = c->server;
    struct request request;
    struct sp_error err = {0};
    struct reply_to to;

    if (request_parse(data, len, &request, &err) < 0) {
        drop(c, "a request that is not allowed", &err);
        return;
    }
    if (!permitted[c->state][request.type]) {
        (void)sp_error_field(&err, SP_E_PROTOCOL, "request", "%s is not permitted %s", request_type_name(request.type),
                             c->state == CONN_NEW ? "before hello" : "after hello");
        request_done(&request);
        drop(c, "a request that is not allowed", &err);
        return;
    }
    if (request.type == REQUEST_HELLO)
        c->state = CONN_OPEN;
    c->in_work++;
    update_watch(c);
    to = (struct reply_to){.connection = c->id, .has_seq = request.has_seq, .seq = request.seq, .type = request.type};
    server->handler.on_request(server->handler.ctx, &request, &to);
    request_done(&request);
}

/* No descriptor is ever expected: MSG_CMSG_CLOEXEC without room for control data makes the kernel throw them away. */
static void receive(struct connection *c) {
    static char data[BROKER_MESSAGE_MAX + 1];
    struct iovec iov = {.iov_base = data, .iov_len = BROKER_MESSAGE_MAX};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct sp_error err;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop(c, n == 0 ? "closed by the peer" : "cannot receive", NULL);
        return;
    }
    if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        (void)sp_error_set(&err, SP_E_TOO_LARGE, "a message over %d bytes or with descriptors", BROKER_MESSAGE_MAX);
        drop(c, "a message that is not allowed", &err);
        return;
    }
    take_message(c, data, (size_t)n);
}

static void on_connection_event(void *ctx, uint32_t events) {
    struct connection *c = ctx;
    if (events & EPOLLOUT)
        flush(c);
    else if (events & EPOLLIN)
        receive(c);
    else
        drop(c, "hung up", NULL);
}

static int check_peer(const struct server *server, int fd, struct sp_error *err) {
    struct ucred peer;
    socklen_t len = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return sp_error_errno(err, errno, "SO_PEERCRED", "new connection");
    if (peer.uid != server->node_uid)
        return sp_error_set(err, SP_E_FORBIDDEN, "uid %u, pid %d is not the node", peer.uid, (int)peer.pid);
    return 0;
}

static void on_listener_event(void *ctx, uint32_t events) {
    struct server *server = ctx;
    struct connection *c = NULL;
    struct sp_error err = {0};
    int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)events;
    if (fd < 0)
        return;
    for (size_t i = 0; i < CONNECTIONS_MAX && !c; i++)
        if (server->connections[i].fd < 0)
            c = &server->connections[i];
    if (check_peer(server, fd, &err) == 0 && !c)
        (void)sp_error_set(&err, SP_E_UNAVAILABLE, "more than %d connections", CONNECTIONS_MAX);
    if (err.code == SP_OK) {
        *c = (struct connection){.server = server, .id = ++server->next_id, .fd = fd};
        c->watch = (struct watch){.fd = fd, .on_event = on_connection_event, .ctx = c};
        if (reactor_add(server->reactor, &c->watch, EPOLLIN, &err) == 0)
            return;
        c->fd = -1;
    }
    log_error(LOG_L_WARN, "peer_refused", &err, NULL);
    (void)shutdown(fd, SHUT_RDWR);
    (void)close(fd);
}

/* --- life ---------------------------------------------------------------------------------------------------------- */

/* The umask gives the socket to root alone until it is the node's. */
static int bind_socket(const struct server *server, struct sp_error *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (!text_printf(address.sun_path, sizeof(address.sun_path), "%s/" SOCKET_NAME, server->run_path))
        return sp_error_set(err, SP_E_INTERNAL, "path of %s is too long", SOCKET_NAME);
    if (unlink(address.sun_path) < 0 && errno != ENOENT)
        return sp_error_errno(err, errno, "unlink", "%s", SOCKET_NAME);
    if (bind(server->listener, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return sp_error_errno(err, errno, "bind", "%s", SOCKET_NAME);
    if (listen(server->listener, BACKLOG) < 0)
        return sp_error_errno(err, errno, "listen", "%s", SOCKET_NAME);
    if (lchown(address.sun_path, server->node_uid, server->node_uid) < 0 || chmod(address.sun_path, 0600) < 0)
        return sp_error_errno(err, errno, "chown", "%s", SOCKET_NAME);
    return 0;
}

int server_open(int reactor, const char *run_path, uid_t node_uid, const struct server_handler *handler,
                struct server **ret, struct sp_error *err) {
    struct server *server = calloc(1, sizeof(*server));
    int r = 0;

    if (!server)
        abort();
    *server = (struct server){.reactor = reactor, .run_path = run_path, .node_uid = node_uid, .handler = *handler};
    for (size_t i = 0; i < CONNECTIONS_MAX; i++)
        server->connections[i] = (struct connection){.server = server, .fd = -1};
    server->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server->listener < 0)
        r = sp_error_errno(err, errno, "socket", "%s", SOCKET_NAME);
    server->watch = (struct watch){.fd = server->listener, .on_event = on_listener_event, .ctx = server};
    if (r == 0)
        r = reactor_add(reactor, &server->watch, EPOLLIN, err);
    if (r == 0)
        r = bind_socket(server, err);
    if (r < 0) {
        (void)close_fd(server->listener);
        free(server);
        return r;
    }
    *ret = server;
    return 0;
}

struct server *server_free(struct server *server) {
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];

    if (!server)
        return NULL;
    for (size_t i = 0; i < CONNECTIONS_MAX; i++)
        if (server->connections[i].fd >= 0)
            drop(&server->connections[i], "the broker ends", NULL);
    reactor_remove(server->reactor, &server->watch);
    (void)close(server->listener);
    if (text_printf(path, sizeof(path), "%s/" SOCKET_NAME, server->run_path))
        (void)unlink(path);
    free(server);
    return NULL;
}
