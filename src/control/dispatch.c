/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every request goes through on a worker, in this order: who asks, may they, how fast, is it well formed, is it a
 * repetition, then the handler. Nothing is written before all of it passed.
 */
#include "control/dispatch.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "control/query.h"
#include "control/request.h"
#include "model/limits.h"
#include "store/audit.h"
#include "wire/http1.h"
#include <string.h>
#include <strings.h>

/* ---- who asks ---- */

static int wrong_token(struct request *rq, enum token_kind kind) {
    switch (kind) {
    case TOKEN_ATTACHMENT:
        return request_problem(rq, PROBLEM_WRONG_TOKEN_KIND, "Authorization",
                               "an attachment token is for the data plane only");
    case TOKEN_INTERNAL:
        return request_problem(rq, PROBLEM_WRONG_TOKEN_KIND, "Authorization",
                               "the internal token is for nodes and gateways only");
    case TOKEN_MANAGEMENT:
        return request_problem(rq, PROBLEM_WRONG_TOKEN_KIND, "Authorization",
                               "a management token is not accepted here");
    case TOKEN_NONE:
        break;
    }
    return request_problem(rq, PROBLEM_UNAUTHORIZED, "Authorization", "the token is unknown, expired or revoked");
}

static int authenticate(struct request *rq) {
    const char *token = exchange_bearer(rq->x);
    uint8_t hash[SHA256_SIZE];
    if (rq->route->auth == AUTH_NONE)
        return 0;
    if (!token)
        return request_problem(rq, PROBLEM_UNAUTHORIZED, "Authorization", "a bearer token is needed");
    enum token_kind kind = token_kind_of(token);
    if (rq->route->auth == AUTH_INTERNAL)
        return secrets_is_internal(&rq->c->secrets, token)
                   ? 0
                   : wrong_token(rq, kind == TOKEN_INTERNAL ? TOKEN_NONE : kind);
    if (kind != TOKEN_MANAGEMENT)
        return wrong_token(rq, kind);
    sha256_memory(token, strlen(token), hash);
    int r = token_authenticate(rq->db, hash, &rq->auth, &rq->err);
    return request_map(rq, r, SP_E_UNAUTHORIZED, PROBLEM_UNAUTHORIZED, "Authorization");
}

static int authorize(struct request *rq) {
    unsigned retry_s = 1;
    if (rq->route->auth != AUTH_MANAGEMENT)
        return 0;
    if (!scopes_allow(rq->auth.scopes, rq->route->scope)) {
        unsigned bit = 0;
        while (!(rq->route->scope & (1u << bit)))
            bit++;
        return request_problem(rq, PROBLEM_FORBIDDEN, "", "the token lacks the scope %s", scope_name(bit));
    }
    if (!rate_take(&rq->c->rate, rq->auth.tenant_id, rq->auth.requests_per_second, clock_monotonic_ns(), &retry_s)) {
        rq->retry_after_s = retry_s;
        return request_problem(rq, PROBLEM_RATE_LIMITED, "requests_per_second", "more than %llu requests a second",
                               (unsigned long long)rq->auth.requests_per_second);
    }
    return 0;
}

/* ---- is it well formed ---- */

static int check_params(struct request *rq) {
    static const struct {
        const char *name;
        enum id_kind kind;
    } ids[] = {{"sandbox_id", ID_SANDBOX}, {"operation_id", ID_OPERATION}, {"session_id", ID_SESSION},
               {"token_id", ID_TOKEN},     {"snapshot_id", ID_SNAPSHOT},   {"pool_id", ID_POOL},
               {"tenant_id", ID_TENANT}};
    static const struct {
        const char *name;
        enum pattern pattern;
    } patterns[] = {{"name", PATTERN_TEMPLATE_NAME},
                    {"tag", PATTERN_NAME},
                    {"digest", PATTERN_DIGEST},
                    {"node_id", PATTERN_NODE_ID}};
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
        const char *v = exchange_param(rq->x, ids[i].name);
        if (!v || id_is(v, ids[i].kind) || (ids[i].kind == ID_TENANT && strcmp(v, "self") == 0))
            continue;
        return sp_error_field(&rq->err, SP_E_INVALID, ids[i].name, "%s must be the id of a %s: %s_ and 26 characters",
                              ids[i].name, id_kind_noun(ids[i].kind), id_kind_prefix(ids[i].kind));
    }
    for (size_t i = 0; i < ARRAY_SIZE(patterns); i++) {
        const char *v = exchange_param(rq->x, patterns[i].name);
        if (v && !pattern_matches(patterns[i].pattern, v))
            return sp_error_field(&rq->err, SP_E_INVALID, patterns[i].name, "%s %s", patterns[i].name,
                                  pattern_text(patterns[i].pattern));
    }
    return 0;
}

static bool is_json_type(const char *type) {
    static const char json[] = "application/json";
    if (!type || strncasecmp(type, json, sizeof(json) - 1) != 0)
        return false;
    const char *rest = type + sizeof(json) - 1;
    rest += strspn(rest, " \t");
    return *rest == '\0' || *rest == ';';
}

