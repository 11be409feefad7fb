/* SPDX-License-Identifier: Apache-2.0 */
/* Sandboxes: create, list, read, describe, delete. */
#include "base/text.h"
#include "control/accepted.h"
#include "control/handlers.h"
#include "control/render.h"
#include "store/lifecycle.h"
#include "store/nodes.h"
#include "store/snapshots.h"
#include "store/templates.h"
#include <string.h>

/* ---- create ---- */

static int place(struct request *rq, struct sandbox_new_row *n, char node_id[65]) {
    enum placement placement;
    int r = node_place(rq->db, n->vcpus, n->memory_mib, &placement, node_id, &rq->err);
    if (r < 0)
        return r;
    if (placement == PLACE_NO_ROOM) {
        rq->retry_after_s = NO_ROOM_RETRY_S;
        return request_problem(rq, PROBLEM_NO_CAPACITY, "", "no node has room for %llu vCPUs and %llu MiB",
                               (unsigned long long)n->vcpus, (unsigned long long)n->memory_mib);
    }
    n->node_id = placement == PLACED ? node_id : NULL;
    return 0;
}

static int insert(struct request *rq, const struct sandbox_new_row *resolved) {
    struct sandbox_new_row n = *resolved;
    _cleanup_free_ char *metadata = accepted_member(rq->body, "metadata"), *env = accepted_member(rq->body, "env");
    _cleanup_free_ char *lifecycle = NULL;
    struct new_identity who;
    int r = accepted_lifecycle(rq, NULL, json_object_get(rq->body, "lifecycle"), &n.description, &lifecycle);
    if (r < 0)
        return r;
    n.description.name = body_text(rq->body, "name");
    n.description.metadata = metadata;
    accepted_identity(&who, n.description.name);
    n.id = who.id;
    n.operation_id = who.operation_id;
    n.tenant_id = rq->auth.tenant_id;
    n.env = env;
    n.hostname = who.hostname;
    n.machine_id = who.machine_id;
    n.timeout_s = rq->c->settings.create_timeout_s;
    r = lifecycle_create(rq->db, &n, &rq->err);
    return r < 0 ? r : accepted_begin(rq, who.operation_id);
}

static int create_from_template(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    _cleanup_json_ json_t *manifest = NULL;
    char node_id[65];
    struct template_ref ref;
    struct template t;
    struct sandbox_new_row n = {0};
    (void)template_ref_parse(body_text(rq->body, "template"), &ref); /* the pattern has let it pass */
    int r = template_resolve(rq->db, rq->auth.tenant_id, &ref, &res, &t, &rq->err);
    if (r < 0)
        return request_map(rq, r, SP_E_NOT_FOUND, PROBLEM_TEMPLATE_NOT_FOUND, "template");
    manifest = json_of_text(t.manifest, json_object());
    n.template_id = t.id;
    n.template_name = t.name;
    n.template_tag = *ref.tag ? ref.tag : NULL;
    n.digest = t.digest;
    accepted_resources(rq->body, manifest, &n.vcpus, &n.memory_mib);
    r = accepted_check_quota(rq, 1, n.vcpus, n.memory_mib);
    if (r == 0)
        r = place(rq, &n, node_id);
    return r < 0 ? r : insert(rq, &n);
}

/* On the snapshot's node and with its resources. The lock keeps it from being removed meanwhile. */
static int create_from_snapshot(struct request *rq, const char *id) {
    _cleanup_result_ struct store_result *res = NULL;
    struct snapshot x;
    int r = snapshot_get(rq->db, id, rq->auth.tenant_id, true, &res, &x, &rq->err);
    if (r < 0)
        return request_map(rq, r, SP_E_NOT_FOUND, PROBLEM_NOT_FOUND, "snapshot_id");
    if (x.state != SNAPSHOT_READY)
        return request_problem(rq, PROBLEM_WRONG_STATE, "snapshot_id", "the snapshot is %s",
                               snapshot_state_name(x.state));
    struct sandbox_new_row n = {.template_id = x.template_id,
                                .template_name = x.template_name,
                                .template_tag = x.template_tag,
                                .digest = x.digest,
                                .vcpus = x.vcpus,
                                .memory_mib = x.memory_mib,
                                .node_id = x.node_id,
                                .start_snapshot_id = x.id,
                                .parent_sandbox_id = x.sandbox_id};
    r = accepted_check_quota(rq, 1, n.vcpus, n.memory_mib);
    if (r == 0)
        r = accepted_check_room(rq, x.node_id, 1, n.vcpus, n.memory_mib);
    if (r == 0)
        r = snapshot_use(rq->db, x.id, &rq->err);
    return r < 0 ? r : insert(rq, &n);
}

