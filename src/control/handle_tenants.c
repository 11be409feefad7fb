/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants and their quotas. */
#include "base/text.h"
#include "control/handlers.h"
#include "control/render.h"
#include "store/sandboxes.h"
#include <string.h>

static void take_quotas(const json_t *body, struct quotas *q) {
    const json_t *given = json_object_get(body, "quotas");
    q->max_sandboxes = body_uint(given, "max_sandboxes", q->max_sandboxes);
    q->max_vcpus = body_uint(given, "max_vcpus", q->max_vcpus);
    q->max_memory_mib = body_uint(given, "max_memory_mib", q->max_memory_mib);
    q->max_sessions_per_sandbox = body_uint(given, "max_sessions_per_sandbox", q->max_sessions_per_sandbox);
    q->requests_per_second = body_uint(given, "requests_per_second", q->requests_per_second);
}

static int answer_tenant(struct request *rq, const char *id, int status) {
    _cleanup_result_ struct store_result *res = NULL;
    struct tenant t;
    int r = tenant_get(rq->db, id, false, &res, &t, &rq->err);
    if (r < 0)
        return r;
    (void)text_copy(rq->object_id, sizeof(rq->object_id), t.id);
    rq->answer = render_tenant(&t);
    rq->status = status;
    return 0;
}

/* The only constraint a tenant's row can break is its name's. */
static int map_name(struct request *rq, int r) {
    if (r != -SP_E_CONFLICT || rq->has_problem)
        return r;
    return request_problem(rq, PROBLEM_CONFLICT, "name", "there is a tenant of this name");
}

int handle_tenant_create(struct request *rq) {
    struct quotas q = quotas_default();
    char id[ID_SIZE];
    id_new(id, ID_TENANT);
    take_quotas(rq->body, &q);
    int r = map_name(rq, tenant_insert(rq->db, id, body_text(rq->body, "name"), &q, &rq->err));
    return r < 0 ? r : answer_tenant(rq, id, 201);
}

int handle_tenant_list(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct store_page page = request_page(rq);
    char cursor[STORE_CURSOR_SIZE] = "";
    int n = 0;
    int r = tenant_list(rq->db, &page, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    for (int i = 0; i < n; i++) {
        struct tenant t;
        tenant_row(res, i, &t);
        (void)json_array_append_new(items, render_tenant(&t));
        if (i + 1 == (int)page.limit)
            (void)store_cursor_format(cursor, t.created_us, t.id);
    }
    rq->answer = render_page(items, cursor);
    rq->status = 200;
    return 0;
}

static const char *meant_tenant(const struct request *rq) {
    const char *id = request_param(rq, "tenant_id");
    return strcmp(id, "self") == 0 ? rq->auth.tenant_id : id;
}

int handle_tenant_get(struct request *rq) {
    const char *id = meant_tenant(rq);
    if (strcmp(id, rq->auth.tenant_id) != 0 && !(rq->auth.scopes & SCOPE_ADMIN))
        return request_problem(rq, PROBLEM_FORBIDDEN, "", "another tenant is shown to scope admin only");
    return answer_tenant(rq, id, 200);
}

int handle_tenant_update(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    const char *id = meant_tenant(rq), *name = body_text(rq->body, "name");
    struct tenant t;
    int r = tenant_get(rq->db, id, true, &res, &t, &rq->err);
    if (r < 0)
        return r;
    take_quotas(rq->body, &t.quotas);
    r = map_name(rq, tenant_update(rq->db, id, name ? name : t.name, &t.quotas, &rq->err));
    return r < 0 ? r : answer_tenant(rq, id, 200);
}

int handle_tenant_delete(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL, *sandboxes = NULL;
    const char *id = meant_tenant(rq);
    struct sandbox_filter any = {.tenant_id = id};
    struct store_page one = {.limit = 1};
    struct tenant t;
    int n = 0;
    if (strcmp(id, rq->auth.tenant_id) == 0)
        return request_problem(rq, PROBLEM_IN_USE, "", "the token in use belongs to this tenant");
    int r = tenant_get(rq->db, id, true, &res, &t, &rq->err);
    if (r == 0)
        r = sandbox_list(rq->db, &any, &one, &sandboxes, &n, &rq->err);
    if (r < 0)
        return r;
    if (n > 0)
        return request_problem(rq, PROBLEM_IN_USE, "", "the tenant has sandboxes that are not deleted");
    (void)text_copy(rq->object_id, sizeof(rq->object_id), id);
    rq->status = 204;
    return tenant_delete(rq->db, id, &rq->err);
}
