/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of nodes. Locks are taken in the order tenant, sandboxes, node; a node's row last. */
#include "store/nodes.h"
#include "base/text.h"
#include "model/limits.h"
#include "store/lifecycle.h"
#include "store/pg.h"
#include <string.h>

#define PLACE_TRIES 4
#define IS_LIVE "n.last_seen_at > now() - interval '30000 milliseconds'"
_Static_assert(LIMIT_VALUE_node_lost_ms == 30000, "IS_LIVE says the same");
#define USAGE                                                                                                          \
    " LEFT JOIN LATERAL (SELECT count(*) AS listed, count(*) FILTER (WHERE state <> 'suspended') AS sandboxes, "       \
    "coalesce(sum(vcpus) FILTER (WHERE state <> 'suspended'), 0) AS vcpus, coalesce(sum(memory_mib) FILTER "           \
    "(WHERE state <> 'suspended'), 0) AS memory_mib FROM sandboxes b "                                                 \
    "WHERE b.node_id = n.id AND b.released_at IS NULL) u ON true "

static void add_capacity(struct pg_args *a, const struct node_capacity *c) {
    pg_int(a, (int64_t)c->vcpus);
    pg_int(a, (int64_t)c->memory_mib);
    pg_int(a, (int64_t)c->disk_mib);
    pg_int(a, (int64_t)c->max_sandboxes);
}

/* ---- registration ---- */

static int known_boot(struct store *s, const struct node_report *n, bool *ret_known, bool *ret_same,
                      struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, n->id);
    int r = pg_run(s, "SELECT (SELECT boot_id FROM nodes WHERE id = $1), (SELECT count(*) FROM nodes)", &a, &res, err);
    if (r < 0)
        return r;
    *ret_known = pg_get(res, 0, 0) != NULL;
    *ret_same = *ret_known && strcmp(pg_get_text(res, 0, 0), n->boot_id) == 0;
    if (!*ret_known && pg_get_int(res, 0, 1) >= (int64_t)LIMIT_VALUE(nodes))
        return sp_error_set(err, SP_E_QUOTA, "%d nodes are registered already", (int)LIMIT_VALUE(nodes));
    return 0;
}

int node_register(struct store *s, const struct node_report *n, bool *ret_rebooted, struct sp_error *err) {
    struct pg_args a = {0};
    bool known = false, same = false;
    int r = known_boot(s, n, &known, &same, err);
    if (r == 0 && known && !same)
        r = lifecycle_fail_all_of_node(s, n->id, err);
    if (r < 0)
        return r;
    pg_text(&a, n->id);
    pg_text(&a, n->boot_id);
    pg_text(&a, n->hostname);
    pg_text(&a, n->version);
    pg_text(&a, n->accelerator);
    pg_text(&a, n->vmm);
    pg_text(&a, n->kernels);
    pg_text(&a, n->gateway_url);
    add_capacity(&a, &n->capacity);
    r = pg_queue(s,
                 "INSERT INTO nodes (id, boot_id, hostname, version, accelerator, vmm, kernels, gateway_url, vcpus, "
                 "memory_mib, disk_mib, max_sandboxes) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) "
                 "ON CONFLICT (id) DO UPDATE SET boot_id = excluded.boot_id, hostname = excluded.hostname, "
                 "version = excluded.version, accelerator = excluded.accelerator, vmm = excluded.vmm, "
                 "kernels = excluded.kernels, gateway_url = excluded.gateway_url, vcpus = excluded.vcpus, "
                 "memory_mib = excluded.memory_mib, disk_mib = excluded.disk_mib, "
                 "max_sandboxes = excluded.max_sandboxes, registered_at = now(), last_seen_at = now(), "
                 "desired_revision = nodes.desired_revision + 1",
                 &a, err);
    if (r == 0)
        r = pg_notify(s, 'n', n->id, err);
    if (r == 0)
        r = pg_notify(s, 'r', "", err); /* sandboxes may have been waiting for a node */
    if (r == 0)
        *ret_rebooted = known && !same;
    return r;
}

int node_heard(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    return pg_queue(
        s, "UPDATE nodes SET last_seen_at = now() WHERE id = $1 AND last_seen_at < now() - interval '1 second'", &a,
        err);
}

