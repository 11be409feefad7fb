/* SPDX-License-Identifier: Apache-2.0 */
/* Passes of the reconciler. Nothing is kept in memory between two of them. */
#include "control/keeper.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "model/ids.h"
#include "model/scopes.h"
#include "store/lifecycle.h"
#include "store/maintenance.h"
#include "store/migrate.h"
#include "store/policies.h"
#include "store/snapshots.h"
#include "store/tokens.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define PASS_MS 2000
#define SWEEP_MS 60000
#define RETRY_MS 500

struct keeper {
    struct control *c;
    struct store *db;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_woken, is_hurried, should_stop;
    uint64_t full_pass_at_ns, sweep_at_ns;
};

/* ---- waking ---- */

void keeper_wake(struct keeper *k, bool everything) {
    if (!k)
        return;
    (void)pthread_mutex_lock(&k->lock);
    k->is_woken = true;
    k->is_hurried = k->is_hurried || everything;
    (void)pthread_cond_signal(&k->changed);
    (void)pthread_mutex_unlock(&k->lock);
}

static bool take_hurry(struct keeper *k) {
    (void)pthread_mutex_lock(&k->lock);
    bool hurried = k->is_hurried;
    k->is_hurried = false;
    (void)pthread_mutex_unlock(&k->lock);
    return hurried;
}

/* True when it should stop. */
static bool rest(struct keeper *k, uint64_t ms) {
    struct timespec until;
    bool stop;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * (long)NSEC_PER_MSEC;
    if (until.tv_nsec >= (long)NSEC_PER_SEC) {
        until.tv_sec++;
        until.tv_nsec -= (long)NSEC_PER_SEC;
    }
    (void)pthread_mutex_lock(&k->lock);
    while (!k->is_woken && !k->should_stop)
        if (pthread_cond_timedwait(&k->changed, &k->lock, &until) == ETIMEDOUT)
            break;
    k->is_woken = false;
    stop = k->should_stop;
    (void)pthread_mutex_unlock(&k->lock);
    return stop;
}

/* ---- passes ---- */

struct one {
    const char *id;
    enum plan_verb verb;
};

static int reconcile_one(struct store *s, void *ctx, struct sp_error *err) {
    struct one *o = ctx;
    return lifecycle_reconcile(s, o->id, &o->verb, err);
}

static int reconcile_all(struct keeper *k, const struct store_result *res, int n, struct sp_error *err) {
    static const char *const verbs[] = {[PLAN_ASSIGN] = "assigned",
                                        [PLAN_FAIL] = "failed",
                                        [PLAN_GIVE_UP] = "given_up",
                                        [PLAN_FINISH_DELETE] = "deleted",
                                        [PLAN_FINISH_FORK] = "forked"};
    for (int i = 0; i < n; i++) {
        struct one o = {.id = lifecycle_work_id(res, i)};
        bool is_due = false;
        int r = lifecycle_is_due(k->db, o.id, &is_due, err);
        if (r == 0 && is_due)
            r = store_transaction(k->db, true, reconcile_one, &o, err);
        if (r < 0)
            return r;
        if (o.verb == PLAN_NOTHING)
            continue;
        atomic_fetch_add_explicit(&k->c->metrics.keeper_actions, 1, memory_order_relaxed);
        log_event(LOG_L_INFO, "sandbox_reconciled", "sandbox_id", o.id, "action", verbs[o.verb], NULL);
    }
    return 0;
}

static int pass(struct keeper *k, int (*find)(struct store *, struct store_result **, int *, struct sp_error *),
                struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    int n = 0;
    int r = find(k->db, &res, &n, err);
    return r < 0 ? r : reconcile_all(k, res, n, err);
}

/* ---- policies ---- */

struct due {
    const char *id;
    struct policy_action done;
    uint64_t removed;
};

static int apply_policy(struct store *s, void *ctx, struct sp_error *err) {
    struct due *d = ctx;
    return policies_apply(s, d->id, &d->done, err);
}

static int apply_checkpoints(struct store *s, void *ctx, struct sp_error *err) {
    struct due *d = ctx;
    return checkpoints_apply(s, d->id, &d->removed, err);
}

static int policy_pass(struct keeper *k, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    int n = 0;
    int r = policies_find(k->db, &res, &n, err);
    for (int i = 0; r == 0 && i < n; i++) {
        struct due d = {.id = lifecycle_work_id(res, i)};
        r = store_transaction(k->db, true, apply_policy, &d, err);
        if (r < 0 || !d.done.acts)
            continue;
        atomic_fetch_add_explicit(&k->c->metrics.keeper_actions, 1, memory_order_relaxed);
        log_event(LOG_L_INFO, "policy_applied", "sandbox_id", d.id, "operation", operation_kind_name(d.done.kind),
                  "reason", operation_reason_name(d.done.reason), NULL);
    }
    return r;
}

static int checkpoint_pass(struct keeper *k, struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    int n = 0;
    int r = checkpoints_find(k->db, &res, &n, err);
    for (int i = 0; r == 0 && i < n; i++) {
        struct due d = {.id = lifecycle_work_id(res, i)};
        r = store_transaction(k->db, true, apply_checkpoints, &d, err);
    }
    return r;
}

static int sweep_snapshots(struct store *s, void *ctx, struct sp_error *err) {
    return snapshots_sweep(s, ctx, err);
}

