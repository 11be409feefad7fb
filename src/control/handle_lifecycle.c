/* SPDX-License-Identifier: Apache-2.0 */
/* Pause, suspend, wake, snapshot and roll back: is it allowed now, then the intent is recorded. Fork is handle_fork.c. */
#include "base/text.h"
#include "control/accepted.h"
#include "control/handlers.h"
#include "model/limits.h"
#include "model/policy.h"
#include "model/transitions.h"
#include "store/snapshots.h"
#include <string.h>

int accepted_check_verb(struct request *rq, const struct sandbox *b, enum operation_kind kind,
                        enum verb_rule *ret_rule) {
    if (b->state == SANDBOX_DELETING || b->state == SANDBOX_DELETED)
        return request_problem(rq, PROBLEM_GONE, "", "the sandbox is %s", sandbox_state_name(b->state));
    if (b->operation_id) {
        (void)text_copy(rq->problem_operation, sizeof(rq->problem_operation), b->operation_id);
        return request_problem(rq, PROBLEM_OPERATION_IN_PROGRESS, "", "the sandbox is %s and has an operation running",
                               sandbox_state_name(b->state));
    }
    *ret_rule = verb_rule(kind, b->state);
    if (*ret_rule == VERB_WRONG)
        return request_problem(rq, PROBLEM_WRONG_STATE, "", "%s is not possible while the sandbox is %s",
                               operation_kind_name(kind), sandbox_state_name(b->state));
    if (*ret_rule == VERB_GO_FROM_LAST && !b->last_snapshot_id)
        return request_problem(rq, PROBLEM_WRONG_STATE, "", "the sandbox is %s and has no good snapshot",
                               sandbox_state_name(b->state));
    return 0;
}

/* A VM comes into being again: there must be room for it, and for one that had failed the tenant's share too. */
static int check_restart(struct request *rq, const struct sandbox *b) {
    int r = 0;
    if (!b->node_id)
        return request_problem(rq, PROBLEM_WRONG_STATE, "", "the sandbox never had a node");
    if (b->state == SANDBOX_FAILED)
        r = accepted_check_quota(rq, 0, b->vcpus, b->memory_mib);
    if (r == 0 && (b->state == SANDBOX_SUSPENDED || b->state == SANDBOX_FAILED))
        r = accepted_check_room(rq, b->node_id, 1, b->vcpus, b->memory_mib);
    return r;
}

static int begin(struct request *rq, const struct verb *what, bool is_noop) {
    char operation_id[ID_SIZE];
    struct verb v = *what;
    id_new(operation_id, ID_OPERATION);
    v.operation_id = operation_id;
    int r = is_noop ? lifecycle_record_noop(rq->db, &v, &rq->err) : lifecycle_begin(rq->db, &v, &rq->err);
    return r < 0 ? r : accepted_begin(rq, operation_id);
}

static int load(struct request *rq, struct store_result **ret_res, struct sandbox *ret) {
    return sandbox_get(rq->db, request_param(rq, "sandbox_id"), rq->auth.tenant_id, true, ret_res, ret, &rq->err);
}

int handle_pause(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    enum verb_rule rule = VERB_WRONG;
    struct sandbox b;
    int r = load(rq, &res, &b);
    if (r == 0)
        r = accepted_check_verb(rq, &b, OPERATION_PAUSE, &rule);
    if (r < 0)
        return r;
    struct verb v = {.sandbox = &b, .kind = OPERATION_PAUSE, .timeout_s = LIMIT_VALUE(pause_timeout_s)};
    return begin(rq, &v, rule == VERB_NOOP);
}

int handle_suspend(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    enum verb_rule rule = VERB_WRONG;
    char snapshot_id[ID_SIZE];
    struct sandbox b;
    int r = load(rq, &res, &b);
    if (r == 0)
        r = accepted_check_verb(rq, &b, OPERATION_SUSPEND, &rule);
    if (r < 0)
        return r;
    id_new(snapshot_id, ID_SNAPSHOT);
    struct verb v = {.sandbox = &b,
                     .kind = OPERATION_SUSPEND,
                     .timeout_s = LIMIT_VALUE(snapshot_timeout_s),
                     .snapshot_id = rule == VERB_NOOP ? NULL : snapshot_id,
                     .snapshot_kind = SNAPSHOT_SUSPEND};
    return begin(rq, &v, rule == VERB_NOOP);
}

static struct verb wake_verb(const struct sandbox *b, enum operation_reason reason) {
    bool has_vm = b->state == SANDBOX_PAUSED || b->state == SANDBOX_RUNNING;
    return (struct verb){.sandbox = b,
                         .kind = OPERATION_WAKE,
                         .reason = reason,
                         .timeout_s = has_vm ? LIMIT_VALUE(pause_timeout_s) : LIMIT_VALUE(snapshot_timeout_s),
                         .start_id = has_vm ? NULL : b->last_snapshot_id};
}

