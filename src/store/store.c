/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection: connecting, statements with a time limit, transactions and their retries. libpq is used without
 * blocking so that a database which hangs costs a request its time limit and not a thread its life.
 */
#include "store/store.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "store/pg.h"
#include "store/store_internal.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#define CONNECT_TIMEOUT_MS 5000
#define RECONNECT_PAUSE_NS (250 * NSEC_PER_MSEC)
#define SLOW_CONNECT_NS (500 * NSEC_PER_MSEC)
#define TRIES 4

int store_new(const char *url, uint64_t timeout_ms, struct store **ret, struct sp_error *err) {
    struct store *s = calloc(1, sizeof(*s));
    char *copy = strdup(url);
    if (!s || !copy) {
        free(s);
        free(copy);
        return sp_error_set(err, SP_E_UNAVAILABLE, "out of memory");
    }
    s->url = copy;
    s->timeout_ms = timeout_ms;
    *ret = s;
    return 0;
}

void store_disconnect(struct store *s) {
    PQfinish(s->conn);
    s->conn = NULL;
    s->n_prepared = 0;
    s->queued = 0;
    s->n_notes = s->n_notes_out = 0;
    s->in_transaction = false;
}

struct store *store_free(struct store *s) {
    if (s) {
        store_disconnect(s);
        text_wipe(s->url, strlen(s->url));
        free(s->url);
        free(s);
    }
    return NULL;
}

struct store_result *store_result_free(struct store_result *r) {
    if (r) {
        PQclear(r->pg);
        free(r);
    }
    return NULL;
}

uint64_t store_connects(const struct store *s) {
    return s->connects;
}
bool store_in_transaction(const struct store *s) {
    return s->in_transaction;
}
bool store_should_retry(const struct store *s) {
    return s->should_retry;
}
bool store_outcome_is_unknown(const struct store *s) {
    return s->outcome_is_unknown;
}

/* ---- failures ---- */

/* A transaction that was open stays marked so: nothing more runs until its owner rolled back. */
static int lost(struct store *s, struct sp_error *err, const char *what) {
    bool in_transaction = s->in_transaction;
    store_disconnect(s);
    s->in_transaction = in_transaction;
    s->should_retry = true;
    return sp_error_set(err, SP_E_UNAVAILABLE, "database: %s", what);
}

/* The last line libpq had to say, without its newline; never holds values of rows. */
static const char *first_line(char dst[160], const char *message) {
    size_t n = strcspn(message, "\n");
    if (n > 159)
        n = 159;
    memcpy(dst, message, n);
    dst[n] = '\0';
    return dst;
}

static bool is_class(const char *state, const char *class) {
    return text_starts_with(state, class);
}

static int refused(struct store *s, const PGresult *res, struct sp_error *err) {
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *constraint = PQresultErrorField(res, PG_DIAG_CONSTRAINT_NAME);
    char line[160];

    if (!state || PQstatus(s->conn) != CONNECTION_OK || is_class(state, "08") || is_class(state, "57P"))
        return lost(s, err, first_line(line, message ? message : PQerrorMessage(s->conn)));
    (void)first_line(line, message ? message : "no message");
    s->should_retry = strcmp(state, "40001") == 0 || strcmp(state, "40P01") == 0;
    /* serialization and deadlock, time limits, no resources, read-only, schema not there (yet) */
    if (s->should_retry || is_class(state, "55P03") || is_class(state, "57014") || is_class(state, "53") ||
        is_class(state, "25006") || is_class(state, "42P01") || is_class(state, "42703"))
        return sp_error_set(err, SP_E_UNAVAILABLE, "database: %s (%s)", line, state);
    if (is_class(state, "23505"))
        return sp_error_field(err, SP_E_CONFLICT, constraint ? constraint : "", "database: %s", line);
    return sp_error_set(err, SP_E_INTERNAL, "database: %s (%s)", line, state);
}

/* ---- connecting ---- */