/* Everything that is looked at whether somebody asked for it or not. */
static int full_pass(struct keeper *k, struct sp_error *err) {
    uint64_t removed = 0;
    int r = pass(k, lifecycle_find_work, err);
    if (r == 0)
        r = policy_pass(k, err);
    if (r == 0)
        r = checkpoint_pass(k, err);
    return r < 0 ? r : store_transaction(k->db, true, sweep_snapshots, &removed, err);
}

static int sweep(struct keeper *k, uint64_t now, struct sp_error *err) {
    uint64_t removed = 0;
    int r = maintenance_sweep(k->db, &removed, err);
    atomic_fetch_add_explicit(&k->c->metrics.swept, removed, memory_order_relaxed);
    k->sweep_at_ns = now + (removed ? PASS_MS : SWEEP_MS) * NSEC_PER_MSEC;
    return r;
}

static int turn(struct keeper *k, struct sp_error *err) {
    uint64_t now = clock_monotonic_ns();
    int r = pass(k, lifecycle_take_outbox, err);
    if (r == 0 && (now >= k->full_pass_at_ns || take_hurry(k))) {
        r = full_pass(k, err);
        k->full_pass_at_ns = now + PASS_MS * NSEC_PER_MSEC;
    }
    if (r == 0 && now >= k->sweep_at_ns)
        r = sweep(k, now, err);
    atomic_fetch_add_explicit(&k->c->metrics.keeper_passes, 1, memory_order_relaxed);
    return r;
}

/* ---- start ---- */

static int add_token(struct store *db, void *ctx, struct sp_error *err) {
    const char *token = ctx;
    char tenant_id[ID_SIZE], token_id[ID_SIZE];
    uint8_t hash[SHA256_SIZE];
    int r = tenant_ensure(db, "default", tenant_id, err);
    if (r < 0 || !*token)
        return r;
    id_new(token_id, ID_TOKEN);
    sha256_memory(token, strlen(token), hash);
    struct token_new_row n = {
        .id = token_id, .tenant_id = tenant_id, .name = "bootstrap", .hash = hash, .scopes = SCOPE_ALL};
    return token_ensure(db, &n, err);
}

int keeper_prepare(struct store *db, const char *bootstrap_token, struct sp_error *err) {
    unsigned applied = 0;
    char text[16], token[TOKEN_SIZE];
    int r = store_migrate(db, &applied, err);
    if (r == 0 && !text_copy(token, sizeof(token), bootstrap_token))
        r = sp_error_set(err, SP_E_INVALID, "the bootstrap token is too long");
    if (r == 0)
        r = store_transaction(db, true, add_token, token, err);
    text_wipe(token, sizeof(token));
    if (r == 0 && applied) {
        (void)text_printf(text, sizeof(text), "%u", applied);
        log_event(LOG_L_INFO, "schema_migrated", "applied", text, NULL);
    }
    return r;
}

/* A schema of a newer version may become ours again by a rollback of the other side: keep trying, say so. */
static bool prepare(struct keeper *k) {
    for (;;) {
        struct sp_error err = {0};
        if (keeper_prepare(k->db, k->c->bootstrap_token, &err) == 0) {
            atomic_store(&k->c->is_ready, true);
            log_event(LOG_L_INFO, "control_ready", NULL);
            return true;
        }
        log_error(LOG_L_WARN, "database_not_ready", &err, NULL);
        if (rest(k, RETRY_MS))
            return false;
    }
}

static void *run(void *ctx) {
    struct keeper *k = ctx;
    if (!prepare(k))
        return NULL;
    for (uint64_t wait_ms = PASS_MS; !rest(k, wait_ms);) {
        struct sp_error err = {0};
        wait_ms = PASS_MS;
        if (turn(k, &err) == 0)
            continue;
        store_rollback(k->db);
        atomic_fetch_add_explicit(&k->c->metrics.keeper_failures, 1, memory_order_relaxed);
        log_error(LOG_L_WARN, "reconcile_failed", &err, NULL);
        wait_ms = RETRY_MS;
    }
    return NULL;
}

int keeper_start(struct control *c, struct sp_error *err) {
    struct keeper *k = calloc(1, sizeof(*k));
    pthread_condattr_t attr;
    int r;
    if (!k)
        abort();
    k->c = c;
    (void)pthread_mutex_init(&k->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&k->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    r = store_new(c->database_url, CONTROL_STATEMENT_MS, &k->db, err);
    if (r == 0 && pthread_create(&k->thread, NULL, run, k) != 0)
        r = sp_error_set(err, SP_E_INTERNAL, "no thread for the reconciler");
    if (r < 0) {
        (void)store_free(k->db);
        free(k);
        return r;
    }
    c->keeper = k;
    return 0;
}

struct keeper *keeper_stop(struct keeper *k) {
    if (k) {
        (void)pthread_mutex_lock(&k->lock);
        k->should_stop = true;
        (void)pthread_cond_signal(&k->changed);
        (void)pthread_mutex_unlock(&k->lock);
        (void)pthread_join(k->thread, NULL);
        (void)store_free(k->db);
        (void)pthread_mutex_destroy(&k->lock);
        (void)pthread_cond_destroy(&k->changed);
        free(k);
    }
    return NULL;
}
