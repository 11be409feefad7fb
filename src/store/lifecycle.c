/* SPDX-License-Identifier: Apache-2.0 */
/* Create, the verbs and delete: what a caller wants, recorded. How operations end is in lifecycle_end.c. */
#include "store/lifecycle.h"
#include "base/text.h"
#include "model/transitions.h"
#include "store/lifecycle_internal.h"
#include "store/nodes.h"
#include "store/pg.h"
#include "store/sessions.h"

/* ---- create ---- */

static void add_new_row(struct pg_args *a, const struct sandbox_new_row *n) {
    pg_text(a, n->id);
    pg_text(a, n->tenant_id);
    pg_text(a, n->description.name);
    pg_text(a, n->template_id);
    pg_text(a, n->template_name);
    pg_text(a, n->template_tag);
    pg_text(a, n->digest);
    pg_int(a, (int64_t)n->vcpus);
    pg_int(a, (int64_t)n->memory_mib);
    pg_text(a, n->description.metadata);
    pg_text(a, n->env);
    pg_text(a, n->hostname);
    pg_text(a, n->machine_id);
    pg_text(a, n->node_id);
    pg_text(a, n->operation_id);
    pg_int(a, (int64_t)n->timeout_s);
}

static void add_new_line(struct pg_args *a, const struct sandbox_new_row *n) {
    pg_text(a, n->description.lifecycle);
    pg_int(a, (int64_t)n->description.idle_s);
    pg_int(a, (int64_t)n->description.life_s);
    pg_int(a, (int64_t)n->description.checkpoint_s);
    pg_text(a, n->start_snapshot_id);
    pg_text(a, n->parent_sandbox_id);
    pg_text(a, n->fork_id);
    pg_int(a, (int64_t)n->fork_index);
}

/* Sandbox, operation, outbox and notification in one round trip. */
int lifecycle_create(struct store *s, const struct sandbox_new_row *n, struct sp_error *err) {
    struct pg_args a = {0};
    char note[80];
    (void)snprintf(note, sizeof(note), "%s%.64s", n->node_id ? "n" : "r", n->node_id ? n->node_id : "");
    add_new_row(&a, n);
    pg_text(&a, note);
    add_new_line(&a, n);
    pg_note(s, note[0], note + 1);
    int r = pg_queue(
        s,
        "WITH b AS (INSERT INTO sandboxes (id, tenant_id, name, state, template_id, template_name, template_tag, "
        "digest, vcpus, memory_mib, metadata, env, hostname, machine_id, node_id, operation_id, lifecycle, idle_s, "
        "life_s, checkpoint_s, start_snapshot_id, parent_snapshot_id, parent_sandbox_id, parent_at) "
        "VALUES ($1, $2, $3, 'creating', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $18, "
        "nullif($19::bigint, 0), nullif($20::bigint, 0), nullif($21::bigint, 0), $22, $22, $23, "
        "CASE WHEN $22::text IS NOT NULL THEN coalesce((SELECT created_at FROM snapshots WHERE id = $22), now()) "
        "END)), "
        "o AS (INSERT INTO operations (id, tenant_id, sandbox_id, kind, state, snapshot_id, fork_id, fork_index, "
        "deadline_at) VALUES ($15, $2, $1, 'create', 'pending', $22, $24, $25::bigint, "
        "now() + $16::bigint * interval '1 second')), "
        "x AS (INSERT INTO outbox (sandbox_id, reason) VALUES ($1, 'create')) "
        "SELECT pg_notify('space', $17)",
        &a, err);
    return r;
}

/* ---- verbs ---- */

static int insert_operation(struct store *s, const struct verb *v, bool is_noop, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, v->operation_id);
    pg_text(&a, v->sandbox->tenant_id);
    pg_text(&a, v->sandbox->id);
    pg_text(&a, operation_kind_name(v->kind));
    pg_text(&a, operation_reason_name(v->reason));
    pg_text(&a, sandbox_state_name(v->sandbox->state));
    pg_text(&a, v->snapshot_id ? v->snapshot_id : v->start_id);
    pg_int(&a, (int64_t)v->timeout_s);
    pg_bool(&a, is_noop);
    return pg_queue(s,
                    "INSERT INTO operations (id, tenant_id, sandbox_id, kind, reason, from_state, snapshot_id, state, "
                    "started_at, finished_at, deadline_at) VALUES ($1, $2, $3, $4, $5, $6, $7, "
                    "CASE WHEN $9::boolean THEN 'succeeded' ELSE 'pending' END, CASE WHEN $9::boolean THEN now() END, "
                    "CASE WHEN $9::boolean THEN now() END, "
                    "CASE WHEN NOT $9::boolean THEN now() + $8::bigint * interval '1 second' END)",
                    &a, err);
}

