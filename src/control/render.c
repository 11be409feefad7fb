/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of the answers. Order of members is the order of the documentation. */
#include "control/render.h"
#include "base/clock.h"
#include "model/policy.h"
#include "model/scopes.h"
#include <string.h>

#define TEXT_MAX (1u << 20)

void put_new(json_t *obj, const char *key, json_t *value) {
    if (!value || json_object_set_new(obj, key, value) < 0)
        abort();
}

void put_text(json_t *obj, const char *key, const char *value) {
    /* A text that is no UTF-8 cannot come out of a UTF-8 database; it would be shown as null. */
    json_t *v = value ? json_string(value) : json_null();
    put_new(obj, key, v ? v : json_null());
}

void put_int(json_t *obj, const char *key, int64_t value) {
    put_new(obj, key, json_integer(value));
}

void put_bool(json_t *obj, const char *key, bool value) {
    put_new(obj, key, json_boolean(value));
}

void put_time(json_t *obj, const char *key, int64_t ms) {
    char text[CLOCK_RFC3339_SIZE];
    put_text(obj, key, ms ? clock_rfc3339(text, (uint64_t)ms * NSEC_PER_MSEC) : NULL);
}

json_t *json_of_text(const char *text, json_t *fallback) {
    json_t *v = NULL;
    if (!text || json_parse(text, strlen(text), TEXT_MAX, &v, NULL) < 0)
        return fallback;
    json_decref(fallback);
    return v;
}

static json_t *failure(const char *code, const char *message) {
    if (!code)
        return json_null();
    json_t *o = json_object();
    put_text(o, "code", code);
    put_text(o, "message", message ? message : "");
    return o;
}

/* Stored by an older version, or by this one: every field is there. */
static void put_lifecycle(json_t *o, const char *text) {
    struct lifecycle_policy p = lifecycle_policy_default();
    _cleanup_json_ json_t *fields = json_of_text(text, json_object());
    lifecycle_policy_merge(&p, fields);
    put_new(o, "lifecycle", lifecycle_policy_print(&p));
}

static void put_parent(json_t *o, const struct sandbox *b) {
    json_t *parent = json_null();
    if (b->parent_sandbox_id && b->parent_snapshot_id) {
        parent = json_object();
        put_text(parent, "sandbox_id", b->parent_sandbox_id);
        put_text(parent, "snapshot_id", b->parent_snapshot_id);
    }
    put_new(o, "parent", parent);
}

static void put_resources(json_t *o, uint64_t vcpus, uint64_t memory_mib) {
    json_t *resources = json_object();
    put_int(resources, "vcpus", (int64_t)vcpus);
    put_int(resources, "memory_mib", (int64_t)memory_mib);
    put_new(o, "resources", resources);
}

json_t *render_sandbox(const struct sandbox *b) {
    json_t *o = json_object(), *template = json_object();
    put_text(o, "id", b->id);
    put_text(o, "name", b->name);
    put_text(o, "state", sandbox_state_name(b->state));
    put_bool(o, "ready", b->ready);
    put_text(template, "name", b->template_name);
    put_text(template, "tag", b->template_tag);
    put_text(template, "digest", b->digest);
    put_new(o, "template", template);
    put_resources(o, b->vcpus, b->memory_mib);
    put_new(o, "metadata", json_of_text(b->metadata, json_object()));
    put_text(o, "node_id", b->node_id);
    put_int(o, "generation", (int64_t)b->generation);
    put_text(o, "operation_id", b->operation_id);
    put_new(o, "error", failure(b->error_code, b->error_message));
    if (b->accelerator)
        put_text(o, "accelerator", b->accelerator);
    if (b->kernel)
        put_text(o, "kernel", b->kernel);
    if (b->vmm)
        put_text(o, "vmm", b->vmm);
    if (b->timings)
        put_new(o, "timings", json_of_text(b->timings, json_object()));
    put_lifecycle(o, b->lifecycle);
    put_parent(o, b);
    put_text(o, "snapshot_id", b->last_snapshot_id);
    put_time(o, "active_at", b->active_ms);
    put_int(o, "streams", (int64_t)b->streams);
    put_text(o, "start_kind", b->start_kind);
    put_time(o, "created_at", b->created_ms);
    put_time(o, "updated_at", b->updated_ms);
    put_time(o, "started_at", b->started_ms);
    put_time(o, "deleted_at", b->deleted_ms);
    return o;
}

static void put_ms(json_t *o, const char *key, int64_t from_us, int64_t to_us) {
    if (from_us && to_us)
        put_new(o, key, json_real((double)(to_us > from_us ? to_us - from_us : 0) / 1000));
}

/* What the node said of its steps, and the time each side had it. */
static json_t *operation_timings(const struct operation *op) {
    json_t *o = json_of_text(op->timings, json_object());
    put_ms(o, "control_pending_ms", op->accepted_us, op->started_us);
    put_ms(o, "control_running_ms", op->started_us, op->finished_us);
    put_ms(o, "control_total_ms", op->accepted_us, op->finished_us);
    return o;
}

