/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The broker's socket: accepts the node, takes its messages apart, sends replies. A peer that is not the node, speaks
 * before `hello`, asks for what is not in the table, breaks a limit or does not read its replies is dropped, with the
 * reason in the log. Replies may come in another order than requests; a request's `seq` comes back with its reply.
 */
#pragma once
#include "base/error.h"
#include "broker/request.h"
#include <jansson.h>
#include <sys/types.h>

struct server;

/* Where a reply goes; stays valid (and harmless) when the connection is gone. */
struct reply_to {
    uint64_t connection; /* 0: nowhere */
    bool has_seq;
    uint64_t seq;
    enum request_type type;
};

struct server_handler {
    /* Takes nothing over but what it moves out of *request. Every request is answered by one server_reply/_fail. */
    void (*on_request)(void *ctx, struct request *request, const struct reply_to *to);
    void *ctx;
};

/* Binds <run_path>/broker.sock for `node_uid` alone. run_path is borrowed. */
int server_open(int reactor, const char *run_path, uid_t node_uid, const struct server_handler *handler,
                struct server **ret, struct sp_error *err);
/* Closes everything and removes the socket's name. */
struct server *server_free(struct server *server);
/* Sends {"ok": true, ...fields, "seq"}; takes fields over (NULL: none). */
void server_reply(struct server *server, const struct reply_to *to, json_t *fields);
void server_fail(struct server *server, const struct reply_to *to, const struct sp_error *error);
