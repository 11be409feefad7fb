/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way up. From the template: a warm VM of the pool when there is one, at once. Else the snapshot (the template's, or
 * the one that `start` names) is awaited, then a start slot, then a blank takes it, or a VMM is started for it. One that holds
 * the disk alone is booted, by a VMM of its own.
 */
#include "base/log.h"
#include "base/text.h"
#include "node/node.h"
#include "node/sandbox_internal.h"
#include <string.h>

static bool starts_from_template(const struct sandbox *s) {
    return !s->want.start_snapshot[0];
}

static const char *snapshot_key(const struct sandbox *s) {
    return starts_from_template(s) ? s->spec.key : s->want.start_snapshot;
}

static void fail_with(struct sandbox *s, const struct sp_error *err) {
    struct fault fault;
    fault_from_error(&fault, err);
    if (fault.code == FAILURE_SNAPSHOT_MISSING && starts_from_template(s))
        fault.code = FAILURE_SNAPSHOT_BROKEN; /* it is made again */
    if (fault.code == FAILURE_SNAPSHOT_MISSING || fault.code == FAILURE_SNAPSHOT_BROKEN)
        snapshots_forget(s->node->snapshots, s->want.start_snapshot);
    sandbox_fail(s, &fault);
}

static uint64_t config_deadline_ms(const struct sandbox *s) {
    uint64_t left = sandbox_left_ms(s);
    return left ? left : 1;
}

/* Every answer on the way up comes here first: false when nothing more is to be done about it. */
static bool take_answer(struct sandbox *s, const struct sp_error *err) {
    s->call = NULL;
    if (s->state == SB_STOPPING) { /* it was given up meanwhile */
        sandbox_ask_stop(s);
        return false;
    }
    if (err && err->code == SP_E_UNAVAILABLE) { /* or sandbox_broker_up(), whichever comes first */
        loop_timer_start(s->retry, SANDBOX_RETRY_MS, 0);
        return false;
    }
    return true;
}

static void has_vm(struct sandbox *s) {
    s->broker_ms = sandbox_now_ms(s) - s->since_ms;
    s->spare[0] = '\0';
    sandbox_follow_vm(s);
}

/* ---- a VMM of its own ---- */

static void on_start_answer(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct sandbox *s = ctx;
    (void)reply;
    if (!take_answer(s, err))
        return;
    if (!err) {
        has_vm(s);
    } else if (err->code == SP_E_CONFLICT && !s->rebuilt) {
        s->rebuilt = true; /* something of an earlier start is left, or its snapshot is being removed */
        sandbox_stop(s, SB_NEW);
    } else {
        fail_with(s, err);
    }
}

/* Sends a request whose fields were made with the result `made`; they are taken over. */
static void send_request(struct sandbox *s, int made, const char *name, json_t *fields, const struct sp_error *why,
                         void (*done)(void *ctx, const json_t *reply, const struct sp_error *err)) {
    if (made < 0)
        fail_with(s, why);
    else if (broker_call_start(s->node->broker, name, fields, done, s, &s->call, NULL) < 0)
        loop_timer_start(s->retry, SANDBOX_RETRY_MS, 0);
}

static bool boots(const struct sandbox *s) {
    return !starts_from_template(s) && s->want.start_boots;
}

static void ask_start(struct sandbox *s) {
    struct sp_error err = {0};
    json_t *fields = NULL;
    int r;
    if (s->call || !broker_client_is_up(s->node->broker))
        return;
    s->start_kind = boots(s) ? START_BOOT : START_COLD;
    r = (boots(s) ? vm_request_boot_disk : vm_request_clone)(&s->node->base, &s->want, snapshot_key(s),
                                                             config_deadline_ms(s), &fields, &err);
    send_request(s, r, "vm_start", fields, &err, on_start_answer);
}

/* ---- a blank ---- */