json_t *render_operation(const struct operation *op) {
    json_t *o = json_object();
    put_text(o, "id", op->id);
    put_text(o, "sandbox_id", op->sandbox_id);
    put_text(o, "kind", operation_kind_name(op->kind));
    put_text(o, "state", operation_state_name(op->state));
    put_new(o, "error", failure(op->error_code, op->error_message));
    put_time(o, "accepted_at", op->accepted_ms);
    put_time(o, "started_at", op->started_ms);
    put_time(o, "finished_at", op->finished_ms);
    put_time(o, "deadline_at", op->deadline_ms);
    put_text(o, "reason", operation_reason_name(op->reason));
    put_text(o, "snapshot_id", op->snapshot_id);
    put_text(o, "start_kind", op->start_kind);
    put_new(o, "timings", operation_timings(op));
    if (op->kind == OPERATION_FORK)
        put_new(o, "children", json_of_text(op->children, json_array()));
    return o;
}

static void put_size(json_t *o, const char *key, bool has, int64_t value) {
    put_new(o, key, has ? json_integer(value) : json_null());
}

json_t *render_snapshot(const struct snapshot *x) {
    json_t *o = json_object(), *template = json_object();
    put_text(o, "id", x->id);
    put_text(o, "sandbox_id", x->sandbox_id);
    put_text(o, "name", x->name);
    put_text(o, "kind", snapshot_kind_name(x->kind));
    put_text(o, "content", snapshot_content_name(x->content));
    put_text(o, "state", snapshot_state_name(x->state));
    put_int(o, "generation", (int64_t)x->generation);
    put_text(o, "parent_id", x->parent_id);
    put_text(o, "node_id", x->node_id);
    put_size(o, "memory_bytes", x->has_sizes, x->memory_bytes);
    put_size(o, "disk_bytes", x->has_sizes, x->disk_bytes);
    put_size(o, "exclusive_bytes", x->has_sizes, x->exclusive_bytes);
    put_size(o, "stall_us", x->has_sizes, x->stall_us);
    put_text(template, "digest", x->digest);
    put_new(o, "template", template);
    put_resources(o, x->vcpus, x->memory_mib);
    put_new(o, "error", failure(x->error_code, x->error_message));
    put_new(o, "metadata", json_of_text(x->metadata, json_object()));
    put_time(o, "created_at", x->created_ms);
    put_time(o, "ready_at", x->ready_ms);
    return o;
}

json_t *render_pool(const struct pool *p) {
    json_t *o = json_object(), *template = json_object();
    put_text(o, "id", p->id);
    put_text(template, "name", p->template_name);
    put_text(template, "tag", p->template_tag);
    put_text(template, "digest", p->digest);
    put_new(o, "template", template);
    put_resources(o, p->vcpus, p->memory_mib);
    put_int(o, "size", (int64_t)p->size);
    put_new(o, "nodes", json_of_text(p->nodes, json_array()));
    put_time(o, "created_at", p->created_ms);
    return o;
}

/* A field of the request, or what it means when it was not given. */
static void put_given(json_t *o, const json_t *command, const char *key, json_t *fallback) {
    json_t *v = json_object_get(command, key);
    put_new(o, key, v ? json_incref(v) : json_incref(fallback));
    json_decref(fallback);
}

static void put_optional_int(json_t *o, const char *key, bool has, int64_t value) {
    put_new(o, key, has ? json_integer(value) : json_null());
}

json_t *render_session(const struct session *x) {
    _cleanup_json_ json_t *command = json_of_text(x->command, json_object());
    json_t *o = json_object();
    put_text(o, "id", x->id);
    put_text(o, "sandbox_id", x->sandbox_id);
    put_text(o, "process_id", x->process_id);
    put_text(o, "state", session_state_name(x->state));
    put_given(o, command, "command", json_string(""));
    put_given(o, command, "args", json_array());
    put_given(o, command, "cwd", json_null());
    put_given(o, command, "user", json_null());
    put_given(o, command, "pty", json_null());
    put_given(o, command, "stdin", json_false());
    put_given(o, command, "timeout_s", json_null());
    put_given(o, command, "on_disconnect", json_string("keep"));
    put_text(o, "attach_url", x->attach_url);
    put_optional_int(o, "pid", x->pid != 0, x->pid);
    put_optional_int(o, "exit_code", x->has_exit_code, x->exit_code);
    put_optional_int(o, "signal", x->has_signal, x->signal);
    put_text(o, "reason", x->reason);
    put_time(o, "created_at", x->created_ms);
    put_time(o, "started_at", x->started_ms);
    put_time(o, "exited_at", x->exited_ms);
    put_time(o, "expires_at", x->expires_ms);
    return o;
}

