/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IDENTITY: applies the values (identity.c), runs the hooks one after the other while the commands are still frozen,
 * then thaws and answers. Hooks have 5 s each and 10 s together; one that fails is counted and logged, the rest goes on.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "guest/identity.h"
#include "guest/klog.h"
#include "guest/session.h"
#include <errno.h>
#include <string.h>

#define HOOK_MS 5000u
#define HOOKS_NS (10 * NSEC_PER_SEC)
#define MIN_ENTROPY 32u
#define MAX_ENTROPY 512u
#define MIN_RETENTION_MS 1000u

struct fields {
    char hostname[65], machine_id[34], sandbox_id[80];
};

static void next_hook(struct agent *a);

/* NULL, or what is wrong. */
static const char *read_values(const struct record *rec, struct fields *f, struct identity_values *v) {
    struct view entropy;

    v->generation = record_get_u64_or(rec, TAG_GENERATION, 0);
    v->realtime_ns = record_get_u64_or(rec, TAG_REALTIME_NS, 0);
    if (!record_get_bytes(rec, TAG_ENTROPY, &entropy) || entropy.len < MIN_ENTROPY || entropy.len > MAX_ENTROPY)
        return "entropy must be 32 to 512 bytes";
    v->entropy = entropy.p;
    v->entropy_len = entropy.len;
    if (record_get_string(rec, TAG_HOSTNAME, f->hostname, sizeof(f->hostname)) < 0 ||
        !identity_hostname_is_good(f->hostname))
        return "hostname must be 1 to 63 of a-z 0-9 - .";
    if (record_get_string(rec, TAG_MACHINE_ID, f->machine_id, sizeof(f->machine_id)) < 0 ||
        !identity_machine_id_is_good(f->machine_id))
        return "machine_id must be 32 hex digits";
    if (record_get_string(rec, TAG_SANDBOX_ID, f->sandbox_id, sizeof(f->sandbox_id)) < 0)
        return "sandbox_id is longer than 79 bytes";
    v->hostname = f->hostname;
    v->machine_id = f->machine_id;
    v->sandbox_id = f->sandbox_id;
    return NULL;
}

/* What is not given stays as it is. */
static bool stays(const char *given, const char *have) {
    return given[0] == '\0' || strcmp(given, have) == 0;
}

static bool is_same(const struct identity *have, const struct identity_values *v) {
    return have->applied && have->generation == v->generation && stays(v->machine_id, have->machine_id) &&
           stays(v->hostname, have->hostname) && stays(v->sandbox_id, have->sandbox_id);
}

/* What commands started from now on get. 0, or a negative errno. */
static int take_settings(struct agent *a, const struct record *rec, const struct identity_values *v) {
    uint64_t window = record_get_u64_or(rec, TAG_OUTPUT_WINDOW, 0);
    uint64_t retention = record_get_u64_or(rec, TAG_SESSION_RETENTION_MS, 0);
    char **env;
    int r = session_list(rec, TAG_ENV, SPAWN_MAX_ENV, &env);

    if (r < 0)
        return r;
    free(a->identity.env);
    a->identity.env = env;
    a->identity.generation = v->generation;
    a->identity.applied = true;
    if (v->hostname[0])
        (void)text_copy(a->identity.hostname, sizeof(a->identity.hostname), v->hostname);
    (void)text_copy(a->identity.sandbox_id, sizeof(a->identity.sandbox_id), v->sandbox_id);
    if (v->machine_id[0])
        (void)text_copy(a->identity.machine_id, sizeof(a->identity.machine_id), v->machine_id);
    if (window > 0)
        a->processes.window = window < RING_MIN_WINDOW   ? RING_MIN_WINDOW
                              : window > RING_MAX_WINDOW ? RING_MAX_WINDOW
                                                         : (size_t)window;
    if (retention > 0)
        a->processes.retention_ms = retention < MIN_RETENTION_MS ? MIN_RETENTION_MS : retention;
    return 0;
}

