/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes call: register, desired, observed (spec/internal-api.md). Fields we do not know are ignored: a node may be
 * newer than we are. */
#include "base/log.h"
#include "base/text.h"
#include "control/handlers.h"
#include "control/render.h"
#include "model/limits.h"
#include "store/lifecycle.h"
#include "store/nodes.h"
#include <string.h>

#define MAX_MIB (1ull << 40)
#define SHORT 128
#define DETAILS_MAX (1u << 20) /* of environments and manifests in one list */

/* ---- register ---- */

static int read_capacity(struct request *rq, const json_t *body, struct node_capacity *ret) {
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
        r = read_capacity(rq, rq->body, &n.capacity);
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
static bool should_exist(enum sandbox_state s) {
    return s != SANDBOX_FAILED && s != SANDBOX_DELETING && s != SANDBOX_DELETED;
}

/* What only a start needs. It comes with every sandbox while the list is small; beyond that with those still to be
 * started, so that the list stays below the bound on bodies. */
static bool takes_details(const struct desired *d, size_t *bytes) {
    if (!should_exist(d->state))
        return false;
    *bytes += strlen(d->env) + (d->manifest ? strlen(d->manifest) : 0);
    return d->state == SANDBOX_CREATING || *bytes < DETAILS_MAX;
}

static json_t *render_desired(const struct desired *d, size_t *bytes) {
    json_t *o = json_object(), *template = json_object(), *resources = json_object();
    bool keep = should_exist(d->state), details = takes_details(d, bytes);
    put_text(o, "id", d->id);
    put_int(o, "generation", (int64_t)d->generation);
    put_text(o, "desired", keep ? "running" : "deleted");
    put_text(o, "observed", sandbox_state_name(d->state));
    put_text(o, "operation_id", d->operation_id);
    put_text(o, "operation_kind", d->operation_kind);
    put_time(o, "deadline_at", d->deadline_ms);
    put_text(template, "digest", d->digest);
    put_new(template, "manifest", details ? json_of_text(d->manifest, json_object()) : json_object());
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
    const char *id = rq->wait_key;
    uint64_t revision = 0;
    int n = 0;
    /* The revision first: a list that is newer than its revision only makes the node ask once more. */
    int r = node_touch(rq->db, id, &revision, &rq->err);
    if (r < 0)
        return r;
    rq->is_settled = revision != rq->since;
    rq->status = 200;
    r = node_desired(rq->db, id, &res, &n, &rq->err);
    if (r < 0)
        return r;
    json_t *items = json_array();
    size_t bytes = 0;
    for (int i = 0; r == 0 && i < n; i++) {
        struct desired d;
        r = desired_row(res, i, &d, &rq->err);
        if (r == 0)
            (void)json_array_append_new(items, render_desired(&d, &bytes));
    }
    rq->answer = json_object();
    put_int(rq->answer, "revision", (int64_t)revision);
    put_new(rq->answer, "sandboxes", items);
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

/* ---- observed ---- */

/* The whole report, read before anything is written. Texts borrow from the body, timings are ours. */
struct report {
    struct request *rq;
    size_t n;
    struct observed *items;
    const char **ids;
    char **timings;
    bool has_capacity;
    struct node_capacity capacity;
    json_t *unknown;
    uint64_t accepted;
};

static void report_done(struct report *rep) {
    for (size_t i = 0; i < rep->n; i++)
        free(rep->timings[i]);
    free(rep->items);
    free(rep->ids);
    free(rep->timings);
    json_decref(rep->unknown);
}

static int read_failure(struct request *rq, const json_t *item, const char *path, struct observed *o) {
    const char *code = "internal";
    json_t *error = NULL;
    char inner[64];
    int r = json_get_opt_object(item, path, "error", &error, &rq->err);
    o->message = "";
    if (r < 0 || o->what.state != OBSERVED_FAILED)
        return r;
    (void)snprintf(inner, sizeof(inner), "%.50s.error", path);
    if (error)
        r = json_get_string(error, inner, "code", 1, SHORT, &code, &rq->err);
    if (r == 0 && error)
        r = json_get_opt_string(error, inner, "message", 0, 1024, "", &o->message, &rq->err);
    if (r == 0 && !failure_parse(code, &o->what.failure))
        log_event(LOG_L_WARN, "unknown_failure_code", "sandbox_id", o->id, "code", code, NULL);
    if (o->what.failure == FAILURE_NONE || o->what.failure == FAILURE_SUPERSEDED)
        o->what.failure = FAILURE_INTERNAL;
    return r;
}

static int read_item(struct request *rq, const json_t *item, size_t i, struct report *rep) {
    struct observed *o = &rep->items[i];
    const char *state = NULL;
    json_t *timings = NULL;
    char path[64];
    (void)snprintf(path, sizeof(path), "sandboxes.%zu", i);
    int r = json_get_string(item, path, "id", 1, 31, &o->id, &rq->err);
    if (r == 0 && !id_is(o->id, ID_SANDBOX))
        r = sp_error_field(&rq->err, SP_E_INVALID, "sandboxes.id", "%s.id must be the id of a sandbox", path);
    if (r == 0)
        r = json_get_u64(item, path, "generation", 1, INT64_MAX, &o->generation, &rq->err);
    if (r == 0)
        r = json_get_string(item, path, "state", 1, 32, &state, &rq->err);
    if (r == 0 && !observed_state_parse(state, &o->what.state))
        r = sp_error_field(&rq->err, SP_E_INVALID, "sandboxes.state",
                           "%s.state must be creating, running, failed or deleted", path);
    if (r == 0)
        r = json_get_opt_bool(item, path, "ready", false, &o->what.ready, &rq->err);
    if (r == 0)
        r = read_failure(rq, item, path, o);
    if (r == 0)
        r = json_get_opt_string(item, path, "accelerator", 0, SHORT, NULL, &o->accelerator, &rq->err);
    if (r == 0)
        r = json_get_opt_string(item, path, "kernel", 0, SHORT, NULL, &o->kernel, &rq->err);
    if (r == 0)
        r = json_get_opt_string(item, path, "vmm", 0, SHORT, NULL, &o->vmm, &rq->err);
    if (r == 0)
        r = json_get_opt_object(item, path, "timings", &timings, &rq->err);
    if (r == 0 && timings && json_object_size(timings) <= 64)
        o->timings = rep->timings[i] = json_print(timings);
    rep->ids[i] = o->id;
    return r;
}

static int read_report(struct request *rq, struct report *rep) {
    json_t *array = NULL;
    int r = json_get_opt_array(rq->body, "", "sandboxes", LIMIT_VALUE(observed_sandboxes), &array, &rq->err);
    if (r < 0)
        return r;
    rep->rq = rq;
    rep->n = json_array_size(array);
    rep->items = calloc(rep->n + 1, sizeof(*rep->items));
    rep->ids = calloc(rep->n + 1, sizeof(*rep->ids));
    rep->timings = calloc(rep->n + 1, sizeof(*rep->timings));
    if (!rep->items || !rep->ids || !rep->timings)
        abort();
    for (size_t i = 0; r == 0 && i < rep->n; i++)
        r = read_item(rq, json_array_get(array, i), i, rep);
    rep->has_capacity = json_is_object(json_object_get(rq->body, "capacity"));
    if (r == 0 && rep->has_capacity)
        r = read_capacity(rq, rq->body, &rep->capacity);
    return r;
}

static int apply_report(struct store *s, void *ctx, struct sp_error *err) {
    struct report *rep = ctx;
    const char *node_id = request_param(rep->rq, "node_id");
    _cleanup_result_ struct store_result *locked = NULL;
    bool poke = false;
    json_decref(rep->unknown);
    rep->unknown = json_array();
    rep->accepted = 0;
    int r = lifecycle_lock_observed(s, rep->ids, rep->n, &locked, err);
    for (size_t i = 0; r == 0 && i < rep->n; i++) {
        enum observed_fit fit;
        r = lifecycle_observe(s, locked, node_id, &rep->items[i], &fit, &poke, err);
        if (r == 0 && fit == OBSERVED_UNKNOWN)
            (void)json_array_append_new(rep->unknown, json_string(rep->items[i].id));
        rep->accepted += r == 0 && fit == OBSERVED_FITS;
    }
    if (r == 0 && rep->has_capacity)
        r = node_set_capacity(s, node_id, &rep->capacity, err);
    if (r == 0 && poke)
        r = node_poke(s, node_id, err);
    return r;
}

int handle_observed(struct request *rq) {
    struct report rep = {0};
    uint64_t revision;
    int r = read_report(rq, &rep);
    if (r == 0)
        r = node_touch(rq->db, request_param(rq, "node_id"), &revision, &rq->err);
    if (r == 0)
        r = store_transaction(rq->db, true, apply_report, &rep, &rq->err);
    if (r == 0) {
        rq->answer = json_object();
        put_int(rq->answer, "accepted", (int64_t)rep.accepted);
        put_new(rq->answer, "unknown", TAKE_PTR(rep.unknown));
        rq->status = 200;
    }
    report_done(&rep);
    return r;
}