static int wait_connected(struct store *s, struct deadline d, struct sp_error *err) {
    PostgresPollingStatusType step = PGRES_POLLING_WRITING;
    char line[160];
    while (step != PGRES_POLLING_OK) {
        struct pollfd p = {.fd = PQsocket(s->conn), .events = step == PGRES_POLLING_READING ? POLLIN : POLLOUT};
        if (step == PGRES_POLLING_FAILED || PQstatus(s->conn) == CONNECTION_BAD)
            return lost(s, err, first_line(line, PQerrorMessage(s->conn)));
        int n = poll(&p, 1, deadline_poll_ms(d));
        if (n == 0)
            return lost(s, err, "no connection in time");
        if (n < 0 && errno != EINTR)
            return lost(s, err, "poll failed");
        if (n > 0)
            step = PQconnectPoll(s->conn);
    }
    return 0;
}

static int connect_now(struct store *s, struct sp_error *err) {
    static const char *const keys[] = {"dbname", "client_encoding", "fallback_application_name", "options", NULL};
    /* Every statement is prepared once and few rows decide: planning each execution anew costs more than running it. */
    static const char options[] = "-c lock_timeout=8s -c idle_in_transaction_session_timeout=30s -c timezone=UTC "
                                  "-c plan_cache_mode=force_generic_plan";
    const char *values[] = {s->url, "UTF8", "space-control", options, NULL};
    int r;
    s->conn = PQconnectStartParams(keys, values, 1);
    if (!s->conn)
        return lost(s, err, "out of memory");
    r = wait_connected(s, deadline_in_ms(CONNECT_TIMEOUT_MS), err);
    if (r < 0)
        return r;
    (void)PQsetnonblocking(s->conn, 1);
    PQsetNoticeProcessor(s->conn, NULL, NULL);
    s->connects++;
    return 0;
}

int store_connect(struct store *s, struct sp_error *err) {
    uint64_t now = clock_monotonic_ns();
    int r;
    if (s->conn && PQstatus(s->conn) == CONNECTION_OK)
        return 0;
    if (s->failed_at_ns && now - s->failed_at_ns < RECONNECT_PAUSE_NS) {
        s->should_retry = false;
        return sp_error_set(err, SP_E_UNAVAILABLE, "database: no connection");
    }
    store_disconnect(s);
    r = connect_now(s, err);
    /* A refusal costs nothing to ask for again; a database that hangs does. */
    s->failed_at_ns = r < 0 && clock_monotonic_ns() - now > SLOW_CONNECT_NS ? clock_monotonic_ns() : 0;
    if (r < 0)
        s->should_retry = false;
    return r;
}

/* ---- statements ---- */

static int flush_out(struct store *s, struct deadline d, struct sp_error *err) {
    int left;
    while ((left = PQflush(s->conn)) == 1) {
        struct pollfd p = {.fd = PQsocket(s->conn), .events = POLLIN | POLLOUT};
        if (poll(&p, 1, deadline_poll_ms(d)) == 0)
            return lost(s, err, "a statement could not be sent in time");
        if (p.revents & POLLIN && !PQconsumeInput(s->conn))
            return lost(s, err, "connection lost");
    }
    return left == 0 ? 0 : lost(s, err, "connection lost");
}

/* The next result, NULL at the end of a statement's. */
static int next_result(struct store *s, struct deadline d, PGresult **ret, struct sp_error *err) {
    while (PQisBusy(s->conn)) {
        struct pollfd p = {.fd = PQsocket(s->conn), .events = POLLIN};
        if (poll(&p, 1, deadline_poll_ms(d)) == 0)
            return lost(s, err, "a statement took too long");
        if (!PQconsumeInput(s->conn))
            return lost(s, err, "connection lost");
    }
    *ret = PQgetResult(s->conn);
    return 0;
}

static bool has_failed(const PGresult *res) {
    ExecStatusType status = PQresultStatus(res);
    return status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK;
}

/* The result of one statement: the first that failed, else the last (a script gives several). */
static int gather_one(struct store *s, struct deadline d, PGresult **ret, struct sp_error *err) {
    PGresult *last = NULL, *res = NULL;
    int r;
    while ((r = next_result(s, d, &res, err)) == 0 && res) {
        bool keep_last = last && has_failed(last);
        PQclear(keep_last ? res : last);
        last = keep_last ? last : res;
    }
    if (r == 0 && !last)
        r = lost(s, err, "connection lost");
    if (r < 0) {
        PQclear(last);
        return r;
    }
    *ret = last;
    return 0;
}

