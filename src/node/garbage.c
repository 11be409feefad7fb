/* SPDX-License-Identifier: Apache-2.0 */
/* A pass: snapshot_list page by page, each page asked after at control, then engine_list; at its end what was unknown or of no
 * use for too long goes. */
#include "node/garbage.h"
#include "base/log.h"
#include "base/text.h"
#include "io/internal_client.h"
#include "node/control_link.h"
#include "node/node.h"
#include <stdlib.h>
#include <string.h>

struct stray {
    struct stray *next;
    bool is_engine;
    char id[SHA256_HEX_SIZE]; /* of a snapshot; an engine's digest */
    uint64_t first_ms;        /* when it was first seen to be unknown, or in nobody's use */
    uint64_t bytes;
    unsigned pass; /* the last one that saw it */
};

struct garbage {
    struct node *node;
    struct broker_call *call;
    struct internal_call *question;
    json_t *page; /* id → bytes */
    char after[ID_SIZE];
    bool more, under_way, told;
    unsigned pass;
    struct stray *first;
};

struct garbage *garbage_new(struct node *n) {
    struct garbage *g = calloc(1, sizeof(*g));
    if (!g)
        abort();
    g->node = n;
    return g;
}

void garbage_cancel(struct garbage *g) {
    g->call = broker_call_forget(g->call);
    g->question = internal_call_cancel(g->question);
    json_decref(g->page);
    g->page = NULL;
    g->under_way = false;
}