static int parse_body(struct request *rq) {
    const struct field_table *table = rq->route->body;
    size_t len;
    const char *data = exchange_body(rq->x, &len);
    int r;
    if (len > 0) {
        if (!is_json_type(exchange_header(rq->x, "Content-Type")))
            return request_problem(rq, PROBLEM_UNSUPPORTED_MEDIA_TYPE, "Content-Type",
                                   "the body must be declared as application/json");
        r = json_parse(data, len, SIZE_MAX, &rq->body, &rq->err);
        if (r < 0)
            return request_map(rq, r, SP_E_INVALID, PROBLEM_MALFORMED, "");
    }
    if (table)
        return validate_body(table, rq->body, &rq->err);
    if (rq->route->is_raw_json && !json_is_object(rq->body))
        return sp_error_set(&rq->err, SP_E_INVALID, "the body must be an object");
    return 0;
}

static int parse_query(struct request *rq) {
    static const struct field_table none;
    int r = query_parse(rq->route->query ? rq->route->query : &none, exchange_query(rq->x), &rq->query, &rq->err);
    const char *cursor = r < 0 ? NULL : request_query(rq, "cursor");
    if (cursor && !store_cursor_is_valid(cursor))
        return sp_error_field(&rq->err, SP_E_INVALID, "cursor", "cursor must be the next_cursor of a page before");
    return r;
}

static int parse_key(struct request *rq) {
    const char *key = exchange_header(rq->x, "Idempotency-Key");
    if (!key || !rq->route->mutates)
        return 0;
    size_t len = strlen(key);
    if (http1_count(exchange_head(rq->x), "Idempotency-Key") > 1)
        return sp_error_field(&rq->err, SP_E_INVALID, "Idempotency-Key", "Idempotency-Key is given twice");
    for (size_t i = 0; i < len; i++)
        if (key[i] < '!' || key[i] > '~')
            return sp_error_field(&rq->err, SP_E_INVALID, "Idempotency-Key",
                                  "Idempotency-Key must hold printable ASCII without spaces only");
    if (len < 1 || len > LIMIT_VALUE(idempotency_key_bytes) || !text_copy(rq->key, sizeof(rq->key), key))
        return sp_error_field(&rq->err, SP_E_INVALID, "Idempotency-Key",
                              "Idempotency-Key must have 1 to %d characters, has %zu",
                              (int)LIMIT_VALUE(idempotency_key_bytes), len);
    return 0;
}