static void leave_spare(struct sandbox *s) {
    s->cold_only = true;
    s->spare[0] = '\0';
    s->link = vm_link_free(s->link);
    s->identifying = false;
    s->phase = VM_PHASE_UNKNOWN;
}

/* The spare is of no use: a VMM of its own instead. */
static void go_cold(struct sandbox *s, const char *why) {
    log_event(LOG_L_WARN, "spare_failed", "sandbox_id", s->id, "spare", s->spare, "why", why, NULL);
    spares_discard(s->node->spares, s->spare);
    leave_spare(s);
}

/* Its snapshot was taken with another engine than the blank runs on, which is as good as it was. */
static bool is_of_another_engine(const struct sp_error *err) {
    return err->code == SP_E_CONFLICT && strcmp(err->field, "engine") == 0;
}

static void on_load_answer(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct sandbox *s = ctx;
    (void)reply;
    if (!take_answer(s, err))
        return;
    if (!err) {
        has_vm(s);
        return;
    }
    if (is_of_another_engine(err)) {
        spares_give_back(s->node->spares, s->spare);
        leave_spare(s);
    } else {
        go_cold(s, err->text);
    }
    ask_start(s);
}

static void ask_load(struct sandbox *s) {
    struct sp_error err = {0};
    json_t *fields = NULL;
    int r = vm_request_load(&s->node->base, &s->want, snapshot_key(s), s->spare, config_deadline_ms(s), &fields, &err);
    send_request(s, r, "vm_load", fields, &err, on_load_answer);
}

static bool take_blank(struct sandbox *s) {
    const struct vm_shape shape = {.vcpus = s->want.vcpus, .memory_mib = s->want.memory_mib};
    struct vm_link *link = NULL;
    if (s->cold_only || boots(s) || !spares_take_blank(s->node->spares, &shape, s->spare, &link))
        return false;
    vm_link_free(link); /* its socket moves; its first words as our VM are heard there */
    s->start_kind = START_BLANK;
    return true;
}

/* ---- a warm one ---- */

static void on_bind_answer(void *ctx, const json_t *reply, const struct sp_error *err) {
    struct sandbox *s = ctx;
    (void)reply;
    if (!take_answer(s, err))
        return;
    if (!err) {
        has_vm(s);
        return;
    }
    go_cold(s, err->text); /* who it belongs to is the broker's to say, and it says: not to us */
    sandbox_set_state(s, SB_NEW);
    sandbox_start(s);
}

static void ask_bind(struct sandbox *s) {
    if (!s->call &&
        broker_call_start(s->node->broker, "vm_bind", json_pack("{s:s, s:s}", "id", s->spare, "sandbox", s->id),
                          on_bind_answer, s, &s->call, NULL) < 0)
        loop_timer_start(s->retry, SANDBOX_RETRY_MS, 0);
}

void sandbox_send_identify(struct sandbox *s) {
    struct sp_error err = {0};
    json_t *fields = NULL;
    if (vm_request_identify(&s->node->base, &s->want, &fields, &err) < 0)
        fail_with(s, &err);
    else if (vm_link_request(s->link, "identify", fields))
        s->identifying = true; /* else its next status, after the connection was made again, leads here once more */
}

/* The broker makes it ours while it wakes up: neither waits for the other, and it is running once both are done. */
static bool take_warm(struct sandbox *s) {
    struct node *n = s->node;
    if (s->cold_only || !broker_client_is_up(n->broker) ||
        !spares_take_warm(n->spares, s->spec.key, s->spare, &s->link))
        return false;
    vm_link_hand_over(s->link, n->settings->state_dir, s->id, &sandbox_link_events, s);
    s->start_kind = START_WARM;
    s->phase = VM_PHASE_WARM;
    s->started_ms = sandbox_now_ms(s);
    s->generation = s->want.generation;
    sandbox_set_state(s, SB_STARTING);
    ask_bind(s);
    if (s->state == SB_STARTING)
        sandbox_send_identify(s);
    return true;
}

