/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes call: register, desired, snapshots, and the clock (spec/internal-api.md). Fields we do not know are ignored: a node may be
 * newer than we are. */
#include "base/log.h"
#include "base/text.h"
#include "control/handlers.h"
#include "control/internal.h"
#include "control/render.h"
#include "model/limits.h"
#include "store/lifecycle.h"
#include "store/nodes.h"
#include "store/policies.h"
#include "store/snapshots.h"
#include <string.h>

#define MAX_MIB (1ull << 40)
#define SHORT 128
#define DETAILS_MAX (1u << 20) /* of environments and manifests in one list */

/* ---- register ---- */

int internal_read_capacity(struct request *rq, const json_t *body, struct node_capacity *ret) {
    json_t *c = NULL;
    int r = json_get_opt_object(body, "", "capacity", &c, &rq->err);
    if (r == 0 && !c)
        r = sp_error_field(&rq->err, SP_E_INVALID, "capacity", "capacity is required");
    if (r == 0)
        r = json_get_u64(c, "capacity", "vcpus", 1, 1u << 20, &ret->vcpus, &rq->err);
    if (r == 0)
        r = json_get_u64(c, "capacity", "memory_mib", 0, MAX_MIB, &ret->memory_mib, &rq->err);
    if (r == 0)
        r = json_get_u64(c, "capacity", "disk_mib", 0, MAX_MIB, &ret->disk_mib, &rq->err);
    if (r == 0)
        r = json_get_u64(c, "capacity", "max_sandboxes", 0, 1u << 20, &ret->max_sandboxes, &rq->err);
    return r;
}

static int register_in_transaction(struct store *s, void *ctx, struct sp_error *err) {
    struct node_report *n = ctx;
    bool rebooted = false;
    int r = node_register(s, n, &rebooted, err);
    if (r == 0)
        log_event(LOG_L_INFO, "node_registered", "node_id", n->id, "rebooted", rebooted ? "yes" : "no", NULL);
    return r;
}

int handle_register(struct request *rq) {
    struct node_report n = {.id = request_param(rq, "node_id")};
    json_t *kernels = NULL;
    const struct {
        const char *key;
        const char **ret;
        size_t max;
    } texts[] = {{"boot_id", &n.boot_id, SHORT}, {"hostname", &n.hostname, 255},
                 {"version", &n.version, SHORT}, {"accelerator", &n.accelerator, SHORT},
                 {"vmm", &n.vmm, SHORT},         {"gateway_url", &n.gateway_url, 255}};
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(texts); i++)
        r = json_get_string(rq->body, "", texts[i].key, 1, texts[i].max, texts[i].ret, &rq->err);
    if (r == 0)
        r = json_get_opt_array(rq->body, "", "kernels", 16, &kernels, &rq->err);
    if (r == 0)
        r = internal_read_capacity(rq, rq->body, &n.capacity);
    if (r < 0)
        return r;
    _cleanup_json_ json_t *none = json_array();
    _cleanup_free_ char *text = json_print(kernels ? kernels : none);
    n.kernels = text;
    r = store_transaction(rq->db, true, register_in_transaction, &n, &rq->err);
    if (r < 0)
        return r;
    rq->answer = json_object();
    put_text(rq->answer, "node_id", n.id);
    rq->status = 200;
    return 0;
}

/* ---- desired ---- */

/* A failed sandbox holds nothing on its node: the node is told to remove it, the row stays. */
static const char *aim(enum sandbox_state s) {
    switch (s) {
    case SANDBOX_CREATING:
    case SANDBOX_RUNNING:
    case SANDBOX_WAKING:
        return "running";
    case SANDBOX_PAUSING:
    case SANDBOX_PAUSED:
        return "paused";
    case SANDBOX_SUSPENDING:
    case SANDBOX_SUSPENDED:
        return "suspended";
    case SANDBOX_DELETING:
    case SANDBOX_DELETED:
    case SANDBOX_FAILED:
    case SANDBOX_STATE_COUNT_:
        break;
    }
    return "deleted";
}

/* A list in the making. What only a start needs comes with every sandbox while the list is small; beyond that with those
 * still to be started, so that the list stays below the bound on bodies. */
struct details {
    size_t bytes;
    const char *manifest_text; /* the last manifest, which the next row's mostly is too */
    json_t *manifest;
};

static bool takes_details(const struct desired *d, struct details *l) {
    bool starts = d->state == SANDBOX_CREATING || d->state == SANDBOX_WAKING;
    if (strcmp(aim(d->state), "deleted") == 0)
        return false;
    l->bytes += strlen(d->env) + (d->manifest ? strlen(d->manifest) : 0);
    return starts || l->bytes < DETAILS_MAX;
}

