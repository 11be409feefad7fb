/* SPDX-License-Identifier: Apache-2.0 */
/* From struct http_request to the bytes of a request: checks, defaults, framing. Nothing is started here. */
#include "io/http_client_internal.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* "name:port" as Host wants it: no default port, brackets around IPv6. */
static void host_text(const struct url *url, char *dst, size_t size) {
    if (url->scheme == URL_UNIX) {
        (void)snprintf(dst, size, "localhost");
        return;
    }
    char host[URL_HOST_MAX + 3];
    (void)snprintf(host, sizeof(host), strchr(url->host, ':') ? "[%s]" : "%s", url->host);
    if (url->port == 80)
        (void)snprintf(dst, size, "%s", host);
    else
        (void)snprintf(dst, size, "%s:%u", host, (unsigned)url->port);
}

static bool is_ours(const char *name) {
    static const char *const ours[] = {"Host",       "Content-Length", "Transfer-Encoding",
                                       "Connection", "Upgrade",        "Expect"};
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        if (strcasecmp(name, ours[i]) == 0)
            return true;
    return false;
}

static bool is_one_of(const char *method, const char *const *list) {
    for (; *list; list++)
        if (strcmp(method, *list) == 0)
            return true;
    return false;
}

static bool may_repeat(const struct http_request *req, const char *method) {
    static const char *const idempotent[] = {"GET", "HEAD", "PUT", "DELETE", "OPTIONS", NULL};
    if (req->stream_body || req->fd > 0)
        return false;
    for (size_t i = 0; i < req->n_headers; i++)
        if (strcasecmp(req->headers[i].name, "Idempotency-Key") == 0)
            return true;
    return is_one_of(method, idempotent);
}

static int put_fields(struct http_call *call, const struct http_request *req, struct sp_error *err) {
    struct buf *out = &call->head;
    char host[URL_HOST_MAX + 16], bearer[1024];
    host_text(&call->url, host, sizeof(host));
    (void)http1_put_field(out, "Host", req->host ? req->host : host);
    if (req->bearer) {
        int n = snprintf(bearer, sizeof(bearer), "Bearer %s", req->bearer);
        if (n < 0 || (size_t)n >= sizeof(bearer))
            return sp_error_set(err, SP_E_INVALID, "bearer token is too long");
        (void)http1_put_field(out, "Authorization", bearer);
    }
    if (req->content_type)
        (void)http1_put_field(out, "Content-Type", req->content_type);
    for (size_t i = 0; i < req->n_headers; i++) {
        if (is_ours(req->headers[i].name))
            return sp_error_set(err, SP_E_INVALID, "the client sets %s itself", req->headers[i].name);
        (void)http1_put_field(out, req->headers[i].name, req->headers[i].value);
    }
    return 0;
}

static void put_framing(struct http_call *call, const struct http_request *req, const char *method) {
    static const char *const with_body[] = {"POST", "PUT", "PATCH", NULL};
    struct buf *out = &call->head;
    if (req->stream_body && req->content_length < 0) {
        call->chunked = true;
        (void)http1_put_field(out, "Transfer-Encoding", "chunked");
    } else if (req->stream_body) {
        call->has_length = true;
        call->length_left = (uint64_t)req->content_length;
        (void)http1_put_field_u64(out, "Content-Length", call->length_left);
    } else if (req->body_len > 0 || is_one_of(method, with_body)) {
        (void)http1_put_field_u64(out, "Content-Length", req->body_len);
    }
    if (req->allow_upgrade && req->upgrade) {
        (void)http1_put_field(out, "Connection", "upgrade");
        (void)http1_put_field(out, "Upgrade", req->upgrade);
    } else if (req->fd > 0) {
        (void)http1_put_field(out, "Connection", "close");
    }
    (void)http1_put_head_end(out);
}

int http_call_build(struct http_call *call, const struct http_request *req, struct sp_error *err) {
    const char *method = req->method ? req->method : "GET";
    int r = url_parse(req->origin, &call->url, err);
    if (r < 0)
        return r;
    if (call->url.scheme == URL_HTTPS)
        return sp_error_set(err, SP_E_UNSUPPORTED, "https is not spoken by this client");
    call->generation = req->generation;
    call->stream_body = req->stream_body;
    call->body_ended = !req->stream_body;
    call->stream_response = req->stream_response;
    call->allow_upgrade = req->allow_upgrade && req->upgrade;
    call->head_only = strcmp(method, "HEAD") == 0;
    call->retryable = may_repeat(req, method);
    call->connect_timeout_ms = req->connect_timeout_ms ? req->connect_timeout_ms : 5000;
    call->idle_timeout_ms = req->idle_timeout_ms;
    (void)http1_put_request_line(&call->head, method, req->target && *req->target ? req->target : "/");
    r = put_fields(call, req, err);
    if (r < 0)
        return r;
    put_framing(call, req, method);
    if (call->head.failed)
        return sp_error_set(err, SP_E_INVALID, "a method, target or header of the request is malformed or too long");
    if (!req->stream_body && buf_append(&call->body, req->body, req->body_len) < 0)
        return sp_error_set(err, SP_E_UNAVAILABLE, "out of memory for the request's body");
    return 0;
}
