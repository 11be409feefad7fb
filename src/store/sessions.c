/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of sessions. */
#include "store/sessions.h"
#include "base/random.h"
#include "store/pg.h"

#define COLUMNS                                                                                                        \
    "x.id, x.sandbox_id, x.process_id, x.tenant_id, x.state, x.command, x.attach_url, x.pid, x.exit_code, x.signal, "  \
    "x.reason, " PG_MS("x.created_at") ", " PG_US("x.created_at") ", " PG_MS("x.started_at") ", " PG_MS(               \
        "x.exited_at") ", " PG_MS("x.expires_at") ", x.expires_at <= now()"
#define N_COLUMNS 17

int session_row(const struct store_result *res, int row, struct session *ret, struct sp_error *err) {
    struct session x = {
        .id = pg_get_text(res, row, 0),
        .sandbox_id = pg_get_text(res, row, 1),
        .process_id = pg_get_text(res, row, 2),
        .tenant_id = pg_get_text(res, row, 3),
        .command = pg_get_text(res, row, 5),
        .attach_url = pg_get_text(res, row, 6),
        .pid = pg_get_int(res, row, 7),
        .has_exit_code = pg_get(res, row, 8) != NULL,
        .exit_code = pg_get_int(res, row, 8),
        .has_signal = pg_get(res, row, 9) != NULL,
        .signal = pg_get_int(res, row, 9),
        .reason = pg_get(res, row, 10),
        .created_ms = pg_get_int(res, row, 11),
        .created_us = pg_get_int(res, row, 12),
        .started_ms = pg_get_int(res, row, 13),
        .exited_ms = pg_get_int(res, row, 14),
        .expires_ms = pg_get_int(res, row, 15),
        .is_expired = pg_get_bool(res, row, 16),
    };
    if (!session_state_parse(pg_get_text(res, row, 4), &x.state))
        return pg_corrupt(err, "session state");
    *ret = x;
    return 0;
}

int session_insert(struct store *s, const struct session_new_row *n, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, n->id);
    pg_text(&a, n->tenant_id);
    pg_text(&a, n->sandbox_id);
    pg_text(&a, n->process_id);
    pg_bytes(&a, n->token_hash, SHA256_SIZE);
    pg_text(&a, n->command);
    pg_text(&a, n->attach_url);
    pg_int(&a, (int64_t)n->expires_in_s);
    return pg_queue(
        s,
        "INSERT INTO sessions (id, tenant_id, sandbox_id, process_id, token_hash, state, command, attach_url, "
        "expires_at) VALUES ($1, $2, $3, $4, $5, 'created', $6, $7, now() + $8::bigint * interval '1 second')",
        &a, err);
}

int session_get(struct store *s, const char *id, const char *tenant_id, struct store_result **ret_res,
                struct session *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, id);
    pg_text(&a, tenant_id);
    int r = pg_run(s, "SELECT " COLUMNS " FROM sessions x WHERE x.id = $1 AND x.tenant_id = $2", &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no session %s", id);
    r = session_row(res, 0, ret, err);
    if (r == 0)
        *ret_res = TAKE_PTR(res);
    return r;
}

int session_list(struct store *s, const char *sandbox_id, const struct store_page *page, struct store_result **ret_res,
                 int *ret_n, struct sp_error *err) {
    struct pg_args a = {0};
    struct pg_cursor mem;
    pg_page(&a, page, &mem);
    pg_int(&a, page->limit);
    pg_text(&a, sandbox_id);
    int r = pg_run(s,
                   "SELECT " COLUMNS " FROM sessions x WHERE x.sandbox_id = $4 AND " PG_AFTER(
                       "x.created_at", "x.id", "$1", "$2") " ORDER BY x.created_at DESC, x.id DESC LIMIT $3",
                   &a, ret_res, err);
    if (r == 0)
        *ret_n = pg_rows(*ret_res);
    return r;
}

int session_count_open(struct store *s, const char *sandbox_id, uint64_t *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct pg_args a = {0};
    pg_text(&a, sandbox_id);
    int r = pg_run(s,
                   "SELECT count(*) FROM sessions WHERE sandbox_id = $1 "
                   "AND (state = 'started' OR (state = 'created' AND expires_at > now()))",
                   &a, &res, err);
    if (r == 0)
        *ret = (uint64_t)pg_get_int(res, 0, 0);
    return r;
}