/* Method and path, and hashes of the key and of the body in canonical form. */
static int identify(struct request *rq) {
    struct idempotency_key *k = &rq->idempotency;
    if (!text_printf(rq->route_text, sizeof(rq->route_text), "%s %s", exchange_method(rq->x), exchange_path(rq->x)))
        return sp_error_field(&rq->err, SP_E_INVALID, "Idempotency-Key", "the path is too long to keep an answer for");
    k->tenant_id = rq->auth.tenant_id;
    k->route = rq->route_text;
    sha256_memory(rq->key, strlen(rq->key), k->key_hash);
    char *canonical = rq->body ? json_dumps(rq->body, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;
    sha256_memory(canonical ? canonical : "", canonical ? strlen(canonical) : 0, k->body_hash);
    free(canonical);
    return 0;
}

static int parse(struct request *rq) {
    int r = check_params(rq);
    if (r == 0)
        r = parse_query(rq);
    if (r == 0)
        r = parse_key(rq);
    if (r == 0 && rq->route->prefers)
        r = query_parse_prefer(exchange_header(rq->x, "Prefer"), &rq->wait_s, &rq->err);
    if (r == 0)
        r = parse_body(rq);
    if (r == 0 && rq->key[0])
        r = identify(rq);
    return r;
}

/* ---- the handler, and what is around it when it mutates ---- */

/* A transaction may be run again: nothing of the earlier try may be left. */
static void forget_result(struct request *rq) {
    json_decref(rq->answer);
    free(rq->text);
    rq->answer = NULL;
    rq->text = NULL;
    rq->status = 0;
    rq->has_problem = rq->is_replay = false;
    rq->err = (struct sp_error){0};
    rq->object_id[0] = rq->problem_operation[0] = '\0';
    rq->retry_after_s = 0;
}

static void print_answer(struct request *rq) {
    if (rq->answer && !rq->text) {
        rq->text = json_print(rq->answer);
        rq->text_len = strlen(rq->text);
    }
}

static int replay(struct request *rq, struct kept_answer *kept) {
    _cleanup_free_ unsigned char *body = kept->body;
    struct seal_for what = {rq->auth.tenant_id, rq->route_text, rq->key};
    unsigned char *plain = NULL;
    size_t len = kept->body_len;
    if (kept->is_sealed) {
        if (secrets_unseal(&rq->c->secrets, &what, body, kept->body_len, &plain, &len) < 0)
            return request_problem(rq, PROBLEM_REPLAY_UNAVAILABLE, "Idempotency-Key",
                                   "the key was used; the secret of its answer can no longer be shown");
    } else
        plain = TAKE_PTR(body);
    rq->text = (char *)plain;
    rq->text_len = len;
    rq->status = kept->status;
    rq->is_replay = true;
    if (kept->operation_id[0]) {
        rq->wait_kind = 'o';
        (void)text_copy(rq->wait_key, sizeof(rq->wait_key), kept->operation_id);
    }
    atomic_fetch_add_explicit(&rq->c->metrics.replays, 1, memory_order_relaxed);
    return 0;
}

static int keep(struct request *rq) {
    struct kept_answer kept = {.status = rq->status,
                               .body = (unsigned char *)(rq->text ? rq->text : ""),
                               .body_len = rq->text_len,
                               .is_sealed = rq->route->seals};
    _cleanup_free_ unsigned char *sealed = NULL;
    if (rq->wait_kind == 'o')
        (void)text_copy(kept.operation_id, sizeof(kept.operation_id), rq->wait_key);
    if (rq->route->seals) {
        struct seal_for what = {rq->auth.tenant_id, rq->route_text, rq->key};
        if (secrets_seal(&rq->c->secrets, &what, kept.body, kept.body_len, &sealed, &kept.body_len) < 0)
            return sp_error_set(&rq->err, SP_E_INTERNAL, "an answer could not be sealed");
        kept.body = sealed;
    }
    return idempotency_keep(rq->db, &rq->idempotency, &kept, &rq->err);
}

static int work(struct request *rq) {
    struct audit_row audit = {.tenant_id = rq->auth.tenant_id,
                              .token_id = rq->auth.token_id,
                              .action = rq->route->action,
                              .object_id = rq->object_id,
                              .peer = exchange_peer(rq->x)};
    int r = rq->route->handler(rq);
    if (r == 0)
        r = audit_add(rq->db, &audit, &rq->err);
    if (r == 0)
        print_answer(rq);
    if (r == 0 && rq->key[0])
        r = keep(rq);
    return r;
}

/* Errors go to rq->err; the one handed in is the same. */
static int mutate(struct store *s, void *ctx, struct sp_error *err) {
    struct request *rq = ctx;
    struct kept_answer kept;
    enum claim claim = CLAIM_NEW;
    (void)s;
    (void)err;
    forget_result(rq);
    if (rq->key[0]) {
        int r = idempotency_claim(rq->db, &rq->idempotency, &claim, &kept, &rq->err);
        if (r < 0)
            return r;
    }
    if (claim == CLAIM_OTHER_BODY)
        return request_problem(rq, PROBLEM_IDEMPOTENCY_MISMATCH, "Idempotency-Key",
                               "the key was used with another body");
    return claim == CLAIM_REPLAY ? replay(rq, &kept) : work(rq);
}

static int first_run(struct request *rq) {
    if (!atomic_load(&rq->c->is_ready) && rq->route->auth != AUTH_NONE)
        return sp_error_set(&rq->err, SP_E_UNAVAILABLE, "the database is not ready");
    int r = authenticate(rq);
    if (r == 0)
        r = authorize(rq);
    if (r == 0)
        r = parse(rq);
    if (r < 0)
        return r;
    if (rq->route->mutates)
        return store_transaction(rq->db, rq->key[0] != '\0', mutate, rq, &rq->err);
    r = rq->route->handler(rq);
    return r;
}

static void forget_input(struct request *rq) {
    json_decref(rq->query);
    json_decref(rq->body);
    rq->query = rq->body = NULL;
}

static bool connection_was_lost(const struct request *rq, int r) {
    return r == -SP_E_UNAVAILABLE && !rq->has_problem && store_should_retry(rq->db);
}

void dispatch_run(struct worker_job *job, void *thread_ctx) {
    struct request *rq = (struct request *)job;
    uint64_t connects;
    rq->db = thread_ctx;
    connects = store_connects(rq->db);
    int (*run)(struct request *) = rq->is_parked ? rq->route->refresh : first_run;
    bool was_replay = rq->is_replay;
    if (rq->is_parked)
        forget_result(rq);
    int r = run(rq);
    /* A read on a connection that had died unnoticed is worth one more try; mutations have tried by themselves. */
    if (connection_was_lost(rq, r) && (rq->is_parked || !rq->route->mutates)) {
        forget_result(rq);
        if (!rq->is_parked)
            forget_input(rq);
        r = run(rq);
    }
    if (rq->is_parked)
        rq->is_replay = was_replay;
    store_rollback(rq->db);
    if (r == 0)
        print_answer(rq);
    else if (rq->err.code == SP_OK)
        (void)sp_error_set(&rq->err, SP_E_INTERNAL, "%s failed without a reason", rq->route->action);
    connects = store_connects(rq->db) - connects;
    if (connects)
        atomic_fetch_add_explicit(&rq->c->metrics.worker_connects, connects, memory_order_relaxed);
    rq->n_notes = store_take_notes(rq->db, rq->notes, REQUEST_NOTES, &rq->notes_pid);
    rq->db = NULL;
}
