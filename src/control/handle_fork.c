/* SPDX-License-Identifier: Apache-2.0 */
/* Fork: one transaction makes the children, each with its own create, and the parent's operation that waits for them all. */
#include "base/text.h"
#include "control/accepted.h"
#include "control/handlers.h"
#include "model/limits.h"
#include "store/snapshots.h"

/* What a child is made of. */
struct plan_of_fork {
    const struct sandbox *parent;
    char operation_id[ID_SIZE], snapshot_id[ID_SIZE]; /* new ones */
    const char *start_id;
    const char *metadata, *env; /* JSON text */
    uint64_t count;
    struct sandbox_description description; /* but for the name */
};

static int insert_child(struct request *rq, const struct plan_of_fork *f, uint64_t index) {
    const char *given = body_text(rq->body, "name");
    struct new_identity who;
    char name[80];
    if (given && f->count > 1)
        (void)text_printf(name, sizeof(name), "%s-%llu", given, (unsigned long long)index);
    else
        (void)text_copy(name, sizeof(name), given ? given : "");
    accepted_identity(&who, given ? name : NULL);
    struct sandbox_new_row n = {.id = who.id,
                                .tenant_id = rq->auth.tenant_id,
                                .operation_id = who.operation_id,
                                .template_id = f->parent->template_id,
                                .template_name = f->parent->template_name,
                                .template_tag = f->parent->template_tag,
                                .digest = f->parent->digest,
                                .vcpus = f->parent->vcpus,
                                .memory_mib = f->parent->memory_mib,
                                .description = f->description,
                                .env = f->env,
                                .hostname = who.hostname,
                                .machine_id = who.machine_id,
                                .node_id = f->parent->node_id,
                                .timeout_s = LIMIT_VALUE(snapshot_timeout_s),
                                .start_snapshot_id = f->start_id,
                                .parent_sandbox_id = f->parent->id,
                                .fork_id = f->operation_id,
                                .fork_index = index};
    n.description.name = given ? name : NULL;
    return lifecycle_create(rq->db, &n, &rq->err);
}

/* Of a running or paused one a snapshot is made; the others have one that they stand on. */
static int begin(struct request *rq, struct plan_of_fork *f) {
    bool has_vm = f->parent->state == SANDBOX_RUNNING || f->parent->state == SANDBOX_PAUSED;
    id_new(f->operation_id, ID_OPERATION);
    id_new(f->snapshot_id, ID_SNAPSHOT);
    struct verb v = {.sandbox = f->parent,
                     .kind = OPERATION_FORK,
                     .operation_id = f->operation_id,
                     .timeout_s = LIMIT_VALUE(snapshot_timeout_s),
                     .snapshot_id = has_vm ? f->snapshot_id : NULL,
                     .snapshot_kind = SNAPSHOT_FORK};
    f->start_id = has_vm ? f->snapshot_id : f->parent->last_snapshot_id;
    int r = lifecycle_begin(rq->db, &v, &rq->err);
    if (r == 0 && !has_vm)
        r = snapshot_use(rq->db, f->start_id, &rq->err);
    for (uint64_t i = 1; r == 0 && i <= f->count; i++)
        r = insert_child(rq, f, i);
    return r < 0 ? r : accepted_begin(rq, f->operation_id);
}

static int fork_of(struct request *rq, const struct sandbox *b, const char *env) {
    _cleanup_free_ char *metadata = NULL, *given_env = NULL, *lifecycle = NULL;
    struct plan_of_fork f = {.parent = b, .count = body_uint(rq->body, "count", 1)};
    int r = accepted_lifecycle(rq, b->lifecycle, NULL, &f.description, &lifecycle);
    if (r < 0)
        return r;
    if (json_object_get(rq->body, "metadata"))
        metadata = accepted_member(rq->body, "metadata");
    if (json_object_get(rq->body, "env"))
        given_env = accepted_member(rq->body, "env");
    f.description.metadata = metadata ? metadata : b->metadata;
    f.env = given_env ? given_env : env;
    r = accepted_check_quota(rq, f.count, b->vcpus, b->memory_mib);
    if (r == 0)
        r = accepted_check_room(rq, b->node_id, f.count, b->vcpus, b->memory_mib);
    return r < 0 ? r : begin(rq, &f);
}

int handle_fork(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL, *env_res = NULL;
    enum verb_rule rule = VERB_WRONG;
    const char *env = NULL;
    struct sandbox b;
    int r = sandbox_get(rq->db, request_param(rq, "sandbox_id"), rq->auth.tenant_id, true, &res, &b, &rq->err);
    if (r == 0)
        r = accepted_check_verb(rq, &b, OPERATION_FORK, &rule);
    if (r == 0)
        r = sandbox_env(rq->db, b.id, &env_res, &env, &rq->err);
    return r < 0 ? r : fork_of(rq, &b, env);
}
