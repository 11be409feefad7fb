/* SPDX-License-Identifier: Apache-2.0 */
/* One row a route. A test compares the public ones with the paths of the OpenAPI document. */
#include "control/routes.h"
#include "base/text.h"
#include "control/handlers.h"
#include "model/limits.h"
#include "model/requests.h"
#include <assert.h>

#define PUBLIC(method_, pattern_, action_, scope_, handler_, ...)                                                      \
    {                                                                                                                  \
        .method = method_, .pattern = pattern_, .action = action_, .auth = AUTH_MANAGEMENT, .scope = scope_,           \
        .handler = handler_, __VA_ARGS__                                                                               \
    }
#define OPEN(pattern_, action_, handler_, ...)                                                                         \
    { .method = "GET", .pattern = pattern_, .action = action_, .auth = AUTH_NONE, .handler = handler_, __VA_ARGS__ }
#define INTERNAL(method_, pattern_, action_, handler_, ...)                                                            \
    {                                                                                                                  \
        .method = method_, .pattern = "/internal/v1" pattern_, .action = action_, .auth = AUTH_INTERNAL,               \
        .handler = handler_, __VA_ARGS__                                                                               \
    }
#define MUTATES .mutates = true
#define VERB MUTATES, .prefers = true, .refresh = refresh_accepted