int session_attach(struct store *s, const char *id, const uint8_t token_hash[SHA256_SIZE],
                   struct store_result **ret_res, struct session_attach *ret, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct session_attach found = {0};
    uint8_t hash[SHA256_SIZE];
    struct pg_args a = {0};
    pg_text(&a, id);
    int r = pg_run(s,
                   "SELECT " COLUMNS ", b.state, b.node_id, x.token_hash, t.manifest::jsonb ->> 'user', "
                   "t.manifest::jsonb ->> 'workdir' FROM sessions x JOIN sandboxes b ON b.id = x.sandbox_id "
                   "LEFT JOIN templates t ON t.id = b.template_id WHERE x.id = $1",
                   &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0)
        return sp_error_set(err, SP_E_NOT_FOUND, "no session %s", id);
    if (!pg_get_bytes(res, 0, N_COLUMNS + 2, hash, sizeof(hash)) || !secret_equal(hash, token_hash, sizeof(hash)))
        return sp_error_set(err, SP_E_UNAUTHORIZED, "the token is not this session's");
    if (!sandbox_state_parse(pg_get_text(res, 0, N_COLUMNS), &found.sandbox_state))
        return pg_corrupt(err, "sandbox state");
    r = session_row(res, 0, &found.session, err);
    if (r < 0)
        return r;
    found.node_id = pg_get(res, 0, N_COLUMNS + 1);
    found.user = pg_get(res, 0, N_COLUMNS + 3);
    found.workdir = pg_get(res, 0, N_COLUMNS + 4);
    *ret = found;
    *ret_res = TAKE_PTR(res);
    return 0;
}

static int known(uint64_t n, const char *id, struct sp_error *err) {
    return n > 0 ? 0 : sp_error_set(err, SP_E_NOT_FOUND, "no session %s", id);
}

int session_report_started(struct store *s, const char *id, int64_t pid, struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t n = 0;
    pg_text(&a, id);
    pg_int(&a, pid);
    int r =
        pg_count(s,
                 "UPDATE sessions SET state = CASE state WHEN 'created' THEN 'started' ELSE state END, "
                 "pid = coalesce(pid, nullif($2::bigint, 0)), started_at = coalesce(started_at, now()) WHERE id = $1",
                 &a, &n, err);
    return r < 0 ? r : known(n, id, err);
}

int session_report_exited(struct store *s, const char *id, const struct session_exit *e, struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t n = 0;
    pg_text(&a, id);
    if (e->has_exit_code)
        pg_int(&a, e->exit_code);
    else
        pg_null(&a);
    if (e->has_signal)
        pg_int(&a, e->signal);
    else
        pg_null(&a);
    pg_text_or_null(&a, e->reason);
    /* A session that was given up as lost takes the truth when it still comes. */
    int r = pg_count(
        s,
        "WITH b AS (UPDATE sandboxes SET active_at = greatest(active_at, policy_now()) "
        "WHERE id = (SELECT sandbox_id FROM sessions WHERE id = $1 AND state <> 'exited')) UPDATE sessions SET "
        "exit_code = CASE WHEN state = 'exited' THEN exit_code ELSE $2::bigint END, "
        "signal = CASE WHEN state = 'exited' THEN signal ELSE $3::bigint END, "
        "reason = CASE WHEN state = 'exited' THEN reason ELSE $4::text END, "
        "started_at = coalesce(started_at, now()), exited_at = coalesce(exited_at, now()), state = 'exited' "
        "WHERE id = $1",
        &a, &n, err);
    return r < 0 ? r : known(n, id, err);
}

int session_lose_all(struct store *s, const char *sandbox_id, struct sp_error *err) {
    struct pg_args a = {0};
    pg_text(&a, sandbox_id);
    return pg_queue(s,
                    "UPDATE sessions SET state = 'lost', exited_at = now() WHERE sandbox_id = $1 "
                    "AND state IN ('created', 'started')",
                    &a, err);
}