struct garbage *garbage_free(struct garbage *g) {
    if (!g)
        return NULL;
    garbage_cancel(g);
    for (struct stray *s = g->first, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    free(g);
    return NULL;
}

/* ---- the end of a pass ---- */

static void on_removed(void *ctx, const json_t *reply, const struct sp_error *err) {
    (void)ctx;
    (void)reply;
    if (err)
        log_error(LOG_L_WARN, "garbage_not_removed", err, NULL);
}

static void remove_stray(struct garbage *g, const struct stray *s) {
    const char *kind = s->is_engine ? "engine" : "snapshot";
    log_event(s->is_engine ? LOG_L_INFO : LOG_L_WARN, "garbage_removed", kind, s->id, NULL);
    (void)broker_call_start(g->node->broker, s->is_engine ? "engine_remove" : "snapshot_remove",
                            json_pack("{s:s}", kind, s->id), on_removed, g, NULL, NULL);
}

/* Whoever was not unknown in this pass is forgotten; whoever was for too long goes. */
static void finish(struct garbage *g) {
    uint64_t now = loop_now_ms(g->node->loop), grace = g->node->settings->garbage_grace_s * 1000;
    for (struct stray **at = &g->first, *s; (s = *at);) {
        bool is_old = s->pass == g->pass && now - s->first_ms >= grace;
        if (is_old)
            remove_stray(g, s);
        if (!is_old && s->pass == g->pass) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        free(s);
    }
    g->told = true;
    garbage_cancel(g);
}

static void note(struct garbage *g, const char *id, bool is_engine, uint64_t bytes) {
    struct stray *s = g->first;
    while (s && strcmp(s->id, id) != 0)
        s = s->next;
    if (!s) {
        s = calloc(1, sizeof(*s));
        if (!s)
            abort();
        *s = (struct stray){.next = g->first, .is_engine = is_engine, .first_ms = loop_now_ms(g->node->loop)};
        (void)text_copy(s->id, sizeof(s->id), id);
        g->first = s;
    }
    s->bytes = bytes;
    s->pass = g->pass;
}

/* `code` of control's answer, NULL when it was not control. */
static void cut_short(struct garbage *g, const struct sp_error *why, const char *code) {
    log_error(LOG_L_WARN, "garbage_pass_cut_short", why, code ? "code" : NULL, code, NULL);
    garbage_cancel(g);
}

/* ---- engines ---- */

static bool is_in_use(const json_t *engine) {
    return json_is_true(json_object_get(engine, "current")) ||
           json_integer_value(json_object_get(engine, "snapshots")) > 0 ||
           json_integer_value(json_object_get(engine, "vms")) > 0;
}

static void on_engines(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct garbage *g = ctx;
    const json_t *item;
    size_t i;
    g->call = NULL;
    if (err) {
        cut_short(g, err, NULL);
        return;
    }
    json_array_foreach (json_object_get(reply, "engines"), i, item) {
        const char *digest = json_string_value(json_object_get(item, "engine"));
        if (digest && strlen(digest) == SHA256_HEX_SIZE - 1 && !is_in_use(item))
            note(g, digest, true, (uint64_t)json_integer_value(json_object_get(item, "bytes")));
    }
    finish(g);
}

static void ask_engines(struct garbage *g) {
    if (broker_call_start(g->node->broker, "engine_list", NULL, on_engines, g, &g->call, NULL) < 0)
        garbage_cancel(g);
}

/* ---- pages ---- */

static void ask_page(struct garbage *g);

/* An answer that is none ends the pass, and nothing is removed. */
static void on_known(void *ctx, const struct internal_answer *a) {
    struct garbage *g = ctx;
    const json_t *unknown = json_object_get(a->body, "unknown"), *item;
    size_t i;
    g->question = NULL;
    if (!json_is_array(unknown)) {
        cut_short(g, &a->error, a->code);
        return;
    }
    json_array_foreach (unknown, i, item) {
        const json_t *bytes = json_is_string(item) ? json_object_get(g->page, json_string_value(item)) : NULL;
        if (bytes)
            note(g, json_string_value(item), false, (uint64_t)json_integer_value(bytes));
    }
    if (g->more)
        ask_page(g);
    else
        ask_engines(g);
}

static void ask_control(struct garbage *g) {
    json_t *ids = json_array(), *body, *value;
    const char *id;
    struct sp_error err = {0};
    json_object_foreach (g->page, id, value)
        (void)json_array_append_new(ids, json_string(id));
    body = json_pack("{s:o}", "ids", ids);
    if (control_link_post(g->node->control, "snapshots", body, on_known, g, &g->question, &err) < 0)
        cut_short(g, &err, NULL);
    json_decref(body);
}

static void on_page(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct garbage *g = ctx;
    const json_t *item;
    size_t i;
    g->call = NULL;
    if (err) {
        cut_short(g, err, NULL);
        return;
    }
    json_decref(g->page);
    g->page = json_object();
    json_array_foreach (json_object_get(reply, "snapshots"), i, item) {
        const char *id = json_string_value(json_object_get(item, "snapshot"));
        if (id && id_is_valid(id, "snp") && text_copy(g->after, sizeof(g->after), id))
            (void)json_object_set_new(g->page, id,
                                      json_integer(json_integer_value(json_object_get(item, "exclusive_bytes"))));
    }
    g->more = json_is_true(json_object_get(reply, "more")) && json_object_size(g->page) > 0;
    if (json_object_size(g->page) > 0)
        ask_control(g);
    else
        ask_engines(g);
}

static void ask_page(struct garbage *g) {
    json_t *fields = g->after[0] ? json_pack("{s:s}", "after", g->after) : NULL;
    if (broker_call_start(g->node->broker, "snapshot_list", fields, on_page, g, &g->call, NULL) < 0)
        garbage_cancel(g);
}

void garbage_begin(struct garbage *g) {
    if (g->under_way || !g->node->desired_known || !broker_client_is_up(g->node->broker))
        return;
    g->under_way = true;
    g->pass++;
    g->after[0] = '\0';
    ask_page(g);
}

json_t *garbage_report(const struct garbage *g) {
    json_int_t snapshots = 0, engines = 0, bytes = 0;
    if (!g->told)
        return NULL;
    for (const struct stray *s = g->first; s; s = s->next) {
        *(s->is_engine ? &engines : &snapshots) += 1;
        bytes += (json_int_t)s->bytes;
    }
    return json_pack("{s:I, s:I, s:I}", "snapshots", snapshots, "engines", engines, "bytes", bytes);
}
