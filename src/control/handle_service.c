/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes as people see them, health, the description of the API, metrics. */
#include "control/handlers.h"
#include "control/openapi.h"
#include "control/render.h"
#include "control/routes.h"
#include "store/maintenance.h"
#include "store/migrate.h"
#include <string.h>

#define METRICS_MAX (1u << 20)

int handle_node_list(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    int n = 0;
    int r = node_list(rq->db, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    for (int i = 0; i < n; i++) {
        struct node row;
        node_row(res, i, &row);
        (void)json_array_append_new(items, render_node(&row));
    }
    rq->answer = json_object();
    put_new(rq->answer, "items", items);
    rq->status = 200;
    return 0;
}

static int answer_ok(struct request *rq) {
    rq->answer = json_object();
    put_text(rq->answer, "status", "ok");
    put_text(rq->answer, "version", SPACE_VERSION);
    rq->status = 200;
    return 0;
}

int handle_health(struct request *rq) {
    return answer_ok(rq);
}

int handle_ready(struct request *rq) {
    if (!atomic_load(&rq->c->is_ready))
        return sp_error_set(&rq->err, SP_E_UNAVAILABLE, "the database is not ready");
    int r = store_schema_check(rq->db, &rq->err);
    return r < 0 ? r : answer_ok(rq);
}

int handle_openapi(struct request *rq) {
    rq->text = malloc(openapi_json_len + 1);
    if (!rq->text)
        return sp_error_set(&rq->err, SP_E_UNAVAILABLE, "out of memory");
    memcpy(rq->text, openapi_json, openapi_json_len);
    rq->text[openapi_json_len] = '\0';
    rq->text_len = openapi_json_len;
    rq->status = 200;
    return 0;
}

int handle_metrics(struct request *rq) {
    _cleanup_buf_ struct buf out = {0};
    struct store_sums sums = {0};
    if (!atomic_load(&rq->c->is_ready))
        return sp_error_set(&rq->err, SP_E_UNAVAILABLE, "the database is not ready");
    int r = maintenance_sums(rq->db, &sums, &rq->err);
    if (r < 0)
        return r;
    buf_init(&out, METRICS_MAX);
    metrics_print(&rq->c->metrics, &sums, routes_metric_name, &out);
    if (out.failed)
        return sp_error_set(&rq->err, SP_E_INTERNAL, "the metrics do not fit");
    rq->text_len = out.len;
    rq->text = buf_steal(&out);
    rq->content_type = "text/plain; version=0.0.4; charset=utf-8";
    rq->status = 200;
    return 0;
}