int handle_sandbox_create(struct request *rq) {
    const char *template = body_text(rq->body, "template"), *snapshot_id = body_text(rq->body, "snapshot_id");
    if (!template && !snapshot_id)
        return sp_error_field(&rq->err, SP_E_INVALID, "template", "template is required, or snapshot_id");
    if (template && snapshot_id)
        return sp_error_field(&rq->err, SP_E_INVALID, "snapshot_id", "snapshot_id excludes template");
    if (snapshot_id && json_object_get(rq->body, "resources"))
        return sp_error_field(&rq->err, SP_E_INVALID, "resources",
                              "resources are the snapshot's own: they go with template only");
    return snapshot_id ? create_from_snapshot(rq, snapshot_id) : create_from_template(rq);
}

/* ---- reading ---- */

int handle_sandbox_get(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct sandbox b;
    int r = sandbox_get(rq->db, request_param(rq, "sandbox_id"), rq->auth.tenant_id, false, &res, &b, &rq->err);
    if (r < 0)
        return r;
    rq->answer = render_sandbox(&b);
    rq->status = 200;
    return 0;
}

int handle_sandbox_list(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    json_t *filter = json_object_get(rq->query, "metadata");
    _cleanup_free_ char *metadata = filter ? json_print(filter) : NULL;
    struct sandbox_filter f = {.tenant_id = rq->auth.tenant_id,
                               .state = request_query(rq, "state"),
                               .name = request_query(rq, "name"),
                               .metadata = metadata};
    struct store_page page = request_page(rq);
    char cursor[STORE_CURSOR_SIZE] = "";
    int n = 0;
    int r = sandbox_list(rq->db, &f, &page, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    for (int i = 0; i < n && r == 0; i++) {
        struct sandbox b;
        r = sandbox_row(res, i, &b, &rq->err);
        if (r == 0)
            (void)json_array_append_new(items, render_sandbox(&b));
        if (r == 0 && i + 1 == (int)page.limit)
            (void)store_cursor_format(cursor, b.created_us, b.id);
    }
    rq->answer = render_page(items, cursor);
    rq->status = 200;
    return r;
}

/* ---- describe ---- */

int handle_sandbox_update(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    const char *id = request_param(rq, "sandbox_id");
    json_t *patch = json_object_get(rq->body, "metadata"), *name = json_object_get(rq->body, "name");
    struct sandbox b;
    int r = sandbox_get(rq->db, id, rq->auth.tenant_id, true, &res, &b, &rq->err);
    if (r < 0)
        return r;
    if (b.state == SANDBOX_DELETING || b.state == SANDBOX_DELETED)
        return request_problem(rq, PROBLEM_GONE, "", "the sandbox is %s", sandbox_state_name(b.state));
    struct sandbox_description d = {.name = name ? json_string_value(name) : b.name};
    _cleanup_free_ char *lifecycle = NULL;
    _cleanup_json_ json_t *metadata = accepted_merge(b.metadata, patch);
    r = accepted_check_metadata(rq, metadata);
    if (r == 0)
        r = accepted_lifecycle(rq, b.lifecycle, json_object_get(rq->body, "lifecycle"), &d, &lifecycle);
    if (r < 0)
        return r;
    _cleanup_free_ char *text = json_print(metadata);
    d.metadata = text;
    r = sandbox_describe(rq->db, id, &d, &rq->err);
    if (r == 0)
        r = handle_sandbox_get(rq);
    (void)text_copy(rq->object_id, sizeof(rq->object_id), id);
    return r;
}

/* ---- delete ---- */

int handle_sandbox_delete(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    const char *id = request_param(rq, "sandbox_id");
    char operation_id[ID_SIZE];
    struct sandbox b;
    int r = sandbox_get(rq->db, id, rq->auth.tenant_id, true, &res, &b, &rq->err);
    if (r < 0)
        return r;
    if (b.delete_operation_id)
        return accepted_begin(rq, b.delete_operation_id);
    id_new(operation_id, ID_OPERATION);
    r = lifecycle_delete(rq->db, &b, operation_id, REASON_CLIENT, &rq->err);
    return r < 0 ? r : accepted_begin(rq, operation_id);
}