json_t *render_template(const struct template *t) {
    json_t *o = json_object();
    put_text(o, "id", t->id);
    put_text(o, "name", t->name);
    put_text(o, "digest", t->digest);
    put_new(o, "tags", json_of_text(t->tags, json_array()));
    put_int(o, "size_bytes", (int64_t)t->size_bytes);
    put_new(o, "manifest", json_of_text(t->manifest, json_object()));
    put_bool(o, "shared", t->owner[0] == '\0');
    put_time(o, "created_at", t->created_ms);
    return o;
}

json_t *render_template_tag(const char *name, const struct template_tag *t) {
    json_t *o = json_object();
    put_text(o, "name", name);
    put_text(o, "tag", t->tag);
    put_text(o, "digest", t->digest);
    put_time(o, "updated_at", t->updated_ms);
    return o;
}

json_t *render_tenant(const struct tenant *t) {
    json_t *o = json_object(), *quotas = json_object(), *usage = json_object();
    put_text(o, "id", t->id);
    put_text(o, "name", t->name);
    put_int(quotas, "max_sandboxes", (int64_t)t->quotas.max_sandboxes);
    put_int(quotas, "max_vcpus", (int64_t)t->quotas.max_vcpus);
    put_int(quotas, "max_memory_mib", (int64_t)t->quotas.max_memory_mib);
    put_int(quotas, "max_sessions_per_sandbox", (int64_t)t->quotas.max_sessions_per_sandbox);
    put_int(quotas, "requests_per_second", (int64_t)t->quotas.requests_per_second);
    put_new(o, "quotas", quotas);
    put_int(usage, "sandboxes", (int64_t)t->sandboxes);
    put_int(usage, "vcpus", (int64_t)t->vcpus);
    put_int(usage, "memory_mib", (int64_t)t->memory_mib);
    put_new(o, "usage", usage);
    put_time(o, "created_at", t->created_ms);
    return o;
}

json_t *render_token(const struct token *t) {
    json_t *o = json_object();
    put_text(o, "id", t->id);
    put_text(o, "tenant_id", t->tenant_id);
    put_text(o, "name", t->name);
    put_new(o, "scopes", scopes_to_json(t->scopes));
    put_text(o, "state", t->is_revoked ? "revoked" : t->is_expired ? "expired" : "active");
    put_time(o, "created_at", t->created_ms);
    put_time(o, "expires_at", t->expires_ms);
    put_time(o, "rotated_at", t->rotated_ms);
    put_time(o, "revoked_at", t->revoked_ms);
    put_time(o, "last_used_at", t->last_used_ms);
    return o;
}

static void put_spare(json_t *o, const struct node *n) {
    json_t *garbage = json_null(), *spare = json_object();
    if (n->has_garbage) {
        garbage = json_object();
        put_int(garbage, "snapshots", (int64_t)n->garbage_snapshots);
        put_int(garbage, "bytes", (int64_t)n->garbage_bytes);
    }
    put_new(o, "garbage", garbage);
    put_int(spare, "warm", (int64_t)n->warm);
    put_int(spare, "filling", (int64_t)n->filling);
    put_int(spare, "target", (int64_t)n->target);
    put_new(o, "spare", spare);
}

json_t *render_node(const struct node *n) {
    json_t *o = json_object(), *capacity = json_object(), *allocated = json_object();
    put_text(o, "id", n->id);
    put_text(o, "state", n->is_live ? "ready" : "lost");
    put_text(o, "hostname", n->hostname);
    put_text(o, "version", n->version);
    put_text(o, "accelerator", n->accelerator);
    put_text(o, "vmm", n->vmm);
    put_new(o, "kernels", json_of_text(n->kernels, json_array()));
    put_int(capacity, "vcpus", (int64_t)n->capacity.vcpus);
    put_int(capacity, "memory_mib", (int64_t)n->capacity.memory_mib);
    put_int(capacity, "disk_mib", (int64_t)n->capacity.disk_mib);
    put_int(capacity, "max_sandboxes", (int64_t)n->capacity.max_sandboxes);
    put_new(o, "capacity", capacity);
    put_int(allocated, "sandboxes", (int64_t)n->used_sandboxes);
    put_int(allocated, "vcpus", (int64_t)n->used_vcpus);
    put_int(allocated, "memory_mib", (int64_t)n->used_memory_mib);
    put_new(o, "allocated", allocated);
    put_spare(o, n);
    put_text(o, "gateway_url", n->gateway_url);
    put_time(o, "registered_at", n->registered_ms);
    put_time(o, "last_seen_at", n->last_seen_ms);
    return o;
}

json_t *render_page(json_t *items, const char *cursor) {
    json_t *o = json_object();
    put_new(o, "items", items);
    put_text(o, "next_cursor", *cursor ? cursor : NULL);
    return o;
}
