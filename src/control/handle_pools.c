/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: make, list, resize, remove. */
#include "base/text.h"
#include "control/accepted.h"
#include "control/handlers.h"
#include "control/render.h"
#include "model/limits.h"
#include "store/pools.h"
#include "store/templates.h"

static int answer(struct request *rq, const char *id, int status) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pool p;
    int n = 0;
    int r = pool_list(rq->db, id, &res, &n, &rq->err);
    if (r < 0)
        return r;
    if (n != 1)
        return sp_error_set(&rq->err, SP_E_NOT_FOUND, "no pool %s", id);
    pool_row(res, 0, &p);
    rq->answer = render_pool(&p);
    rq->status = status;
    (void)text_copy(rq->object_id, sizeof(rq->object_id), id);
    return 0;
}

static int check_count(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    int n = 0;
    int r = pool_list(rq->db, NULL, &res, &n, &rq->err);
    if (r < 0 || n < (int)LIMIT_VALUE(pools))
        return r;
    return request_problem(rq, PROBLEM_QUOTA_EXCEEDED, "pools", "there are %d pools already", n);
}

int handle_pool_create(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct template_ref ref;
    struct template t;
    char id[ID_SIZE];
    (void)template_ref_parse(body_text(rq->body, "template"), &ref); /* the pattern has let it pass */
    int r = template_resolve(rq->db, rq->auth.tenant_id, &ref, &res, &t, &rq->err);
    if (r < 0)
        return request_map(rq, r, SP_E_NOT_FOUND, PROBLEM_TEMPLATE_NOT_FOUND, "template");
    r = check_count(rq);
    if (r < 0)
        return r;
    _cleanup_json_ json_t *manifest = json_of_text(t.manifest, json_object());
    id_new(id, ID_POOL);
    struct pool_new_row n = {.id = id,
                             .template_id = t.id,
                             .template_name = t.name,
                             .template_tag = *ref.tag ? ref.tag : NULL,
                             .digest = t.digest,
                             .size = body_uint(rq->body, "size", 0)};
    accepted_resources(rq->body, manifest, &n.vcpus, &n.memory_mib);
    r = pool_insert(rq->db, &n, &rq->err);
    if (r == -SP_E_CONFLICT)
        return request_problem(rq, PROBLEM_CONFLICT, "template", "there is a pool of this release and size");
    return r < 0 ? r : answer(rq, id, 201);
}

int handle_pool_list(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    int n = 0;
    int r = pool_list(rq->db, NULL, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    for (int i = 0; i < n; i++) {
        struct pool p;
        pool_row(res, i, &p);
        (void)json_array_append_new(items, render_pool(&p));
    }
    rq->answer = json_object();
    put_new(rq->answer, "items", items);
    rq->status = 200;
    return 0;
}

int handle_pool_update(struct request *rq) {
    const char *id = request_param(rq, "pool_id");
    int r = pool_resize(rq->db, id, body_uint(rq->body, "size", 0), &rq->err);
    return r < 0 ? r : answer(rq, id, 200);
}

int handle_pool_delete(struct request *rq) {
    const char *id = request_param(rq, "pool_id");
    int r = pool_delete(rq->db, id, &rq->err);
    (void)text_copy(rq->object_id, sizeof(rq->object_id), id);
    rq->status = 204;
    return r;
}