static int insert_snapshot(struct store *s, const struct verb *v, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, v->snapshot_id);
    pg_text(&a, v->sandbox->id);
    pg_text(&a, v->operation_id);
    pg_text(&a, v->snapshot_name);
    pg_text(&a, snapshot_kind_name(v->snapshot_kind));
    pg_text(&a, v->snapshot_metadata ? v->snapshot_metadata : "{}");
    pg_text(&a, snapshot_content_name(v->snapshot_content));
    return pg_queue(s,
                    "INSERT INTO snapshots (id, tenant_id, sandbox_id, node_id, operation_id, name, kind, state, "
                    "generation, parent_id, template_id, template_name, template_tag, digest, vcpus, memory_mib, "
                    "metadata, content) SELECT $1, tenant_id, id, node_id, $3, $4, $5, 'creating', generation, "
                    "coalesce(last_snapshot_id, parent_snapshot_id), template_id, template_name, template_tag, digest, "
                    "vcpus, memory_mib, $6, $7 FROM sandboxes WHERE id = $2",
                    &a, err);
}

static int update_sandbox(struct store *s, const struct verb *v, struct sp_error *err) {
    enum sandbox_state state = verb_moving_state(v->kind, v->sandbox->state);
    struct pg_args a = {0};
    pg_text(&a, v->sandbox->id);
    pg_text(&a, v->operation_id);
    pg_text(&a, sandbox_state_name(state));
    pg_text(&a, v->start_id);
    pg_bool(&a, v->reason == REASON_CLIENT || v->reason == REASON_TRAFFIC);
    pg_bool(&a, v->reason == REASON_CHECKPOINT);
    int r =
        pg_queue(s,
                 "UPDATE sandboxes SET state = $3, operation_id = $2, ready = ready AND $3 = 'running', "
                 "generation = generation + CASE WHEN $4::text IS NULL THEN 0 ELSE 1 END, "
                 "start_snapshot_id = coalesce($4, start_snapshot_id), "
                 "released_at = CASE WHEN $4::text IS NULL THEN released_at END, "
                 "error_code = CASE WHEN $3 = 'failed' THEN error_code END, "
                 "error_message = CASE WHEN $3 = 'failed' THEN error_message END, "
                 "active_at = CASE WHEN $5::boolean THEN policy_now() ELSE active_at END, "
                 "checkpoint_at = CASE WHEN $6::boolean THEN policy_now() ELSE checkpoint_at END, updated_at = now() "
                 "WHERE id = $1",
                 &a, err);
    if (r < 0 || !v->start_id)
        return r;
    a.n = 0;
    pg_text(&a, v->start_id);
    return pg_queue(s, "UPDATE snapshots SET used_at = now() WHERE id = $1", &a, err);
}

int lifecycle_begin(struct store *s, const struct verb *v, struct sp_error *err) {
    struct pg_args a = {0};
    int r = insert_operation(s, v, false, err);
    if (r == 0 && v->snapshot_id)
        r = insert_snapshot(s, v, err);
    if (r == 0)
        r = update_sandbox(s, v, err);
    if (r == 0 && v->kind == OPERATION_ROLLBACK)
        r = session_lose_all(s, v->sandbox->id, err);
    pg_text(&a, v->sandbox->id);
    pg_text(&a, operation_kind_name(v->kind));
    if (r == 0)
        r = pg_queue(s, "INSERT INTO outbox (sandbox_id, reason) VALUES ($1, $2)", &a, err);
    return r == 0 && v->sandbox->node_id ? node_poke(s, v->sandbox->node_id, err) : r;
}

int lifecycle_record_noop(struct store *s, const struct verb *v, struct sp_error *err) {
    int r = insert_operation(s, v, true, err);
    return r < 0 || v->reason != REASON_CLIENT ? r : sandbox_touch(s, v->sandbox->id, err);
}

/* ---- delete ---- */

static int insert_delete(struct store *s, const struct sandbox *b, const char *operation_id,
                         enum operation_reason reason, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, b->id);
    pg_text(&a, b->tenant_id);
    pg_text(&a, operation_id);
    pg_text(&a, operation_reason_name(reason));
    pg_text(&a, sandbox_state_name(b->state));
    int r = pg_queue(s,
                     "INSERT INTO operations (id, tenant_id, sandbox_id, kind, state, started_at, reason, from_state) "
                     "VALUES ($3, $2, $1, 'delete', 'running', now(), $4, $5)",
                     &a, err);
    if (r < 0)
        return r;
    a.n = 0;
    pg_text(&a, b->id);
    pg_text(&a, operation_id);
    pg_bool(&a, b->node_id && !b->is_released);
    return pg_queue(
        s,
        "UPDATE sandboxes SET ready = false, operation_id = $2, delete_operation_id = $2, updated_at = now(), "
        "state = CASE WHEN $3::boolean THEN 'deleting' ELSE state END WHERE id = $1",
        &a, err);
}

int lifecycle_delete(struct store *s, const struct sandbox *b, const char *operation_id, enum operation_reason reason,
                     struct sp_error *err) {
    struct operation_end superseded = {.failure = FAILURE_SUPERSEDED, .message = ""};
    bool on_node = b->node_id && !b->is_released;
    int r = 0;
    if (b->operation_id)
        r = lifecycle_finish_operation(s, b->operation_id, &superseded, err);
    if (r == 0)
        r = insert_delete(s, b, operation_id, reason, err);
    if (r == 0)
        r = session_lose_all(s, b->id, err);
    if (r == 0)
        r = lifecycle_add_outbox(s, b->id, "delete", err);
    if (r < 0)
        return r;
    return on_node ? node_poke(s, b->node_id, err) : lifecycle_end_delete(s, b->id, operation_id, err);
}
