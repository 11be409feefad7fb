/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots as objects of their own: list, read, describe, remove. They are taken by handle_lifecycle.c. */
#include "base/text.h"
#include "control/accepted.h"
#include "control/handlers.h"
#include "control/render.h"
#include "store/snapshots.h"

static int answer(struct request *rq, const char *id, int status) {
    _cleanup_result_ struct store_result *res = NULL;
    struct snapshot x;
    int r = snapshot_get(rq->db, id, rq->auth.tenant_id, false, &res, &x, &rq->err);
    if (r < 0)
        return r;
    rq->answer = render_snapshot(&x);
    rq->status = status;
    (void)text_copy(rq->object_id, sizeof(rq->object_id), id);
    return 0;
}

int handle_snapshot_get(struct request *rq) {
    return answer(rq, request_param(rq, "snapshot_id"), 200);
}

int handle_snapshot_list(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct snapshot_filter f = {.tenant_id = rq->auth.tenant_id,
                                .sandbox_id = request_query(rq, "sandbox_id"),
                                .kind = request_query(rq, "kind"),
                                .state = request_query(rq, "state")};
    struct store_page page = request_page(rq);
    char cursor[STORE_CURSOR_SIZE] = "";
    int n = 0;
    int r = snapshot_list(rq->db, &f, &page, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    for (int i = 0; i < n && r == 0; i++) {
        struct snapshot x;
        r = snapshot_row(res, i, &x, &rq->err);
        if (r == 0)
            (void)json_array_append_new(items, render_snapshot(&x));
        if (r == 0 && i + 1 == (int)page.limit)
            (void)store_cursor_format(cursor, x.created_us, x.id);
    }
    rq->answer = render_page(items, cursor);
    rq->status = 200;
    return r;
}

int handle_snapshot_update(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    const char *id = request_param(rq, "snapshot_id");
    json_t *name = json_object_get(rq->body, "name");
    struct snapshot x;
    int r = snapshot_get(rq->db, id, rq->auth.tenant_id, true, &res, &x, &rq->err);
    if (r < 0)
        return r;
    if (x.state == SNAPSHOT_DELETING)
        return request_problem(rq, PROBLEM_GONE, "", "the snapshot is deleting");
    _cleanup_json_ json_t *metadata = accepted_merge(x.metadata, json_object_get(rq->body, "metadata"));
    r = accepted_check_metadata(rq, metadata);
    if (r < 0)
        return r;
    _cleanup_free_ char *text = json_print(metadata);
    r = snapshot_describe(rq->db, id, name ? json_string_value(name) : x.name, text, &rq->err);
    return r < 0 ? r : answer(rq, id, 200);
}

int handle_snapshot_delete(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL, *uses = NULL;
    const char *id = request_param(rq, "snapshot_id"), *why = NULL;
    struct snapshot x;
    int r = snapshot_get(rq->db, id, rq->auth.tenant_id, true, &res, &x, &rq->err);
    if (r < 0)
        return r;
    if (x.state == SNAPSHOT_CREATING) {
        if (x.operation_id)
            (void)text_copy(rq->problem_operation, sizeof(rq->problem_operation), x.operation_id);
        return request_problem(rq, PROBLEM_SNAPSHOT_IN_USE, "", "the snapshot is being made");
    }
    if (x.state != SNAPSHOT_DELETING) {
        r = snapshot_in_use(rq->db, &x, &uses, &why, &rq->err);
        if (r == 0 && why)
            return request_problem(rq, PROBLEM_SNAPSHOT_IN_USE, "", "%s", why);
        if (r == 0)
            r = snapshot_begin_delete(rq->db, &x, &rq->err);
    }
    return r < 0 ? r : answer(rq, id, 202);
}