static json_t *manifest_of(const struct desired *d, struct details *l) {
    if (!d->manifest)
        return json_object();
    if (!l->manifest || strcmp(l->manifest_text, d->manifest) != 0) {
        json_decref(l->manifest);
        l->manifest = json_of_text(d->manifest, json_object());
        l->manifest_text = d->manifest;
    }
    return json_incref(l->manifest);
}

static void put_snapshots(json_t *o, const struct desired *d) {
    json_t *start = json_null(), *snapshot = json_null();
    if (d->start_id) {
        start = json_object();
        put_text(start, "snapshot_id", d->start_id);
        put_text(start, "content", d->start_content ? d->start_content : snapshot_content_name(CONTENT_FULL));
    }
    if (d->snapshot_id) {
        snapshot = json_object();
        put_text(snapshot, "id", d->snapshot_id);
        put_text(snapshot, "kind", d->snapshot_kind);
        put_text(snapshot, "content", d->snapshot_content);
    }
    put_new(o, "start", start);
    put_new(o, "snapshot", snapshot);
}

static json_t *render_desired(const struct desired *d, struct details *l) {
    json_t *o = json_object(), *template = json_object(), *resources = json_object();
    bool details = takes_details(d, l);
    put_text(o, "id", d->id);
    put_int(o, "generation", (int64_t)d->generation);
    put_text(o, "desired", aim(d->state));
    put_text(o, "observed", sandbox_state_name(d->state));
    put_text(o, "operation_id", d->operation_id);
    put_text(o, "operation_kind", d->operation_kind);
    put_time(o, "deadline_at", d->deadline_ms);
    put_snapshots(o, d);
    put_text(template, "digest", d->digest);
    put_new(template, "manifest", details ? manifest_of(d, l) : json_object());
    put_new(o, "template", template);
    put_int(resources, "vcpus", (int64_t)d->vcpus);
    put_int(resources, "memory_mib", (int64_t)d->memory_mib);
    put_new(o, "resources", resources);
    put_new(o, "env", details ? json_of_text(d->env, json_object()) : json_object());
    put_text(o, "hostname", d->hostname);
    put_text(o, "machine_id", d->machine_id);
    return o;
}

int refresh_desired(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    struct desired_list list = {0};
    struct details details = {0};
    int r = node_desired(rq->db, rq->wait_key, &res, &list, &rq->err);
    if (r < 0)
        return r;
    rq->is_settled = list.revision != rq->since;
    rq->status = 200;
    json_t *items = json_array();
    for (int i = 0; r == 0 && i < list.n; i++) {
        struct desired d;
        r = desired_row(res, i, &d, &rq->err);
        if (r == 0)
            (void)json_array_append_new(items, render_desired(&d, &details));
    }
    json_decref(details.manifest);
    rq->answer = json_object();
    put_int(rq->answer, "revision", (int64_t)list.revision);
    put_new(rq->answer, "sandboxes", items);
    put_new(rq->answer, "snapshots_gone", json_of_text(list.gone, json_array()));
    put_new(rq->answer, "pools", json_of_text(list.pools, json_array()));
    return r;
}

int handle_desired(struct request *rq) {
    uint64_t wait = body_uint(rq->query, "wait", 0);
    rq->since = body_uint(rq->query, "since", 0);
    rq->wait_s = (unsigned)(wait < LIMIT_VALUE(desired_hold_s) ? wait : LIMIT_VALUE(desired_hold_s));
    rq->wait_kind = 'n';
    if (!text_copy(rq->wait_key, sizeof(rq->wait_key), request_param(rq, "node_id")))
        return sp_error_field(&rq->err, SP_E_INVALID, "node_id", "node_id is too long");
    return refresh_desired(rq);
}

/* ---- snapshots that the node found ---- */

int handle_node_snapshots(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    _cleanup_free_ const char **ids = NULL;
    const char *unknown = NULL;
    size_t n = 0;
    int r = internal_read_ids(rq, "ids", &ids, &n);
    if (r == 0)
        r = snapshots_unknown(rq->db, request_param(rq, "node_id"), ids, n, &res, &unknown, &rq->err);
    if (r < 0)
        return r;
    rq->answer = json_object();
    put_new(rq->answer, "unknown", json_of_text(unknown, json_array()));
    rq->status = 200;
    return 0;
}

/* ---- the clock of the policies, in tests ---- */

int handle_clock(struct request *rq) {
    uint64_t seconds = 0;
    int64_t offset_s = 0;
    if (!rq->c->has_test_clock)
        return sp_error_set(&rq->err, SP_E_NOT_FOUND, "the clock cannot be moved");
    int r = json_get_u64(rq->body, "", "advance_s", 0, 315360000, &seconds, &rq->err);
    if (r == 0)
        r = policy_clock_advance(rq->db, (int64_t)seconds, &offset_s, &rq->err);
    if (r < 0)
        return r;
    rq->answer = json_object();
    put_int(rq->answer, "offset_s", offset_s);
    rq->status = 200;
    return 0;
}
