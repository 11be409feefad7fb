/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to a sandbox by itself (`lifecycle` of the API), as pure functions of the policy, what is recorded and the
 * time. 0 is off everywhere.
 */
#pragma once
#include "model/states.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lifecycle_policy {
    uint64_t idle_pause_s, idle_suspend_s, delete_after_s, max_life_s;
    bool wake_on_traffic;
    enum snapshot_content checkpoint_content;
    uint64_t checkpoint_s, keep_last, keep_hourly, keep_daily; /* keep_last is at least 1 */
};
struct lifecycle_policy lifecycle_policy_default(void);
/* The fields that are there, over what is in *p; null turns one off. The value passed the table of the request, or came out
 * of lifecycle_policy_print(). */
void lifecycle_policy_merge(struct lifecycle_policy *p, const json_t *fields);
json_t *lifecycle_policy_print(const struct lifecycle_policy *p); /* every field; off is null */
/* The least idle time that does something; 0: none does. */
uint64_t lifecycle_policy_idle_s(const struct lifecycle_policy *p);

struct policy_view {
    enum sandbox_state state; /* a settled one */
    int64_t now_ms, born_ms;
    int64_t active_ms;     /* last stream, end of a process, or change by a client */
    int64_t checkpoint_ms; /* when the last one was begun; 0: none yet */
    uint64_t streams;      /* open now */
    uint64_t processes;    /* sessions that have started and not ended */
};
struct policy_action {
    bool acts;
    enum operation_kind kind;
    enum operation_reason reason;
};
struct policy_action policy_decide(const struct lifecycle_policy *p, const struct policy_view *v);

/* Which checkpoints stay: the newest keep_last, and the newest of each of the last hours and days that have one. taken_ms:
 * newest first, all of one content: those of the disk alone are counted apart. */
void policy_keep(const struct lifecycle_policy *p, const int64_t *taken_ms, size_t n, bool *ret_keep);
