/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of accepted calls, and the checks before them. */
#include "base/text.h"
#include "control/accepted.h"
#include "control/handlers.h"
#include "control/render.h"
#include "model/policy.h"
#include "model/requests.h"
#include "store/nodes.h"
#include <ctype.h>
#include <string.h>

#define DEFAULT_VCPUS 1
#define DEFAULT_MEMORY_MIB 512

/* ---- the answer ---- */

static int put_snapshot(struct request *rq, json_t *o, const char *id) {
    _cleanup_result_ struct store_result *res = NULL;
    struct snapshot x;
    int r = snapshot_get(rq->db, id ? id : "", rq->auth.tenant_id, false, &res, &x, &rq->err);
    if (r == 0)
        put_new(o, "snapshot", render_snapshot(&x));
    return request_map(rq, r, SP_E_NOT_FOUND, PROBLEM_GONE, ""); /* removed since */
}

static void put_children(json_t *o, const char *text) {
    _cleanup_json_ json_t *children = json_of_text(text, json_array());
    json_t *items = json_array(), *child;
    size_t i;
    json_array_foreach (children, i, child) {
        json_t *item = json_object();
        put_text(item, "sandbox_id", body_text(child, "sandbox_id"));
        put_text(item, "operation_id", body_text(child, "operation_id"));
        (void)json_array_append_new(items, item);
    }
    put_new(o, "children", items);
}

static int answer(struct request *rq, const char *operation_id) {
    _cleanup_result_ struct store_result *res = NULL;
    struct operation op;
    struct sandbox b;
    int r = sandbox_get_by_operation(rq->db, operation_id, rq->auth.tenant_id, &res, &op, &b, &rq->err);
    if (r < 0)
        return r;
    json_t *o = rq->answer = json_object();
    put_text(o, "operation_id", op.id);
    put_new(o, "operation", render_operation(&op));
    put_new(o, "sandbox", render_sandbox(&b));
    rq->status = 202;
    rq->is_settled = operation_is_final(op.state);
    (void)text_copy(rq->object_id, sizeof(rq->object_id), b.id);
    if (op.kind == OPERATION_SNAPSHOT)
        r = put_snapshot(rq, o, op.snapshot_id);
    if (op.kind == OPERATION_FORK)
        put_children(o, op.children);
    return r;
}

int refresh_accepted(struct request *rq) {
    return answer(rq, rq->wait_key);
}

int accepted_begin(struct request *rq, const char *operation_id) {
    rq->wait_kind = 'o';
    (void)text_copy(rq->wait_key, sizeof(rq->wait_key), operation_id);
    return answer(rq, operation_id);
}

/* ---- room ---- */

int accepted_check_quota(struct request *rq, uint64_t count, uint64_t vcpus, uint64_t memory_mib) {
    _cleanup_result_ struct store_result *res = NULL;
    uint64_t machines = count ? count : 1;
    struct tenant t;
    int r = tenant_get(rq->db, rq->auth.tenant_id, true, &res, &t, &rq->err);
    if (r < 0)
        return request_map(rq, r, SP_E_NOT_FOUND, PROBLEM_UNAUTHORIZED, "Authorization"); /* removed just now */
    const struct {
        const char *name;
        uint64_t used, more, max;
    } quotas[] = {{"max_sandboxes", t.sandboxes, count, t.quotas.max_sandboxes},
                  {"max_vcpus", t.vcpus, vcpus * machines, t.quotas.max_vcpus},
                  {"max_memory_mib", t.memory_mib, memory_mib * machines, t.quotas.max_memory_mib}};
    for (size_t i = 0; i < ARRAY_SIZE(quotas); i++)
        if (quotas[i].more && quotas[i].used + quotas[i].more > quotas[i].max) {
            rq->retry_after_s = NO_ROOM_RETRY_S;
            return request_problem(rq, PROBLEM_QUOTA_EXCEEDED, quotas[i].name,
                                   "the tenant uses %llu of %llu (%s), %llu more were asked for",
                                   (unsigned long long)quotas[i].used, (unsigned long long)quotas[i].max,
                                   quotas[i].name, (unsigned long long)quotas[i].more);
        }
    return 0;
}

int accepted_check_room(struct request *rq, const char *node_id, uint64_t count, uint64_t vcpus, uint64_t memory_mib) {
    bool taken = false;
    int r = node_take_room(rq->db, node_id, count, vcpus, memory_mib, &taken, &rq->err);
    if (r < 0 || taken)
        return r;
    rq->retry_after_s = NO_ROOM_RETRY_S;
    return request_problem(rq, PROBLEM_NO_CAPACITY, "", "node %s has no room for %llu times %llu vCPUs and %llu MiB",
                           node_id, (unsigned long long)count, (unsigned long long)vcpus,
                           (unsigned long long)memory_mib);
}

/* ---- new sandboxes ---- */

/* A host name out of the sandbox's name, else out of its id. */
static void make_hostname(char dst[64], const char *name, const char *id) {
    size_t n = 0;
    for (const char *p = name ? name : id; *p && n < 63; p++)
        dst[n++] = isalnum((unsigned char)*p) ? (char)tolower((unsigned char)*p) : '-';
    while (n > 1 && dst[n - 1] == '-')
        n--;
    dst[n] = '\0';
}

void accepted_identity(struct new_identity *ret, const char *name) {
    unsigned char bits[16];
    id_new(ret->id, ID_SANDBOX);
    id_new(ret->operation_id, ID_OPERATION);
    random_bytes(bits, sizeof(bits));
    text_hex(ret->machine_id, bits, sizeof(bits));
    make_hostname(ret->hostname, name, ret->id);
}

static uint64_t resource(const json_t *body, const json_t *manifest, const char *name, uint64_t fallback) {
    uint64_t from_template = body_uint(json_object_get(manifest, "resources"), name, fallback);
    return body_uint(json_object_get(body, "resources"), name, from_template);
}

void accepted_resources(const json_t *body, const json_t *manifest, uint64_t *ret_vcpus, uint64_t *ret_memory_mib) {
    *ret_vcpus = resource(body, manifest, "vcpus", DEFAULT_VCPUS);
    *ret_memory_mib = resource(body, manifest, "memory_mib", DEFAULT_MEMORY_MIB);
}

char *accepted_member(const json_t *body, const char *name) {
    json_t *v = json_object_get(body, name);
    _cleanup_json_ json_t *empty = json_object();
    return json_print(v ? v : empty);
}

/* ---- descriptions ---- */

json_t *accepted_merge(const char *old_text, json_t *patch) {
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

int accepted_check_metadata(struct request *rq, json_t *metadata) {
    _cleanup_json_ json_t *as_created = json_pack("{s:O}", "metadata", metadata);
    return validate_body(&request_snapshot_create, as_created, &rq->err);
}

int accepted_lifecycle(struct request *rq, const char *base_text, const json_t *fields, struct sandbox_description *ret,
                       char **ret_text) {
    struct lifecycle_policy p = lifecycle_policy_default();
    _cleanup_json_ json_t *base = json_of_text(base_text, json_object());
    int r = request_check_lifecycle(fields, &rq->err);
    if (r < 0)
        return r;
    lifecycle_policy_merge(&p, base);
    lifecycle_policy_merge(&p, fields);
    _cleanup_json_ json_t *whole = lifecycle_policy_print(&p);
    *ret_text = json_print(whole);
    ret->lifecycle = *ret_text;
    ret->idle_s = lifecycle_policy_idle_s(&p);
    ret->life_s = p.max_life_s;
    ret->checkpoint_s = p.checkpoint_s;
    return 0;
}
