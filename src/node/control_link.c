/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two loops beside each other. Link: IDLE → REGISTERING → POLLING → POLLING …, back to REGISTERING after a failure.
 * Reports: a few POSTs at once, never two about the same sandbox, so that control hears its states in order.
 */
#include "node/control_link.h"
#include "base/log.h"
#include "base/text.h"
#include "io/internal_client.h"
#include "node/node.h"
#include "wire/url.h"
#include <string.h>

#define BACKOFF_FIRST_MS 200u
#define BACKOFF_MAX_MS 5000u
#define POLL_WAIT_S 25
#define POLL_TIMEOUT_MS 40000u
#define REPORTS_AT_ONCE 4u
#define REPORT_SANDBOXES_MAX 128u
#define REPORT_RETRY_MS 500u
#define REPORT_EVERY_MS 10000u /* capacity, and a sign of life, when nothing else is said */

enum link_state { LINK_IDLE, LINK_REGISTERING, LINK_POLLING, LINK_PAUSE };

struct report {
    struct control_link *link; /* NULL: free slot */
    struct internal_call *call;
    char ids[REPORT_SANDBOXES_MAX][ID_SIZE];
    unsigned n;
};

struct control_link {
    struct node *node;
    struct internal_client *client;
    enum link_state state;
    struct internal_call *call; /* register or poll */
    struct loop_timer *pause;   /* LINK_PAUSE: register again */
    uint64_t backoff_ms;
    struct loop_task soon;
    struct loop_timer *again; /* reports: after a failure, and from time to time */
    struct report reports[REPORTS_AT_ONCE];
};

/* ---- register and poll ---- */

static void begin_register(struct control_link *c);
static void begin_poll(struct control_link *c);

static void pause_link(struct control_link *c, const char *what, const struct internal_answer *a) {
    log_error(LOG_L_WARN, what, &a->error, "code", a->code, NULL);
    c->state = LINK_PAUSE;
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
    buf_init(&target, 1024);
    (void)buf_append_str(&target, "/internal/v1/nodes/");
    (void)url_put_encoded(&target, c->node->settings->node_id);
    (void)buf_printf(&target, "/desired?wait=%d", c->node->desired_known ? POLL_WAIT_S : 0);
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
    control_link_report_soon(c);
    begin_poll(c);
}