int node_set_capacity(struct store *s, const char *id, const struct node_capacity *c, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    add_capacity(&a, c);
    return pg_queue(s,
                    "UPDATE nodes SET vcpus = $2, memory_mib = $3, disk_mib = $4, max_sandboxes = $5, "
                    "last_seen_at = now() WHERE id = $1",
                    &a, err);
}

int node_poke(struct store *s, const char *id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    int r = pg_queue(s, "UPDATE nodes SET desired_revision = desired_revision + 1 WHERE id = $1", &a, err);
    return r < 0 ? r : pg_notify(s, 'n', id, err);
}

int node_poke_all(struct store *s, struct sp_error *err) {
    return pg_queue(s,
                    "WITH n AS (UPDATE nodes SET desired_revision = desired_revision + 1 WHERE id IN "
                    "(SELECT id FROM nodes ORDER BY id FOR NO KEY UPDATE) RETURNING id) "
                    "SELECT pg_notify('space', 'n' || id) FROM n",
                    NULL, err);
}

int node_set_garbage(struct store *s, const char *id, uint64_t snapshots, uint64_t bytes, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_int(&a, (int64_t)snapshots);
    pg_int(&a, (int64_t)bytes);
    return pg_queue(s, "UPDATE nodes SET garbage_snapshots = $2, garbage_bytes = $3 WHERE id = $1", &a, err);
}

/* ---- lists ---- */

#define COLUMNS                                                                                                        \
    "n.id, n.hostname, n.version, n.accelerator, n.vmm, n.kernels, n.gateway_url, " IS_LIVE                            \
    ", n.vcpus, n.memory_mib, n.disk_mib, n.max_sandboxes, u.sandboxes, u.vcpus, u.memory_mib, " PG_MS(                \
        "n.registered_at") ", " PG_MS("n.last_seen_at") ", u.listed, n.garbage_snapshots, n.garbage_bytes"
#define SPARE_COLUMNS ", p.warm, p.filling, p.target"
#define SPARE                                                                                                          \
    " LEFT JOIN LATERAL (SELECT sum(warm) AS warm, sum(filling) AS filling, sum(target) AS target FROM pool_nodes q "  \
    "WHERE q.node_id = n.id) p ON true "

