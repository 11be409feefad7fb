/* SPDX-License-Identifier: Apache-2.0 */
/* Which route a request takes, with 404 and 405 when none does; and the default rendering of problems. */
#include "base/json.h"
#include "io/http_server_internal.h"
#include <stdio.h>
#include <string.h>

static bool method_fits(const struct http_route *route, const char *method) {
    if (strcmp(route->method, method) == 0 || strcmp(route->method, "*") == 0)
        return true;
    return strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0;
}

static bool matches(const struct http_route *route, struct exchange *x) {
    return url_match(route->pattern, x->path, strlen(x->path), &x->params);
}

static void add_method(char *list, size_t size, const char *method) {
    char item[32];
    size_t used = strlen(list);
    (void)snprintf(item, sizeof(item), "%s", method);
    if (strstr(list, item)) /* no method is part of another's name */
        return;
    (void)snprintf(list + used, size - used, "%s%s", used ? ", " : "", item);
}

/* Methods of the routes whose pattern fits; "" when there is none. */
static void allowed_methods(const struct http_server *s, struct exchange *x, char *list, size_t size) {
    list[0] = '\0';
    for (size_t i = 0; i < s->opt.n_routes; i++) {
        if (!matches(&s->opt.routes[i], x))
            continue;
        add_method(list, size, s->opt.routes[i].method);
        if (strcmp(s->opt.routes[i].method, "GET") == 0)
            add_method(list, size, "HEAD");
    }
}

/* The part that the pattern's literals and parameters matched; a tail is the handler's business. */
static bool matched_part_is_clean(const struct exchange *x) {
    size_t len = strlen(x->path) - x->params.tail_len;
    return len == 0 || url_path_is_clean(x->path, len);
}

static const struct http_route *find_in_table(const struct http_server *s, struct exchange *x) {
    for (size_t i = 0; i < s->opt.n_routes; i++)
        if (method_fits(&s->opt.routes[i], exchange_method(x)) && matches(&s->opt.routes[i], x))
            return &s->opt.routes[i];
    return NULL;
}

static bool refuse(struct exchange *x, int status, const char *code, const char *detail) {
    (void)exchange_problem(x, status, code, NULL, detail);
    return false;
}

bool http_route_find(struct http_server *s, struct exchange *x) {
    char list[160];
    const struct http_route *route = s->opt.select ? s->opt.select(s->opt.ctx, x) : NULL;
    if (x->started)
        return false; /* select has answered */
    if (route) {
        if (!matches(route, x))
            x->params = (struct url_params){.n = 0};
        x->route = route;
        return true;
    }
    route = find_in_table(s, x);
    if (!route) {
        allowed_methods(s, x, list, sizeof(list));
        if (!list[0])
            return refuse(x, 404, sp_code_name(SP_E_NOT_FOUND), "there is nothing under this path");
        (void)exchange_add_header(x, "Allow", list);
        return refuse(x, 405, "method_not_allowed", "the method is not offered for this path");
    }
    if (!matched_part_is_clean(x))
        return refuse(x, 400, "bad_request", "the path has empty, dotted or encoded segments");
    x->route = route;
    return true;
}

int http_problem_render(void *ctx, const struct http_problem *p, struct buf *out, const char **ret_content_type) {
    (void)ctx;
    _cleanup_json_ json_t *doc =
        json_pack("{s:s, s:s, s:i, s:s, s:s}", "type", "about:blank", "title", http1_reason(p->status), "status",
                  p->status, "code", p->code, "detail", p->detail);
    if (!doc) /* a text that is no UTF-8 */
        doc = json_pack("{s:s, s:s, s:i, s:s}", "type", "about:blank", "title", http1_reason(p->status), "status",
                        p->status, "code", p->code);
    if (!doc)
        return -SP_E_INTERNAL;
    if (p->field[0])
        (void)json_object_set_new(doc, "field", json_string(p->field));
    char *text = json_print(doc);
    int r = buf_append_str(out, text);
    free(text);
    *ret_content_type = "application/problem+json";
    return r < 0 ? -SP_E_TOO_LARGE : 0;
}
