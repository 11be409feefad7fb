/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: list, read, wait for. */
#include "base/text.h"
#include "control/handlers.h"
#include "control/render.h"
#include "store/operations.h"

static int answer_operation(struct request *rq, const char *id) {
    _cleanup_result_ struct store_result *res = NULL;
    struct operation op;
    int r = operation_get(rq->db, id, rq->auth.tenant_id, &res, &op, &rq->err);
    if (r < 0)
        return r;
    rq->answer = render_operation(&op);
    rq->status = 200;
    rq->is_settled = operation_is_final(op.state);
    return 0;
}

int handle_operation_get(struct request *rq) {
    const char *id = request_param(rq, "operation_id");
    rq->wait_kind = 'o';
    rq->wait_s = (unsigned)body_uint(rq->query, "wait", 0);
    (void)text_copy(rq->wait_key, sizeof(rq->wait_key), id);
    return answer_operation(rq, id);
}

int refresh_operation(struct request *rq) {
    return answer_operation(rq, rq->wait_key);
}

int handle_operation_list(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct store_page page = request_page(rq);
    char cursor[STORE_CURSOR_SIZE] = "";
    int n = 0;
    int r = operation_list(rq->db, rq->auth.tenant_id, request_query(rq, "sandbox_id"), request_query(rq, "state"),
                           &page, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    for (int i = 0; i < n && r == 0; i++) {
        struct operation op;
        r = operation_row(res, i, &op, &rq->err);
        if (r == 0)
            (void)json_array_append_new(items, render_operation(&op));
        if (r == 0 && i + 1 == (int)page.limit)
            (void)store_cursor_format(cursor, op.accepted_us, op.id);
    }
    rq->answer = render_page(items, cursor);
    rq->status = 200;
    return r;
}