static const struct api_route public_api[] = {
    PUBLIC("POST", "/v1/sandboxes", "createSandbox", SCOPE_SANDBOXES_WRITE, handle_sandbox_create,
           .body = &request_sandbox_create, MUTATES, .prefers = true, .refresh = refresh_accepted),
    PUBLIC("GET", "/v1/sandboxes", "listSandboxes", SCOPE_SANDBOXES_READ, handle_sandbox_list,
           .query = &query_sandboxes),
    PUBLIC("GET", "/v1/sandboxes/{sandbox_id}", "getSandbox", SCOPE_SANDBOXES_READ, handle_sandbox_get),
    PUBLIC("PATCH", "/v1/sandboxes/{sandbox_id}", "updateSandbox", SCOPE_SANDBOXES_WRITE, handle_sandbox_update,
           .body = &request_sandbox_update, MUTATES),
    PUBLIC("DELETE", "/v1/sandboxes/{sandbox_id}", "deleteSandbox", SCOPE_SANDBOXES_WRITE, handle_sandbox_delete,
           MUTATES, .prefers = true, .refresh = refresh_accepted),
    PUBLIC("POST", "/v1/sandboxes/{sandbox_id}/pause", "pauseSandbox", SCOPE_SANDBOXES_WRITE, handle_pause,
           .body = &request_empty, VERB),
    PUBLIC("POST", "/v1/sandboxes/{sandbox_id}/suspend", "suspendSandbox", SCOPE_SANDBOXES_WRITE, handle_suspend,
           .body = &request_empty, VERB),
    PUBLIC("POST", "/v1/sandboxes/{sandbox_id}/wake", "wakeSandbox", SCOPE_SANDBOXES_WRITE, handle_wake,
           .body = &request_empty, VERB),
    PUBLIC("POST", "/v1/sandboxes/{sandbox_id}/snapshot", "snapshotSandbox", SCOPE_SANDBOXES_WRITE, handle_snapshot,
           .body = &request_snapshot_create, VERB),
    PUBLIC("POST", "/v1/sandboxes/{sandbox_id}/fork", "forkSandbox", SCOPE_SANDBOXES_WRITE, handle_fork,
           .body = &request_fork, VERB),
    PUBLIC("POST", "/v1/sandboxes/{sandbox_id}/rollback", "rollbackSandbox", SCOPE_SANDBOXES_WRITE, handle_rollback,
           .body = &request_rollback, VERB),
    PUBLIC("GET", "/v1/snapshots", "listSnapshots", SCOPE_SANDBOXES_READ, handle_snapshot_list,
           .query = &query_snapshots),
    PUBLIC("GET", "/v1/snapshots/{snapshot_id}", "getSnapshot", SCOPE_SANDBOXES_READ, handle_snapshot_get),
    PUBLIC("PATCH", "/v1/snapshots/{snapshot_id}", "updateSnapshot", SCOPE_SANDBOXES_WRITE, handle_snapshot_update,
           .body = &request_snapshot_update, MUTATES),
    PUBLIC("DELETE", "/v1/snapshots/{snapshot_id}", "deleteSnapshot", SCOPE_SANDBOXES_WRITE, handle_snapshot_delete,
           MUTATES),
    PUBLIC("POST", "/v1/pools", "createPool", SCOPE_ADMIN, handle_pool_create, .body = &request_pool_create, MUTATES),
    PUBLIC("GET", "/v1/pools", "listPools", SCOPE_ADMIN, handle_pool_list),
    PUBLIC("PATCH", "/v1/pools/{pool_id}", "updatePool", SCOPE_ADMIN, handle_pool_update, .body = &request_pool_update,
           MUTATES),
    PUBLIC("DELETE", "/v1/pools/{pool_id}", "deletePool", SCOPE_ADMIN, handle_pool_delete, MUTATES),
    PUBLIC("POST", "/v1/sandboxes/{sandbox_id}/sessions", "createSession", SCOPE_SESSIONS_WRITE, handle_session_create,
           .body = &request_session_create, MUTATES, .seals = true),
    PUBLIC("GET", "/v1/sandboxes/{sandbox_id}/sessions", "listSessions", SCOPE_SANDBOXES_READ, handle_session_list,
           .query = &query_page),
    PUBLIC("GET", "/v1/sessions/{session_id}", "getSession", SCOPE_SANDBOXES_READ, handle_session_get),
    PUBLIC("GET", "/v1/operations", "listOperations", SCOPE_SANDBOXES_READ, handle_operation_list,
           .query = &query_operations),
    PUBLIC("GET", "/v1/operations/{operation_id}", "getOperation", SCOPE_SANDBOXES_READ, handle_operation_get,
           .query = &query_operation, .refresh = refresh_operation),
    PUBLIC("POST", "/v1/templates", "registerTemplate", SCOPE_TEMPLATES_WRITE, handle_template_register,
           .body = &request_template_register, MUTATES),
    PUBLIC("GET", "/v1/templates", "listTemplates", SCOPE_TEMPLATES_READ, handle_template_list,
           .query = &query_templates),
    PUBLIC("GET", "/v1/templates/{name}", "getTemplate", SCOPE_TEMPLATES_READ, handle_template_get),
    PUBLIC("DELETE", "/v1/templates/{name}", "deleteTemplate", SCOPE_TEMPLATES_WRITE, handle_template_delete, MUTATES),
    PUBLIC("GET", "/v1/templates/{name}/releases/{digest}", "getTemplateRelease", SCOPE_TEMPLATES_READ,
           handle_release_get),
    PUBLIC("DELETE", "/v1/templates/{name}/releases/{digest}", "deleteTemplateRelease", SCOPE_TEMPLATES_WRITE,
           handle_release_delete, MUTATES),
    PUBLIC("GET", "/v1/templates/{name}/tags/{tag}", "getTemplateTag", SCOPE_TEMPLATES_READ, handle_tag_get),
    PUBLIC("PUT", "/v1/templates/{name}/tags/{tag}", "setTemplateTag", SCOPE_TEMPLATES_WRITE, handle_tag_set,
           .body = &request_template_tag, MUTATES),
    PUBLIC("DELETE", "/v1/templates/{name}/tags/{tag}", "deleteTemplateTag", SCOPE_TEMPLATES_WRITE, handle_tag_delete,
           MUTATES),
    PUBLIC("POST", "/v1/tenants", "createTenant", SCOPE_ADMIN, handle_tenant_create, .body = &request_tenant_create,
           MUTATES),
    PUBLIC("GET", "/v1/tenants", "listTenants", SCOPE_ADMIN, handle_tenant_list, .query = &query_page),
    PUBLIC("GET", "/v1/tenants/{tenant_id}", "getTenant", 0, handle_tenant_get),
    PUBLIC("PATCH", "/v1/tenants/{tenant_id}", "updateTenant", SCOPE_ADMIN, handle_tenant_update,
           .body = &request_tenant_update, MUTATES),
    PUBLIC("DELETE", "/v1/tenants/{tenant_id}", "deleteTenant", SCOPE_ADMIN, handle_tenant_delete, MUTATES),
    PUBLIC("POST", "/v1/tokens", "createToken", SCOPE_TOKENS_WRITE, handle_token_create, .body = &request_token_create,
           MUTATES, .seals = true),
    PUBLIC("GET", "/v1/tokens", "listTokens", SCOPE_TOKENS_WRITE, handle_token_list, .query = &query_page),
    PUBLIC("DELETE", "/v1/tokens/{token_id}", "revokeToken", SCOPE_TOKENS_WRITE, handle_token_revoke, MUTATES),
    PUBLIC("POST", "/v1/tokens/{token_id}/rotate", "rotateToken", SCOPE_TOKENS_WRITE, handle_token_rotate,
           .body = &request_token_rotate, MUTATES, .seals = true),
    PUBLIC("GET", "/v1/nodes", "listNodes", SCOPE_NODES_READ, handle_node_list),
    OPEN("/healthz", "health", handle_health, .on_loop = true),
    OPEN("/readyz", "ready", handle_ready),
    OPEN("/openapi.json", "describe", handle_openapi, .on_loop = true),
    OPEN("/metrics", "metrics", handle_metrics),
};

