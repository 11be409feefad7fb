/* SPDX-License-Identifier: Apache-2.0 */
/* IDLE → REGISTERING → POLLING → POLLING …, back to REGISTERING by way of PAUSE after a failure. */
#include "node/control_link.h"
#include "base/log.h"
#include "base/text.h"
#include "node/control_report.h"
#include "node/node.h"
#include "wire/url.h"
#include <string.h>

#define BACKOFF_FIRST_MS 200u
#define BACKOFF_MAX_MS 5000u
#define POLL_WAIT_S 25
#define POLL_TIMEOUT_MS 40000u

enum link_state { LINK_IDLE, LINK_REGISTERING, LINK_POLLING, LINK_PAUSE };

struct control_link {
    struct node *node;
    struct internal_client *client;
    enum link_state state;
    struct internal_call *call; /* register or poll */
    struct loop_timer *pause;   /* LINK_PAUSE: register again */
    uint64_t backoff_ms;
    struct reports *reports;
};

/* /internal/v1/nodes/{node_id}/<what> */
static void put_target(const struct control_link *c, struct buf *target, const char *what) {
    buf_init(target, 2048);
    (void)buf_append_str(target, "/internal/v1/nodes/");
    (void)url_put_encoded(target, c->node->settings->node_id);
    (void)buf_printf(target, "/%s", what);
}

/* ---- register and poll ---- */

static void begin_register(struct control_link *c);
static void begin_poll(struct control_link *c);

static void pause_link(struct control_link *c, const char *what, const struct internal_answer *a) {
    log_error(LOG_L_WARN, what, &a->error, "code", a->code, NULL);
    c->state = LINK_PAUSE;
    reports_open(c->reports, false);
    loop_timer_start(c->pause, c->backoff_ms, 0);
    c->backoff_ms = c->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : c->backoff_ms * 2;
}

static void on_desired(void *ctx, const struct internal_answer *a) {
    struct control_link *c = ctx;
    struct internal_answer bad = *a;
    struct desired_list list;
    c->call = NULL;
    if (!a->body) {
        pause_link(c, "desired_poll_failed", a);
        return;
    }
    if (desired_parse(a->body, &list, &bad.error) < 0) {
        pause_link(c, "desired_list_malformed", &bad);
        return;
    }
    c->backoff_ms = BACKOFF_FIRST_MS;
    node_apply_desired(c->node, &list);
    begin_poll(c);
}

/* A call of the link's; when it cannot even be started the link pauses. */
static void link_call(struct control_link *c, const struct internal_request *req,
                      void (*done)(void *ctx, const struct internal_answer *a)) {
    struct internal_answer failed = {.code = "unavailable"};
    if (internal_call_start(c->client, req, done, c, &c->call, &failed.error) < 0)
        pause_link(c, "control_call_failed", &failed);
}

static void begin_poll(struct control_link *c) {
    _cleanup_buf_ struct buf target = {0};
    put_target(c, &target, "desired");
    (void)buf_printf(&target, "?wait=%d", c->node->desired_known ? POLL_WAIT_S : 0);
    if (c->node->desired_known)
        (void)url_put_query(&target, "since", c->node->desired.revision);
    const struct internal_request req = {.method = "GET", .target = target.data, .timeout_ms = POLL_TIMEOUT_MS};
    c->state = LINK_POLLING;
    link_call(c, &req, on_desired);
}

static void on_registered(void *ctx, const struct internal_answer *a) {
    struct control_link *c = ctx;
    c->call = NULL;
    if (!a->body) {
        pause_link(c, "register_failed", a);
        return;
    }
    log_event(LOG_L_INFO, "registered", "node_id", c->node->settings->node_id, NULL);
    begin_poll(c);
    if (c->state == LINK_POLLING)
        reports_open(c->reports, true);
}

static void begin_register(struct control_link *c) {
    struct node *n = c->node;
    json_t *capacity = node_capacity(n);
    _cleanup_json_ json_t *body = capacity ? facts_register(n->settings, &n->facts, n->accelerator, capacity) : NULL;
    _cleanup_buf_ struct buf target = {0};
    const struct internal_answer unmeasured = {.code = "internal",
                                               .error = {.code = SP_E_INTERNAL,
                                                         .text = "the node's capacity cannot be measured"}};
    put_target(c, &target, "register");
    const struct internal_request req = {.method = "POST", .target = target.data, .body = body};
    c->state = LINK_REGISTERING;
    if (body)
        link_call(c, &req, on_registered);
    else
        pause_link(c, "register_failed", &unmeasured);
}

static void on_pause_over(void *ctx) {
    begin_register(ctx);
}

/* ---- interface ---- */

int control_link_new(struct node *n, struct control_link **ret, struct sp_error *err) {
    struct control_link *c = calloc(1, sizeof(*c));
    int r;
    if (!c)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    *c = (struct control_link){.node = n, .backoff_ms = BACKOFF_FIRST_MS};
    r = internal_client_new(n->loop, n->settings->internal_urls, n->settings->internal_token_file, &c->client, err);
    if (r < 0) {
        free(c);
        return r;
    }
    c->pause = loop_timer_new(n->loop, on_pause_over, c);
    c->reports = reports_new(n, c);
    *ret = c;
    return 0;
}

struct control_link *control_link_free(struct control_link *c) {
    if (!c)
        return NULL;
    reports_free(c->reports);
    internal_client_free(c->client);
    loop_timer_free(c->pause);
    free(c);
    return NULL;
}

void control_link_start(struct control_link *c) {
    if (c->state == LINK_IDLE)
        begin_register(c);
}

int control_link_post(struct control_link *c, const char *what, const json_t *body,
                      void (*done)(void *ctx, const struct internal_answer *a), void *ctx, struct internal_call **ret,
                      struct sp_error *err) {
    _cleanup_buf_ struct buf target = {0};
    put_target(c, &target, what);
    const struct internal_request req = {.method = "POST", .target = target.data, .body = body};
    return internal_call_start(c->client, &req, done, ctx, ret, err);
}

void control_link_report_soon(struct control_link *c) {
    if (c)
        reports_soon(c->reports);
}

void control_link_report_later(struct control_link *c) {
    if (c)
        reports_later(c->reports);
}

void control_link_report_extra(struct control_link *c) {
    if (c)
        reports_extra(c->reports);
}