/* ---- slots and retries ---- */

void sandbox_take_slot(struct sandbox *s) {
    bool has_blank;
    s->queue_ms += sandbox_now_ms(s) - s->since_ms;
    s->start_kind = boots(s) ? START_BOOT : START_COLD;
    has_blank = broker_client_is_up(s->node->broker) && take_blank(s);
    sandbox_set_state(s, SB_STARTING);
    s->started_ms = sandbox_now_ms(s);
    s->generation = s->want.generation;
    if (has_blank)
        ask_load(s);
    else
        ask_start(s);
}

void sandbox_start_retry(struct sandbox *s) {
    if (s->call || !broker_client_is_up(s->node->broker))
        return;
    if (s->start_kind == START_WARM && s->spare[0]) {
        ask_bind(s);
        return;
    }
    if (s->spare[0]) /* how far a load came that was cut off is not worth finding out */
        go_cold(s, "the broker did not answer");
    ask_start(s);
}

void sandbox_start_on_broker_up(struct sandbox *s, enum sandbox_listed listed) {
    if (listed == LISTED_ALIVE)
        has_vm(s);
    else
        sandbox_start_retry(s);
}

void sandbox_start_done(struct sandbox *s) {
    (void)text_copy(s->operation.id, sizeof(s->operation.id), "");
    s->identifying = false;
}

/* ---- before the slot ---- */

static void enqueue(struct sandbox *s) {
    s->order = s->node->next_order++;
    sandbox_set_state(s, SB_QUEUED);
}

/* The snapshot is there, or never will be. */
static void on_snapshot(void *ctx, const struct fault *fault) {
    struct sandbox *s = ctx;
    struct fault why;
    s->template_ms += sandbox_now_ms(s) - s->since_ms;
    if (fault) {
        why = *fault;
        sandbox_fail(s, &why);
    } else {
        enqueue(s);
    }
}

static void want_snapshot(struct sandbox *s) {
    struct node *n = s->node;
    int there;
    template_spec_done(&s->spec);
    template_spec_init(&s->spec, &s->want, &n->facts, n->accelerator);
    if (starts_from_template(s)) {
        pools_note_start(n->pools, &s->spec);
        if (take_warm(s)) {
            pools_note_taken(n->pools, s->spec.key, true);
            return;
        }
        pools_note_taken(n->pools, s->spec.key, false);
    }
    s->waiter.done = s->parent.done = on_snapshot;
    s->waiter.ctx = s->parent.ctx = s;
    sandbox_set_state(s, SB_WAITING);
    there = starts_from_template(s) ? template_cache_want(n->templates, &s->spec, &s->waiter)
                                    : snapshots_want(n->snapshots, s->want.start_snapshot, &s->parent);
    if (there > 0)
        enqueue(s);
}

void sandbox_start(struct sandbox *s) {
    struct fault fault = {0};
    uint64_t left;
    if (s->state != SB_NEW) { /* another generation of it */
        s->rebuilt = s->cold_only = false;
        s->began_ms = sandbox_now_ms(s);
        s->queue_ms = s->template_ms = s->broker_ms = s->total_ms = 0;
        sandbox_set_state(s, SB_NEW);
    }
    s->adopted = false;
    s->start_kind = START_NONE;
    left = sandbox_left_ms(s);
    if (s->want.problem[0])
        fault_set(&fault, FAILURE_INTERNAL, "what control wants is malformed: %s", s->want.problem);
    else if (!left)
        fault_set(&fault, FAILURE_DEADLINE_EXCEEDED, "its deadline had passed before the node began");
    else
        fault.code = node_admit(s->node, s, fault.message, sizeof(fault.message));
    if (fault.code != FAILURE_NONE) {
        sandbox_fail(s, &fault);
        return;
    }
    loop_timer_start(s->deadline, left, 0);
    want_snapshot(s);
    sandbox_say(s);
}