static void thaw(struct agent *a) {
    unsigned bucket = 0;
    struct process *p = NULL;
    int r = cgroup_freeze(false);

    if (r < 0)
        klog(KLOG_ERROR, "commands could not be thawed: %s", strerror(-r));
    a->state = AGENT_OPEN;
    while ((p = process_next(&a->processes, &bucket, p)))
        process_readers_changed(p); /* the grace of a lost reader counts from here */
}

static void finish(struct agent *a) {
    struct session *s = a->identify.session;
    size_t mark;

    timer_stop(&a->loop, &a->identify.deadline);
    free(a->identify.names);
    a->identify.names = NULL;
    a->identify.session = NULL;
    thaw(a);
    if (!s)
        return;
    mark = session_begin(s, REC_IDENTIFIED);
    (void)record_put_u64(&s->out, TAG_GENERATION, a->identity.generation);
    (void)record_put_u64(&s->out, TAG_HOOKS_RUN, a->identify.run);
    (void)record_put_u64(&s->out, TAG_HOOKS_FAILED, a->identify.failed);
    session_commit(s, mark);
    session_ready(s);
}

static void hook_done(struct process *p) {
    struct agent *a = p->agent;

    a->identify.hook = NULL;
    if (p->exit_code != 0) {
        a->identify.failed++;
        klog(KLOG_WARN, "identity hook %s: %s, code %d", p->command, p->reason, p->exit_code);
    }
    next_hook(a);
}

static void next_hook(struct agent *a) {
    struct identify *i = &a->identify;
    const char *code, *message;
    char generation[48];

    (void)text_printf(generation, sizeof(generation), "SPACE_GENERATION=%llu",
                      (unsigned long long)a->identity.generation);
    while (i->names && i->names[i->next]) {
        char *argv[] = {i->names[i->next++], NULL};
        char *env[] = {generation, NULL};
        struct process_request req = {.id = "",
                                      .argv = argv,
                                      .env = env,
                                      .cwd = "/",
                                      .hidden = true,
                                      .timeout_ms = HOOK_MS,
                                      .parent = CGROUP_HOOKS,
                                      .done = hook_done};
        i->run++;
        if (process_start(a, &req, &i->hook, &code, &message) == 0)
            return;
        i->failed++;
        klog(KLOG_WARN, "identity hook could not be started: %s", message);
    }
    finish(a);
}

static void on_deadline(struct timer *t) {
    struct agent *a = container_of(t, struct agent, identify.deadline);

    while (a->identify.names && a->identify.names[a->identify.next]) {
        a->identify.next++;
        a->identify.failed++;
    }
    if (a->identify.hook)
        process_kill(a->identify.hook, "timeout");
}

void request_identity(struct session *s, const struct record *rec) {
    struct agent *a = s->agent;
    struct identity_values v = {0};
    struct fields f;
    const char *wrong = read_values(rec, &f, &v);
    int r;

    if (wrong) {
        session_error(s, "invalid", wrong);
        return;
    }
    if (a->state != AGENT_OPEN && a->state != AGENT_FROZEN && !(a->state == AGENT_SILENT && a->freezer.keep)) {
        session_error(s, "busy", "QUIESCE or IDENTITY is under way");
        return;
    }
    v.other_machine = v.machine_id[0] && strcmp(v.machine_id, a->identity.machine_id) != 0;
    v.same = is_same(&a->identity, &v);
    r = take_settings(a, rec, &v);
    if (r < 0) {
        session_error(s, r == -ENOMEM ? "no_memory" : "invalid",
                      r == -ENOMEM ? "out of memory" : "more than 1024 variables");
        return;
    }
    if (a->state == AGENT_SILENT)
        agent_end_silence(a, AGENT_IDENTIFYING);
    a->state = AGENT_IDENTIFYING;
    a->identify = (struct identify){.session = s};
    s->busy = true;
    if (!a->config.hosted) {
        (void)identity_apply(&v);
        a->identify.names = v.same ? NULL : identity_hooks();
    }
    timer_arm(&a->loop, &a->identify.deadline, clock_monotonic_ns() + HOOKS_NS, on_deadline);
    next_hook(a);
}
