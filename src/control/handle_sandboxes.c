/* SPDX-License-Identifier: Apache-2.0 */
/* Sandboxes: create, list, read, describe, delete. */
#include "base/text.h"
#include "control/handlers.h"
#include "control/render.h"
#include "model/limits.h"
#include "model/requests.h"
#include "store/lifecycle.h"
#include "store/nodes.h"
#include "store/operations.h"
#include "store/templates.h"
#include <ctype.h>
#include <string.h>

#define DEFAULT_VCPUS 1
#define DEFAULT_MEMORY_MIB 512
#define NO_ROOM_RETRY_S 5

/* {operation_id, operation, sandbox}, and what a caller may wait for. */
static int answer_accepted(struct request *rq, const char *operation_id) {
    _cleanup_result_ struct store_result *res = NULL;
    struct operation op;
    struct sandbox b;
    int r = sandbox_get_by_operation(rq->db, operation_id, rq->auth.tenant_id, &res, &op, &b, &rq->err);
    if (r < 0)
        return r;
    json_t *o = json_object();
    put_text(o, "operation_id", op.id);
    put_new(o, "operation", render_operation(&op));
    put_new(o, "sandbox", render_sandbox(&b));
    rq->answer = o;
    rq->status = 202;
    rq->is_settled = operation_is_final(op.state);
    (void)text_copy(rq->object_id, sizeof(rq->object_id), b.id);
    return 0;
}

int refresh_sandbox_accepted(struct request *rq) {
    return answer_accepted(rq, rq->wait_key);
}

/* The first answer: from here on the operation may be waited for. */
static int begin_accepted(struct request *rq, const char *operation_id) {
    rq->wait_kind = 'o';
    (void)text_copy(rq->wait_key, sizeof(rq->wait_key), operation_id);
    return answer_accepted(rq, operation_id);
}

/* ---- create ---- */

static int check_quota(struct request *rq, uint64_t vcpus, uint64_t memory_mib) {
    _cleanup_result_ struct store_result *res = NULL;
    struct tenant t;
    int r = tenant_get(rq->db, rq->auth.tenant_id, true, &res, &t, &rq->err);
    if (r < 0)
        return request_map(rq, r, SP_E_NOT_FOUND, PROBLEM_UNAUTHORIZED, "Authorization"); /* removed just now */
    const struct {
        const char *name;
        uint64_t used, more, max;
    } quotas[] = {{"max_sandboxes", t.sandboxes, 1, t.quotas.max_sandboxes},
                  {"max_vcpus", t.vcpus, vcpus, t.quotas.max_vcpus},
                  {"max_memory_mib", t.memory_mib, memory_mib, t.quotas.max_memory_mib}};
    for (size_t i = 0; i < ARRAY_SIZE(quotas); i++)
        if (quotas[i].used + quotas[i].more > quotas[i].max) {
            rq->retry_after_s = NO_ROOM_RETRY_S;
            return request_problem(rq, PROBLEM_QUOTA_EXCEEDED, quotas[i].name,
                                   "the tenant uses %llu of %llu (%s), %llu more were asked for",
                                   (unsigned long long)quotas[i].used, (unsigned long long)quotas[i].max,
                                   quotas[i].name, (unsigned long long)quotas[i].more);
        }
    return 0;
}

/* A host name out of the sandbox's name, else out of its id. */
static void make_hostname(char dst[64], const char *name, const char *id) {
    size_t n = 0;
    for (const char *p = name ? name : id; *p && n < 63; p++)
        dst[n++] = isalnum((unsigned char)*p) ? (char)tolower((unsigned char)*p) : '-';
    while (n > 1 && dst[n - 1] == '-')
        n--;
    dst[n] = '\0';
}

static char *print_member(const json_t *body, const char *name) {
    json_t *v = json_object_get(body, name);
    _cleanup_json_ json_t *empty = json_object();
    return json_print(v ? v : empty);
}

static uint64_t resource(const json_t *body, const json_t *manifest, const char *name, uint64_t fallback) {
    uint64_t from_template = body_uint(json_object_get(manifest, "resources"), name, fallback);
    return body_uint(json_object_get(body, "resources"), name, from_template);
}

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
    struct sandbox_new_row row = *resolved, *n = &row;
    _cleanup_free_ char *metadata = print_member(rq->body, "metadata"), *env = print_member(rq->body, "env");
    char id[ID_SIZE], operation_id[ID_SIZE], hostname[64], node_id[65], machine_id[33];
    unsigned char bits[16];
    int r = place(rq, n, node_id);
    if (r < 0)
        return r;
    id_new(id, ID_SANDBOX);
    id_new(operation_id, ID_OPERATION);
    random_bytes(bits, sizeof(bits));
    text_hex(machine_id, bits, sizeof(bits));
    n->name = body_text(rq->body, "name");
    make_hostname(hostname, n->name, id);
    n->id = id;
    n->operation_id = operation_id;
    n->tenant_id = rq->auth.tenant_id;
    n->metadata = metadata;
    n->env = env;
    n->hostname = hostname;
    n->machine_id = machine_id;
    n->timeout_s = rq->c->settings.create_timeout_s;
    r = lifecycle_create(rq->db, n, &rq->err);
    return r < 0 ? r : begin_accepted(rq, operation_id);
}

int handle_sandbox_create(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    _cleanup_json_ json_t *manifest = NULL;
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
    n.vcpus = resource(rq->body, manifest, "vcpus", DEFAULT_VCPUS);
    n.memory_mib = resource(rq->body, manifest, "memory_mib", DEFAULT_MEMORY_MIB);
    r = check_quota(rq, n.vcpus, n.memory_mib);
    return r < 0 ? r : insert(rq, &n);
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

/* RFC 7396, one level deep: null removes. */
static json_t *merge(const char *old_text, json_t *patch) {
    json_t *merged = json_of_text(old_text, json_object());
    const char *key;
    json_t *value;
    json_object_foreach (patch, key, value) {
        if (json_is_null(value))
            (void)json_object_del(merged, key);
        else
            (void)json_object_set(merged, key, value);
    }
    return merged;
}

/* The result must keep the rules a new sandbox's metadata keep. */
static int check_metadata(struct request *rq, json_t *metadata) {
    _cleanup_json_ json_t *as_created = json_pack("{s:s, s:O}", "template", "x", "metadata", metadata);
    return validate_body(&request_sandbox_create, as_created, &rq->err);
}

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
    _cleanup_json_ json_t *metadata = merge(b.metadata, patch);
    r = check_metadata(rq, metadata);
    if (r < 0)
        return r;
    _cleanup_free_ char *text = json_print(metadata);
    r = sandbox_describe(rq->db, id, name ? json_string_value(name) : b.name, text, &rq->err);
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
        return begin_accepted(rq, b.delete_operation_id);
    id_new(operation_id, ID_OPERATION);
    r = lifecycle_delete(rq->db, &b, operation_id, &rq->err);
    return r < 0 ? r : begin_accepted(rq, operation_id);
}