int node_list(struct store *s, struct store_result **ret_res, int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_int(&a, (int64_t)LIMIT_VALUE(nodes));
    int r = pg_run(s, "SELECT " COLUMNS SPARE_COLUMNS " FROM nodes n" USAGE SPARE "ORDER BY n.id LIMIT $1", &a, ret_res,
                   err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

void node_row(const struct store_result *res, int row, struct node *ret) {
    *ret = (struct node){
        .id = pg_get_text(res, row, 0),
        .hostname = pg_get_text(res, row, 1),
        .version = pg_get_text(res, row, 2),
        .accelerator = pg_get_text(res, row, 3),
        .vmm = pg_get_text(res, row, 4),
        .kernels = pg_get_text(res, row, 5),
        .gateway_url = pg_get_text(res, row, 6),
        .is_live = pg_get_bool(res, row, 7),
        .capacity = {.vcpus = (uint64_t)pg_get_int(res, row, 8),
                     .memory_mib = (uint64_t)pg_get_int(res, row, 9),
                     .disk_mib = (uint64_t)pg_get_int(res, row, 10),
                     .max_sandboxes = (uint64_t)pg_get_int(res, row, 11)},
        .used_sandboxes = (uint64_t)pg_get_int(res, row, 12),
        .used_vcpus = (uint64_t)pg_get_int(res, row, 13),
        .used_memory_mib = (uint64_t)pg_get_int(res, row, 14),
        .registered_ms = pg_get_int(res, row, 15),
        .last_seen_ms = pg_get_int(res, row, 16),
        .listed = (uint64_t)pg_get_int(res, row, 17),
        .has_garbage = pg_get(res, row, 18) != NULL,
        .garbage_snapshots = (uint64_t)pg_get_int(res, row, 18),
        .garbage_bytes = (uint64_t)pg_get_int(res, row, 19),
    };
    if (pg_columns(res) > 20) {
        ret->warm = (uint64_t)pg_get_int(res, row, 20);
        ret->filling = (uint64_t)pg_get_int(res, row, 21);
        ret->target = (uint64_t)pg_get_int(res, row, 22);
    }
}

/* ---- placement ---- */

static struct plan_node to_plan(const struct node *n) {
    /* Its list is bounded, whatever of it has a VM. */
    uint64_t left = n->listed < LIMIT_VALUE(desired_sandboxes) ? LIMIT_VALUE(desired_sandboxes) - n->listed : 0;
    uint64_t most = n->used_sandboxes + left;
    return (struct plan_node){.id = n->id,
                              .is_live = n->is_live,
                              .vcpus = n->capacity.vcpus,
                              .memory_mib = n->capacity.memory_mib,
                              .disk_mib = n->capacity.disk_mib,
                              .max_sandboxes = n->capacity.max_sandboxes < most ? n->capacity.max_sandboxes : most,
                              .used_vcpus = n->used_vcpus,
                              .used_memory_mib = n->used_memory_mib,
                              .used_sandboxes = n->used_sandboxes};
}

/* One look at all nodes without a lock. */
static int choose(struct store *s, uint64_t vcpus, uint64_t memory_mib, enum placement *ret, char ret_id[65],
                  struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    _cleanup_free_ struct plan_node *nodes = NULL;
    bool any_live = false;
    int n = 0;
    struct pg_args a = {0};
    pg_int(&a, (int64_t)LIMIT_VALUE(nodes));
    int r = pg_run(s, "SELECT " COLUMNS " FROM nodes n" USAGE "ORDER BY n.id LIMIT $1", &a, &res, err);
    if (r < 0)
        return r;
    n = pg_rows(res);
    nodes = calloc((size_t)n + 1, sizeof(*nodes));
    if (!nodes)
        return sp_error_set(err, SP_E_UNAVAILABLE, "out of memory");
    for (int i = 0; i < n; i++) {
        struct node row;
        node_row(res, i, &row);
        nodes[i] = to_plan(&row);
        any_live = any_live || row.is_live;
    }
    int best = plan_choose_node(nodes, (size_t)n, vcpus, memory_mib);
    *ret = best >= 0 ? PLACED : any_live ? PLACE_NO_ROOM : PLACE_NO_NODE;
    if (best >= 0 && !text_copy(ret_id, 65, nodes[best].id))
        return pg_corrupt(err, "node id");
    return 0;
}

/* Locks the node, then looks at it again with what was committed meanwhile. */
int node_take_room(struct store *s, const char *id, uint64_t count, uint64_t vcpus, uint64_t memory_mib,
                   bool *ret_taken, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    struct plan_node plan_row;
    struct node row;
    pg_text(&a, id);
    int r = pg_queue(s, "UPDATE nodes SET desired_revision = desired_revision + 1 WHERE id = $1", &a, err);
    if (r == 0)
        r = pg_run(s, "SELECT " COLUMNS " FROM nodes n" USAGE "WHERE n.id = $1", &a, &res, err);
    if (r < 0)
        return r;
    *ret_taken = false;
    if (pg_rows(res) == 1) {
        node_row(res, 0, &row);
        plan_row = to_plan(&row);
        /* One that asks for all the memory, beside the others' places. */
        plan_row.used_sandboxes += count - 1;
        *ret_taken = plan_choose_node(&plan_row, 1, vcpus, memory_mib * count) == 0;
    }
    return 0;
}

int node_place(struct store *s, uint64_t vcpus, uint64_t memory_mib, enum placement *ret, char ret_node_id[65],
               struct sp_error *err) {
    char id[65] = "";
    for (int i = 0; i < PLACE_TRIES; i++) {
        bool taken = false;
        int r = choose(s, vcpus, memory_mib, ret, id, err);
        if (r < 0 || *ret != PLACED)
            return r;
        r = node_take_room(s, id, 1, vcpus, memory_mib, &taken, err);
        if (r < 0)
            return r;
        if (taken) {
            (void)text_copy(ret_node_id, 65, id);
            return 0;
        }
    }
    *ret = PLACE_NO_ROOM;
    return 0;
}

/* ---- desired ---- */

/* Everything in one statement, and so of one moment: that the node was heard of, to within a second; the revision; the rows; what
 * is to be removed; the pools. The first row carries what is not a row's; a node without sandboxes has one that is none. */
#define REST                                                                                                           \
    "CASE WHEN row_number() OVER (ORDER BY b.created_at, b.id) = 1 THEN (SELECT json_agg(id) FROM (SELECT id FROM "    \
    "snapshots WHERE node_id = $1 AND state = 'deleting' ORDER BY id LIMIT $2) g) END, "                               \
    "CASE WHEN row_number() OVER (ORDER BY b.created_at, b.id) = 1 THEN (SELECT "                                      \
    "json_agg(json_build_object('pool_id', "                                                                           \
    "p.id, 'template', json_build_object('digest', p.digest, 'manifest', m.manifest::json), 'resources', "             \
    "json_build_object('vcpus', p.vcpus, 'memory_mib', p.memory_mib), 'size', p.size) ORDER BY p.id) "                 \
    "FROM pools p JOIN templates m ON m.id = p.template_id) END"

/* A wake of a resident VM starts nothing; a copy needs what it is of. */
#define START                                                                                                          \
    "CASE WHEN b.state = 'creating' OR (b.state = 'waking' AND o.snapshot_id IS NOT NULL) THEN b.start_snapshot_id "   \
    "WHEN b.state = 'suspended' AND x.id IS NOT NULL THEN b.last_snapshot_id END"

int node_desired(struct store *s, const char *id, struct store_result **ret_res, struct desired_list *ret,
                 struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_int(&a, (int64_t)LIMIT_VALUE(snapshots_gone));
    int r = pg_run(
        s,
        "WITH h AS (UPDATE nodes SET last_seen_at = now() WHERE id = $1 "
        "AND last_seen_at < now() - interval '1 second') "
        "SELECT b.id, b.generation, b.state, b.operation_id, o.kind, " PG_MS(
            "o.deadline_at") ", b.digest, t.manifest, b.env, b.hostname, b.machine_id, b.vcpus, b.memory_mib, " START
                             ", x.id, x.kind, n.desired_revision, " REST
                             ", (SELECT y.content FROM snapshots y WHERE y.id = " START "), x.content FROM nodes n "
                             "LEFT JOIN sandboxes b "
                             "ON b.node_id = n.id AND b.released_at IS NULL AND b.state <> 'deleted' "
                             "LEFT JOIN templates t ON t.id = b.template_id LEFT JOIN operations o ON o.id = "
                             "b.operation_id "
                             "LEFT JOIN snapshots x ON x.operation_id = o.id AND x.state = 'creating' "
                             "WHERE n.id = $1 ORDER BY b.created_at, b.id",
        &a, ret_res, err);
    if (r < 0)
        return r;
    if (pg_rows(*ret_res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "node %s has not registered", id);
    *ret = (struct desired_list){.n = pg_get(*ret_res, 0, 0) ? pg_rows(*ret_res) : 0,
                                 .revision = (uint64_t)pg_get_int(*ret_res, 0, 16),
                                 .gone = pg_get(*ret_res, 0, 17),
                                 .pools = pg_get(*ret_res, 0, 18)};
    return 0;
}

int desired_row(const struct store_result *res, int row, struct desired *ret, struct sp_error *err) {
    struct desired d = {
        .id = pg_get_text(res, row, 0),
        .generation = (uint64_t)pg_get_int(res, row, 1),
        .operation_id = pg_get(res, row, 3),
        .operation_kind = pg_get(res, row, 4),
        .deadline_ms = pg_get_int(res, row, 5),
        .digest = pg_get_text(res, row, 6),
        .manifest = pg_get(res, row, 7),
        .env = pg_get_text(res, row, 8),
        .hostname = pg_get_text(res, row, 9),
        .machine_id = pg_get_text(res, row, 10),
        .vcpus = (uint64_t)pg_get_int(res, row, 11),
        .memory_mib = (uint64_t)pg_get_int(res, row, 12),
        .start_id = pg_get(res, row, 13),
        .snapshot_id = pg_get(res, row, 14),
        .snapshot_kind = pg_get(res, row, 15),
        .start_content = pg_get(res, row, 19),
        .snapshot_content = pg_get(res, row, 20),
    };
    if (!sandbox_state_parse(pg_get_text(res, row, 2), &d.state))
        return pg_corrupt(err, "sandbox state");
    *ret = d;
    return 0;
}
