/* SPDX-License-Identifier: Apache-2.0 */
/* Idle times, life, checkpoints and their tiers. */
#include "model/policy.h"
#include "base/text.h"
#include <stdlib.h>

#define IDLE_SUSPEND_S 21600
#define HOUR_MS 3600000
#define DAY_MS 86400000

struct lifecycle_policy lifecycle_policy_default(void) {
    return (struct lifecycle_policy){.idle_suspend_s = IDLE_SUSPEND_S, .wake_on_traffic = true, .keep_last = 1};
}

/* ---- as JSON ---- */

static void take(const json_t *fields, const char *name, uint64_t *dst) {
    const json_t *v = json_object_get(fields, name);
    if (v)
        *dst = json_is_integer(v) ? (uint64_t)json_integer_value(v) : 0;
}

static void take_checkpoint(struct lifecycle_policy *p, const json_t *c) {
    const char *content = json_string_value(json_object_get(c, "content"));
    p->checkpoint_s = p->keep_hourly = p->keep_daily = 0;
    p->keep_last = 1;
    p->checkpoint_content = CONTENT_FULL;
    (void)(content && snapshot_content_parse(content, &p->checkpoint_content));
    take(c, "every_s", &p->checkpoint_s);
    take(c, "keep_last", &p->keep_last);
    take(c, "keep_hourly", &p->keep_hourly);
    take(c, "keep_daily", &p->keep_daily);
    if (p->keep_last == 0)
        p->keep_last = 1;
}

void lifecycle_policy_merge(struct lifecycle_policy *p, const json_t *fields) {
    const json_t *wake = json_object_get(fields, "wake_on_traffic"),
                 *checkpoint = json_object_get(fields, "checkpoint");
    take(fields, "idle_pause_after_s", &p->idle_pause_s);
    take(fields, "idle_suspend_after_s", &p->idle_suspend_s);
    take(fields, "delete_after_s", &p->delete_after_s);
    take(fields, "max_life_s", &p->max_life_s);
    if (wake)
        p->wake_on_traffic = json_is_true(wake);
    if (checkpoint)
        take_checkpoint(p, checkpoint);
}

static void put(json_t *o, const char *name, json_t *v) {
    if (json_object_set_new(o, name, v) < 0)
        abort();
}

static void put_seconds(json_t *o, const char *name, uint64_t s) {
    put(o, name, s ? json_integer((json_int_t)s) : json_null());
}

json_t *lifecycle_policy_print(const struct lifecycle_policy *p) {
    json_t *o = json_object(), *checkpoint = json_null();
    put_seconds(o, "idle_pause_after_s", p->idle_pause_s);
    put_seconds(o, "idle_suspend_after_s", p->idle_suspend_s);
    put_seconds(o, "delete_after_s", p->delete_after_s);
    put_seconds(o, "max_life_s", p->max_life_s);
    put(o, "wake_on_traffic", json_boolean(p->wake_on_traffic));
    if (p->checkpoint_s) {
        checkpoint = json_object();
        put_seconds(checkpoint, "every_s", p->checkpoint_s);
        put(checkpoint, "content", json_string(snapshot_content_name(p->checkpoint_content)));
        put(checkpoint, "keep_last", json_integer((json_int_t)p->keep_last));
        put(checkpoint, "keep_hourly", json_integer((json_int_t)p->keep_hourly));
        put(checkpoint, "keep_daily", json_integer((json_int_t)p->keep_daily));
    }
    put(o, "checkpoint", checkpoint);
    return o;
}

uint64_t lifecycle_policy_idle_s(const struct lifecycle_policy *p) {
    const uint64_t times[] = {p->idle_pause_s, p->idle_suspend_s, p->delete_after_s};
    uint64_t least = 0;
    for (size_t i = 0; i < ARRAY_SIZE(times); i++)
        if (times[i] && (!least || times[i] < least))
            least = times[i];
    return least;
}

/* ---- decisions ---- */

static bool is_over(int64_t since_ms, int64_t now_ms, uint64_t seconds) {
    return seconds && now_ms - since_ms >= (int64_t)seconds * 1000;
}

static struct policy_action act(enum operation_kind kind, enum operation_reason reason) {
    return (struct policy_action){.acts = true, .kind = kind, .reason = reason};
}

struct policy_action policy_decide(const struct lifecycle_policy *p, const struct policy_view *v) {
    static const struct policy_action nothing;
    bool has_vm = v->state == SANDBOX_RUNNING || v->state == SANDBOX_PAUSED;
    /* A process of a paused or suspended sandbox stands still with it. */
    bool is_busy = v->streams > 0 || (v->state == SANDBOX_RUNNING && v->processes > 0);
    int64_t checkpoint_ms = v->checkpoint_ms ? v->checkpoint_ms : v->born_ms;
    if (!has_vm && v->state != SANDBOX_SUSPENDED && v->state != SANDBOX_FAILED)
        return nothing;
    if (is_over(v->born_ms, v->now_ms, p->max_life_s))
        return act(OPERATION_DELETE, REASON_MAX_LIFE);
    if (!is_busy && is_over(v->active_ms, v->now_ms, p->delete_after_s))
        return act(OPERATION_DELETE, REASON_DELETE_AFTER);
    if (!is_busy && has_vm && is_over(v->active_ms, v->now_ms, p->idle_suspend_s))
        return act(OPERATION_SUSPEND, REASON_IDLE_SUSPEND);
    if (!is_busy && v->state == SANDBOX_RUNNING && is_over(v->active_ms, v->now_ms, p->idle_pause_s))
        return act(OPERATION_PAUSE, REASON_IDLE_PAUSE);
    if (v->state == SANDBOX_RUNNING && is_over(checkpoint_ms, v->now_ms, p->checkpoint_s))
        return act(OPERATION_SNAPSHOT, REASON_CHECKPOINT);
    return nothing;
}

/* The newest of each of the last `count` periods that have one. */
static void keep_tier(const int64_t *taken_ms, size_t n, int64_t period_ms, uint64_t count, bool *keep) {
    int64_t last = -1;
    for (size_t i = 0; i < n && count > 0; i++)
        if (taken_ms[i] / period_ms != last) {
            last = taken_ms[i] / period_ms;
            keep[i] = true;
            count--;
        }
}

void policy_keep(const struct lifecycle_policy *p, const int64_t *taken_ms, size_t n, bool *ret_keep) {
    for (size_t i = 0; i < n; i++)
        ret_keep[i] = i < p->keep_last;
    keep_tier(taken_ms, n, HOUR_MS, p->keep_hourly, ret_keep);
    keep_tier(taken_ms, n, DAY_MS, p->keep_daily, ret_keep);
}