/* The mark that ends a pipeline. */
static int gather_sync(struct store *s, struct deadline d, struct sp_error *err) {
    PGresult *res = NULL;
    int r = next_result(s, d, &res, err);
    bool good = r == 0 && res && PQresultStatus(res) == PGRES_PIPELINE_SYNC;
    PQclear(res);
    if (r == 0 && (!good || !PQexitPipelineMode(s->conn)))
        r = lost(s, err, "the pipeline broke");
    return r;
}

/* Results of everything that was queued and of the last statement: the first that failed, else the last one's. */
static int gather(struct store *s, bool is_pipeline, PGresult **ret, struct sp_error *err) {
    struct deadline d = deadline_in_ms(s->timeout_ms);
    PGresult *kept = NULL, *res = NULL;
    unsigned n = s->queued + 1;
    int r = flush_out(s, d, err);
    s->queued = 0;
    for (unsigned i = 0; r == 0 && i < n; i++) {
        r = gather_one(s, d, &res, err);
        if (r < 0)
            break;
        bool keep = kept && has_failed(kept);
        PQclear(keep ? res : kept);
        kept = keep ? kept : res;
    }
    if (r == 0 && is_pipeline)
        r = gather_sync(s, d, err);
    if (r < 0) {
        PQclear(kept);
        return r;
    }
    *ret = kept;
    return 0;
}

static int finish(struct store *s, bool is_pipeline, struct store_result **ret, struct sp_error *err) {
    PGresult *res = NULL;
    int r = gather(s, is_pipeline, &res, err);
    if (r < 0)
        return r;
    if (has_failed(res)) {
        r = refused(s, res, err);
        PQclear(res);
        return r;
    }
    if (!ret) {
        PQclear(res);
        return 0;
    }
    struct store_result *wrapped = malloc(sizeof(*wrapped));
    if (!wrapped)
        abort();
    wrapped->pg = res;
    *ret = wrapped;
    return 0;
}

static int send_failed(struct store *s, struct sp_error *err) {
    char line[160];
    return lost(s, err, first_line(line, PQerrorMessage(s->conn)));
}

/* Finds out how what was queued went. */
static int settle(struct store *s, struct sp_error *err) {
    if (s->queued == 0)
        return 0;
    s->queued--; /* the last one counts as the statement that is gathered for */
    return PQpipelineSync(s->conn) ? finish(s, true, NULL, err) : send_failed(s, err);
}

/* The statement's name; prepared the first time on a connection, which costs a round trip of its own. */
static int prepare(struct store *s, const char *sql, char name[16], struct sp_error *err) {
    unsigned i = 0;
    while (i < s->n_prepared && s->prepared[i] != sql)
        i++;
    (void)text_printf(name, 16, "s%u", i);
    if (i < s->n_prepared)
        return 0;
    assert(s->n_prepared < STATEMENTS_MAX);
    int r = settle(s, err);
    if (r < 0)
        return r;
    if (!PQsendPrepare(s->conn, name, sql, 0, NULL))
        return send_failed(s, err);
    r = finish(s, false, NULL, err);
    if (r < 0)
        return r;
    s->prepared[s->n_prepared++] = sql;
    return 0;
}

static int begin_statement(struct store *s, struct sp_error *err) {
    s->should_retry = s->outcome_is_unknown = false;
    if (s->in_transaction && !s->conn) {
        s->should_retry = true;
        return sp_error_set(err, SP_E_UNAVAILABLE, "database: connection lost");
    }
    return store_connect(s, err);
}

static int send(struct store *s, const char *sql, const struct pg_args *a, struct sp_error *err) {
    static const struct pg_args none;
    char name[16];
    int r = begin_statement(s, err);
    if (r == 0)
        r = prepare(s, sql, name, err);
    if (r < 0)
        return r;
    a = a ? a : &none;
    if (!PQsendQueryPrepared(s->conn, name, (int)a->n, a->values, a->lengths, a->formats, 0))
        return send_failed(s, err);
    return 0;
}

