/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking calls for programs without a loop: a private loop and client for one call. */
#include "base/cleanup.h"
#include "io/http_client_internal.h"
#include <stdlib.h>
#include <string.h>

struct sync {
    struct loop *loop;
    struct http_client *client;
    struct http_call *call;
    int (*on_head)(void *ctx, const struct http_response *r);
    int (*on_body)(void *ctx, const char *data, size_t len);
    void *ctx;
    int stopped; /* what a callback returned */
    int result;
    struct sp_error error;
    struct http_result got;
};

void http_result_done(struct http_result *r) {
    http1_head_done(&r->head);
    free(r->body);
    memset(r, 0, sizeof(*r));
}

/* The head is copied: the call keeps its own until it is freed. */
static void take_head(struct sync *s, const struct http_response *r) {
    http1_head_done(&s->got.head);
    s->got.head = *r->head;
    buf_init(&s->got.head.text, r->head->text.len + 1);
    if (buf_append(&s->got.head.text, r->head->text.data, r->head->text.len) < 0)
        abort();
    s->got.status = r->status;
}

static void stop(struct sync *s) {
    s->call = NULL;
    loop_stop(s->loop);
}

static void on_done(struct http_call *c, void *user, const struct sp_error *err, const struct http_response *r) {
    struct sync *s = user;
    (void)c;
    if (err) {
        s->error = *err;
        s->result = -(int)err->code;
    } else {
        take_head(s, r);
        s->got.body = client_copy_bytes(r->body, r->body_len);
        s->got.body_len = r->body_len;
    }
    stop(s);
}

static void end_early(struct sync *s) {
    s->got.body = client_copy_bytes("", 0);
    http_call_cancel(s->call);
    stop(s);
}

static void on_head(struct http_call *c, void *user, const struct http_response *r) {
    struct sync *s = user;
    (void)c;
    take_head(s, r);
    s->stopped = s->on_head ? s->on_head(s->ctx, r) : 0;
    if (s->stopped)
        end_early(s);
}

static void on_body(struct http_call *c, void *user, const char *data, size_t len) {
    struct sync *s = user;
    (void)c;
    s->stopped = s->on_body(s->ctx, data, len);
    if (s->stopped)
        end_early(s);
}

static int run(struct sync *s, const struct http_request *req, struct http_result *ret, struct sp_error *err) {
    static const struct http_call_events events = {.on_head = on_head, .on_body = on_body, .on_done = on_done};
    int r = loop_new(&s->loop, err);
    if (r < 0)
        return r;
    r = http_client_new(s->loop, NULL, &s->client, err);
    if (r == 0)
        r = http_call_start(s->client, req, &events, s, &s->call, err);
    if (r == 0) {
        loop_run(s->loop);
        r = s->stopped < 0 ? s->stopped : s->result;
        if (s->result < 0 && err)
            *err = s->error;
    }
    http_client_free(s->client);
    loop_free(s->loop);
    if (r < 0) {
        http_result_done(&s->got);
        return r;
    }
    *ret = s->got;
    return 0;
}

int http_client_call_sync(const struct http_request *req, struct http_result *ret, struct sp_error *err) {
    struct http_request mine = *req;
    struct sync s = {0};
    mine.stream_response = mine.stream_body = mine.allow_upgrade = false;
    return run(&s, &mine, ret, err);
}

int http_client_stream_sync(const struct http_request *req, int (*head)(void *ctx, const struct http_response *r),
                            int (*body)(void *ctx, const char *data, size_t len), void *ctx, struct http_result *ret,
                            struct sp_error *err) {
    struct http_request mine = *req;
    struct sync s = {.on_head = head, .on_body = body, .ctx = ctx};
    mine.stream_response = true;
    mine.stream_body = mine.allow_upgrade = false;
    return run(&s, &mine, ret, err);
}