static const struct field desired_fields[] = {
    {.name = "since", .type = FIELD_UINT, .max = INT64_MAX},
    {.name = "wait", .type = FIELD_UINT, .max = 60},
};
static const struct field_table query_desired = {.fields = desired_fields, .n_fields = ARRAY_SIZE(desired_fields)};

static const struct api_route internal_api[] = {
    INTERNAL("POST", "/nodes/{node_id}/register", "registerNode", handle_register, .is_raw_json = true),
    INTERNAL("GET", "/nodes/{node_id}/desired", "desired", handle_desired, .query = &query_desired,
             .refresh = refresh_desired),
    INTERNAL("POST", "/nodes/{node_id}/observed", "observed", handle_observed, .is_raw_json = true),
    INTERNAL("POST", "/nodes/{node_id}/snapshots", "nodeSnapshots", handle_node_snapshots, .is_raw_json = true),
    INTERNAL("POST", "/clock", "clock", handle_clock, .is_raw_json = true),
    INTERNAL("POST", "/attach", "attach", handle_attach, .is_raw_json = true),
    INTERNAL("POST", "/sessions/{session_id}/state", "sessionState", handle_session_state, .is_raw_json = true),
    OPEN("/healthz", "health", handle_health, .on_loop = true),
    OPEN("/readyz", "ready", handle_ready),
    OPEN("/metrics", "metrics", handle_metrics),
};

static struct http_route public_routes[ARRAY_SIZE(public_api)], internal_routes[ARRAY_SIZE(internal_api)];

static void fill(struct http_route *dst, const struct api_route *src, size_t n, uint64_t body_max) {
    for (size_t i = 0; i < n; i++) {
        bool takes_body = src[i].body || src[i].is_raw_json;
        assert(!src[i].refresh || src[i].prefers || !src[i].mutates);
        dst[i] = (struct http_route){.method = src[i].method,
                                     .pattern = src[i].pattern,
                                     .handler = request_accept,
                                     .body_max = takes_body ? body_max : 0,
                                     .data = &src[i]};
    }
}

const struct http_route *routes_public(size_t *ret_n) {
    fill(public_routes, public_api, ARRAY_SIZE(public_api), LIMIT_VALUE(body_bytes));
    *ret_n = ARRAY_SIZE(public_api);
    return public_routes;
}

const struct http_route *routes_internal(size_t *ret_n) {
    fill(internal_routes, internal_api, ARRAY_SIZE(internal_api), LIMIT_VALUE(internal_body_bytes));
    *ret_n = ARRAY_SIZE(internal_api);
    return internal_routes;
}

unsigned routes_metric_index(const struct http_route *route) {
    if (route >= public_routes && route < public_routes + ARRAY_SIZE(public_routes))
        return (unsigned)(route - public_routes);
    if (route >= internal_routes && route < internal_routes + ARRAY_SIZE(internal_routes))
        return (unsigned)(ARRAY_SIZE(public_routes) + (size_t)(route - internal_routes));
    return METRICS_ROUTES - 1;
}

/* Health, readiness and metrics of the two listeners would be one label twice: the internal ones are told apart. */
const char *routes_metric_name(unsigned i) {
    static const char *const twice[] = {"internal_health", "internal_ready", "internal_metrics"};
    if (i < ARRAY_SIZE(public_api))
        return public_api[i].action;
    i -= (unsigned)ARRAY_SIZE(public_api);
    if (i >= ARRAY_SIZE(internal_api))
        return NULL;
    size_t first_twice = ARRAY_SIZE(internal_api) - ARRAY_SIZE(twice);
    return i < first_twice ? internal_api[i].action : twice[i - first_twice];
}
_Static_assert(ARRAY_SIZE(public_api) + ARRAY_SIZE(internal_api) < METRICS_ROUTES, "room for one of none");