static void begin_register(struct control_link *c) {
    struct node *n = c->node;
    json_t *capacity = node_capacity(n);
    _cleanup_json_ json_t *body = capacity ? facts_register(n->settings, &n->facts, n->accelerator, capacity) : NULL;
    _cleanup_buf_ struct buf target = {0};
    const struct internal_answer unmeasured = {.code = "internal",
                                               .error = {.code = SP_E_INTERNAL,
                                                         .text = "the node's capacity cannot be measured"}};
    buf_init(&target, 1024);
    (void)buf_append_str(&target, "/internal/v1/nodes/");
    (void)url_put_encoded(&target, n->settings->node_id);
    (void)buf_append_str(&target, "/register");
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

/* ---- reports ---- */

static struct report *free_report(struct control_link *c) {
    for (unsigned i = 0; i < REPORTS_AT_ONCE; i++)
        if (!c->reports[i].link)
            return &c->reports[i];
    return NULL;
}

/* What is due goes into the list, and is noted. */
static void gather(struct report *r, struct node *n, json_t *list) {
    for (struct sandbox *s = n->first; s && r->n < REPORT_SANDBOXES_MAX; s = s->next) {
        json_t *item;
        if (!s->report.due || s->report.under_way)
            continue;
        s->report.due = false;
        item = sandbox_report(s);
        if (!item)
            continue;
        (void)json_array_append_new(list, item);
        s->report.under_way = true;
        (void)text_copy(r->ids[r->n++], ID_SIZE, s->id);
    }
}

/* Gone from control's books: nothing more to say of it. */
static void drop_unknown(struct node *n, const json_t *unknown) {
    const json_t *item;
    size_t i;
    json_array_foreach (unknown, i, item) {
        struct sandbox *s = json_is_string(item) ? node_find(n, json_string_value(item)) : NULL;
        if (s && (s->state == SB_DELETED || s->state == SB_FAILED))
            sandbox_free(s);
    }
}

static void on_reported(void *ctx, const struct internal_answer *a) {
    struct report *r = ctx;
    struct control_link *c = r->link;
    /* Refused for good (a fault of ours): repeating it for ever would hide what comes after. */
    bool refused = a->status >= 400 && a->status < 500 && a->status != 401 && a->status != 404 && a->status != 429;
    if (!a->body)
        log_error(LOG_L_WARN, "report_failed", &a->error, "code", a->code, NULL);
    for (unsigned i = 0; i < r->n; i++) {
        struct sandbox *s = node_find(c->node, r->ids[i]);
        if (s)
            sandbox_reported(s, a->body || refused);
    }
    *r = (struct report){0};
    if (a->body) {
        drop_unknown(c->node, json_object_get(a->body, "unknown"));
        control_link_report_soon(c);
    } else {
        loop_timer_start(c->again, REPORT_RETRY_MS, REPORT_EVERY_MS);
    }
}

/* One POST; false when there was nothing to say and `anyway` is not set, or no room. */
static bool send_report(struct control_link *c, bool anyway) {
    struct report *r = free_report(c);
    _cleanup_json_ json_t *body = NULL;
    _cleanup_buf_ struct buf target = {0};
    json_t *list, *capacity;
    if (!r)
        return false;
    list = json_array();
    gather(r, c->node, list);
    if (!r->n && !anyway) {
        json_decref(list);
        return false;
    }
    body = json_pack("{s:o}", "sandboxes", list);
    capacity = anyway ? node_capacity(c->node) : NULL;
    if (capacity)
        (void)json_object_set_new(body, "capacity", capacity);
    buf_init(&target, 1024);
    (void)buf_append_str(&target, "/internal/v1/nodes/");
    (void)url_put_encoded(&target, c->node->settings->node_id);
    (void)buf_append_str(&target, "/observed");
    const struct internal_request req = {.method = "POST", .target = target.data, .body = body};
    const struct internal_answer failed = {.code = "unavailable", .error = {.code = SP_E_UNAVAILABLE}};
    r->link = c;
    if (internal_call_start(c->client, &req, on_reported, r, &r->call, NULL) < 0) {
        on_reported(r, &failed);
        return false;
    }
    return true;
}

static void on_soon(void *ctx) {
    struct control_link *c = ctx;
    while (send_report(c, false))
        ;
}

static void on_again(void *ctx) {
    struct control_link *c = ctx;
    if (c->state == LINK_IDLE || c->state == LINK_REGISTERING)
        return;
    (void)send_report(c, true);
    control_link_report_soon(c);
}

void control_link_report_soon(struct control_link *c) {
    if (c && c->state == LINK_POLLING)
        loop_defer(c->node->loop, &c->soon);
}

/* ---- interface ---- */

int control_link_new(struct node *n, struct control_link **ret, struct sp_error *err) {
    struct control_link *c = calloc(1, sizeof(*c));
    int r;
    if (!c)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    *c = (struct control_link){.node = n, .backoff_ms = BACKOFF_FIRST_MS, .soon = {.fn = on_soon, .ctx = c}};
    r = internal_client_new(n->loop, n->settings->internal_urls, n->settings->internal_token_file, &c->client, err);
    if (r < 0) {
        free(c);
        return r;
    }
    c->pause = loop_timer_new(n->loop, on_pause_over, c);
    c->again = loop_timer_new(n->loop, on_again, c);
    *ret = c;
    return 0;
}

struct control_link *control_link_free(struct control_link *c) {
    if (!c)
        return NULL;
    internal_client_free(c->client);
    loop_timer_free(c->pause);
    loop_timer_free(c->again);
    loop_defer_cancel(&c->soon);
    free(c);
    return NULL;
}

void control_link_start(struct control_link *c) {
    if (c->state != LINK_IDLE)
        return;
    loop_timer_start(c->again, REPORT_EVERY_MS, REPORT_EVERY_MS);
    begin_register(c);
}
