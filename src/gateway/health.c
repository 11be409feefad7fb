/* SPDX-License-Identifier: Apache-2.0 */
/* /healthz (the program lives), /readyz (control answers), /metrics (Prometheus text). */
#include "base/json.h"
#include "base/text.h"
#include "gateway/exit_watch.h"
#include "gateway/gateway.h"
#include "gateway/problem.h"
#include "gateway/session_report.h"
#include <inttypes.h>
#include <string.h>

#define READY_MS 3000u
#define METRICS_MAX 16384u

void healthz_handler(struct exchange *x) {
    static const char body[] = "{\"status\":\"ok\",\"version\":\"" SPACE_VERSION "\"}";
    (void)exchange_respond(x, 200, "application/json", body, sizeof(body) - 1);
}

/* ---- readyz: any answer of control to a question nobody can have asked before ---- */

struct ready {
    struct exchange *exchange;
    struct internal_call *call;
};

static void on_ready_answer(void *ctx, const struct internal_answer *a) {
    struct ready *ready = ctx;
    bool token_refused = a->status == 401 && text_starts_with(a->error.field, "Authorization");
    ready->call = NULL;
    if (a->status == 0 || a->status >= 500 || token_refused)
        (void)exchange_problem(ready->exchange, 503, "unavailable", "",
                               token_refused ? "the control plane refuses this gateway"
                                             : "the control plane does not answer");
    else
        healthz_handler(ready->exchange);
}

static void on_ready_close(struct exchange *x, enum exchange_end end) {
    struct ready *ready = exchange_user(x);
    (void)end;
    internal_call_cancel(ready->call);
    exchange_unref(x);
    free(ready);
}

void readyz_handler(struct exchange *x) {
    static const struct exchange_events events = {.on_close = on_ready_close};
    struct gateway *g = exchange_server_ctx(x);
    struct ready *ready = g->stopping ? NULL : calloc(1, sizeof(*ready));
    char session_id[ID_SIZE], hash[SHA256_HEX_SIZE];
    _cleanup_json_ json_t *body = NULL;
    if (!ready) {
        (void)exchange_problem(x, 503, "unavailable", "", "the gateway stops");
        return;
    }
    ready->exchange = exchange_ref(x);
    exchange_set_events(x, &events, ready);
    id_generate(session_id, "ses");
    sha256_memory_hex(session_id, strlen(session_id), hash);
    body = json_pack("{s:s, s:s}", "session_id", session_id, "token_sha256", hash);
    const struct internal_request req = {.method = "POST",
                                         .target = "/internal/v1/attach",
                                         .body = body,
                                         .timeout_ms = READY_MS};
    if (!body || internal_call_start(g->control, &req, on_ready_answer, ready, &ready->call, NULL) < 0)
        (void)exchange_problem(x, 503, "unavailable", "", "too many requests at once");
}

/* ---- metrics ---- */

static void put_metric(struct buf *out, const char *name, const char *type, const char *help, uint64_t value) {
    (void)buf_printf(out, "# HELP space_gateway_%s %s\n# TYPE space_gateway_%s %s\nspace_gateway_%s %" PRIu64 "\n",
                     name, help, name, type, name, value);
}

void metrics_handler(struct exchange *x) {
    const struct gateway *g = exchange_server_ctx(x);
    const struct gateway_stats *s = &g->stats;
    struct http_server_stats http;
    _cleanup_buf_ struct buf out = {0};
    buf_init(&out, METRICS_MAX);
    http_server_get_stats(g->server, &http);
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } rows[] = {
        {"streams_open", "gauge", "Event streams open now.", g->streams},
        {"streams_max", "gauge", "Event streams allowed at once.", g->streams_max},
        {"calls_open", "gauge", "stdin, resize and signal requests open now.",
         session_table_open(g->sessions, SESSION_CALL)},
        {"sessions_open", "gauge", "Sessions with something open.", session_table_sessions(g->sessions)},
        {"connections_open", "gauge", "Client connections open now.", http.connections},
        {"sessions_watched", "gauge", "Sessions without a reader whose end is waited for.",
         exit_watch_sessions(g->exits)},
        {"reports_waiting", "gauge", "Session reports control has not taken.", session_reports_waiting(g->reports)},
        {"reports_dropped_total", "counter", "Session reports given up.", session_reports_dropped(g->reports)},
        {"streams_total", "counter", "Event streams begun.", s->streams},
        {"calls_total", "counter", "stdin, resize and signal requests sent to an agent.", s->calls},
        {"events_total", "counter", "Events sent.", s->events},
        {"stdin_bytes_total", "counter", "Bytes sent to processes.", s->stdin_bytes},
        {"heartbeats_total", "counter", "Heartbeat comments sent.", s->heartbeats},
        {"refused_total", "counter", "Requests answered with a problem.", s->refused},
        {"sandbox_gone_total", "counter", "Event streams whose sandbox went away.", s->gone},
        {"guest_violations_total", "counter", "Streams ended because the guest broke its protocol.", s->violations},
        {"client_gone_total", "counter", "Requests whose client went away.", s->client_gone},
        {"client_stalled_total", "counter", "Streams cut because the client took nothing for too long.", s->stalled},
        {"http_requests_total", "counter", "Requests received.", http.requests},
        {"http_bad_requests_total", "counter", "Requests refused by the HTTP parser.", http.bad_requests},
        {"http_refused_total", "counter", "Connections refused over the limit.", http.refused},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        put_metric(&out, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
    (void)exchange_respond(x, 200, "text/plain; version=0.0.4", out.data, out.len);
}