int pg_run(struct store *s, const char *sql, const struct pg_args *a, struct store_result **ret, struct sp_error *err) {
    int r = send(s, sql, a, err);
    bool is_pipeline = r == 0 && s->queued > 0;
    if (r == 0 && is_pipeline && !PQpipelineSync(s->conn))
        r = send_failed(s, err);
    return r < 0 ? r : finish(s, is_pipeline, ret, err);
}

int pg_queue(struct store *s, const char *sql, const struct pg_args *a, struct sp_error *err) {
    char name[16];
    int r = begin_statement(s, err);
    assert(s->in_transaction || strcmp(sql, "BEGIN") == 0);
    if (r == 0)
        r = prepare(s, sql, name, err);
    if (r < 0)
        return r;
    if (s->queued == 0 && !PQenterPipelineMode(s->conn))
        return send_failed(s, err);
    r = send(s, sql, a, err);
    if (r == 0)
        s->queued++;
    return r;
}

int pg_script(struct store *s, const char *sql, struct sp_error *err) {
    int r = begin_statement(s, err);
    if (r == 0)
        r = settle(s, err);
    if (r < 0)
        return r;
    if (!PQsendQuery(s->conn, sql))
        return send_failed(s, err);
    return finish(s, false, NULL, err);
}

int store_ping(struct store *s, struct sp_error *err) {
    return pg_run(s, "SELECT 1", NULL, NULL, err);
}

/* ---- transactions ---- */

unsigned store_take_notes(struct store *s, struct store_note *ret, unsigned max, int *ret_pid) {
    unsigned n = !s->conn ? 0 : s->n_notes_out < max ? s->n_notes_out : max;
    *ret_pid = s->conn ? PQbackendPID(s->conn) : 0;
    memcpy(ret, s->notes, n * sizeof(*ret));
    s->n_notes = s->n_notes_out = 0;
    return n;
}

int store_begin(struct store *s, struct sp_error *err) {
    assert(!s->in_transaction);
    s->n_notes = s->n_notes_out; /* those of a transaction that never ended are forgotten */
    int r = pg_queue(s, "BEGIN", NULL, err);
    if (r == 0)
        s->in_transaction = true;
    return r;
}

int store_commit(struct store *s, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    bool had_connection = s->conn != NULL;
    assert(s->in_transaction);
    int r = pg_run(s, "COMMIT", NULL, &res, err);
    if (r < 0 && had_connection && !s->conn)
        s->outcome_is_unknown = true;
    if (r == 0 && res && strcmp(PQcmdStatus(res->pg), "COMMIT") != 0) /* a failed statement was overlooked */
        r = sp_error_set(err, SP_E_INTERNAL, "the transaction had failed and was rolled back");
    s->in_transaction = false;
    if (r == 0)
        s->n_notes_out = s->n_notes;
    return r;
}

void store_rollback(struct store *s) {
    bool should_retry = s->should_retry, unknown = s->outcome_is_unknown;
    if (s->conn)
        (void)settle(s, NULL);
    if (s->in_transaction && s->conn && pg_run(s, "ROLLBACK", NULL, NULL, NULL) < 0)
        store_disconnect(s); /* never hand on a connection inside a transaction */
    s->in_transaction = false;
    s->should_retry = should_retry;
    s->outcome_is_unknown = unknown;
}

static int try_once(struct store *s, int (*fn)(struct store *s, void *ctx, struct sp_error *err), void *ctx,
                    struct sp_error *err) {
    int r = store_begin(s, err);
    if (r < 0)
        return r;
    r = fn(s, ctx, err);
    if (r < 0) {
        store_rollback(s);
        return r;
    }
    return store_commit(s, err);
}

int store_transaction(struct store *s, bool is_idempotent, int (*fn)(struct store *s, void *ctx, struct sp_error *err),
                      void *ctx, struct sp_error *err) {
    int r = -1;
    for (int i = 0; i < TRIES; i++) {
        r = try_once(s, fn, ctx, err);
        if (r == 0 || !s->should_retry || (s->outcome_is_unknown && !is_idempotent))
            return r;
        log_event(LOG_L_DEBUG, "transaction_retried", NULL);
    }
    return r;
}