int handle_wake(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    enum verb_rule rule = VERB_WRONG;
    struct sandbox b;
    int r = load(rq, &res, &b);
    if (r == 0)
        r = accepted_check_verb(rq, &b, OPERATION_WAKE, &rule);
    if (r == 0)
        r = check_restart(rq, &b);
    if (r < 0)
        return r;
    struct verb v = wake_verb(&b, REASON_CLIENT);
    return begin(rq, &v, rule == VERB_NOOP);
}

int lifecycle_wake_for_traffic(struct request *rq, const struct sandbox *b) {
    char operation_id[ID_SIZE];
    int r = check_restart(rq, b);
    if (r < 0)
        return r;
    struct verb v = wake_verb(b, REASON_TRAFFIC);
    id_new(operation_id, ID_OPERATION);
    v.operation_id = operation_id;
    return lifecycle_begin(rq->db, &v, &rq->err);
}

static int check_snapshots(struct request *rq) {
    uint64_t n = 0;
    int r = snapshot_count(rq->db, rq->auth.tenant_id, &n, &rq->err);
    if (r < 0 || n < LIMIT_VALUE(snapshots_per_tenant))
        return r;
    return request_problem(rq, PROBLEM_QUOTA_EXCEEDED, "snapshots_per_tenant", "the tenant has %llu snapshots of %d",
                           (unsigned long long)n, (int)LIMIT_VALUE(snapshots_per_tenant));
}

/* What a guest that stands still has not written out is in its memory alone. */
static int check_content(struct request *rq, const struct sandbox *b, enum snapshot_content *ret) {
    const char *content = body_text(rq->body, "content");
    if (content)
        (void)snapshot_content_parse(content, ret); /* the table has let it pass */
    if (*ret == CONTENT_FULL || b->state == SANDBOX_RUNNING)
        return 0;
    return request_problem(rq, PROBLEM_WRONG_STATE, "content",
                           "a snapshot of the disk alone is taken while the sandbox "
                           "runs; it is %s",
                           sandbox_state_name(b->state));
}

int handle_snapshot(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    enum snapshot_content content = CONTENT_FULL;
    _cleanup_free_ char *metadata = accepted_member(rq->body, "metadata");
    enum verb_rule rule = VERB_WRONG;
    char snapshot_id[ID_SIZE];
    struct sandbox b;
    int r = load(rq, &res, &b);
    if (r == 0)
        r = accepted_check_verb(rq, &b, OPERATION_SNAPSHOT, &rule);
    if (r == 0)
        r = check_content(rq, &b, &content);
    if (r == 0)
        r = check_snapshots(rq);
    if (r < 0)
        return r;
    id_new(snapshot_id, ID_SNAPSHOT);
    struct verb v = {.sandbox = &b,
                     .kind = OPERATION_SNAPSHOT,
                     .timeout_s = LIMIT_VALUE(snapshot_timeout_s),
                     .snapshot_id = snapshot_id,
                     .snapshot_kind = SNAPSHOT_NAMED,
                     .snapshot_content = content,
                     .snapshot_name = body_text(rq->body, "name"),
                     .snapshot_metadata = metadata};
    return begin(rq, &v, false);
}

/* Ready, of the sandbox's line, and on its node. Locked. */
static int check_target(struct request *rq, const struct sandbox *b, const char *id) {
    _cleanup_result_ struct store_result *res = NULL;
    bool is_of_line = false;
    struct snapshot x;
    int r = snapshot_get(rq->db, id, rq->auth.tenant_id, true, &res, &x, &rq->err);
    if (r < 0)
        return request_map(rq, r, SP_E_NOT_FOUND, PROBLEM_NOT_FOUND, "snapshot_id");
    if (x.state != SNAPSHOT_READY)
        return request_problem(rq, PROBLEM_WRONG_STATE, "snapshot_id", "the snapshot is %s",
                               snapshot_state_name(x.state));
    r = snapshot_is_of_line(rq->db, id, b->id, &is_of_line, &rq->err);
    if (r == 0 && (!is_of_line || !b->node_id || strcmp(x.node_id, b->node_id) != 0))
        return request_problem(rq, PROBLEM_WRONG_STATE, "snapshot_id",
                               "the snapshot is not of this sandbox's line: its own, or an ancestor's from before the "
                               "fork");
    return r;
}

int handle_rollback(struct request *rq) {
    _cleanup_result_ struct store_result *res = NULL;
    const char *id = body_text(rq->body, "snapshot_id");
    enum verb_rule rule = VERB_WRONG;
    struct sandbox b;
    int r = load(rq, &res, &b);
    if (r == 0)
        r = accepted_check_verb(rq, &b, OPERATION_ROLLBACK, &rule);
    if (r == 0)
        r = check_target(rq, &b, id);
    if (r == 0)
        r = check_restart(rq, &b);
    if (r < 0)
        return r;
    struct verb v = {.sandbox = &b,
                     .kind = OPERATION_ROLLBACK,
                     .timeout_s = LIMIT_VALUE(snapshot_timeout_s),
                     .start_id = id};
    return begin(rq, &v, false);
}
