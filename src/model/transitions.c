/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of allowed moves and of verbs. */
#include "model/transitions.h"
#include "base/text.h"
#include <assert.h>

const struct sandbox_move sandbox_moves[] = {
    {SANDBOX_CREATING, SANDBOX_RUNNING, MOVE_BY_NODE, "the VM runs"},
    {SANDBOX_CREATING, SANDBOX_FAILED, MOVE_BY_NODE, "it could not be started, or the deadline passed"},
    {SANDBOX_CREATING, SANDBOX_DELETING, MOVE_BY_CLIENT, "deleted while a node works on it"},
    {SANDBOX_CREATING, SANDBOX_DELETED, MOVE_BY_CLIENT, "deleted before any node had it"},
    {SANDBOX_RUNNING, SANDBOX_PAUSING, MOVE_BY_CLIENT, "pause"},
    {SANDBOX_RUNNING, SANDBOX_SUSPENDING, MOVE_BY_CLIENT, "suspend"},
    {SANDBOX_RUNNING, SANDBOX_WAKING, MOVE_BY_CLIENT, "rolled back: started again from a snapshot"},
    {SANDBOX_RUNNING, SANDBOX_FAILED, MOVE_BY_NODE, "the VM ended or broke its protocol"},
    {SANDBOX_RUNNING, SANDBOX_DELETING, MOVE_BY_CLIENT, "delete"},
    {SANDBOX_PAUSING, SANDBOX_PAUSED, MOVE_BY_NODE, "the VM stands still"},
    {SANDBOX_PAUSING, SANDBOX_RUNNING, MOVE_BY_NODE, "pausing failed and it runs again"},
    {SANDBOX_PAUSING, SANDBOX_FAILED, MOVE_BY_NODE, "the VM was lost on the way"},
    {SANDBOX_PAUSING, SANDBOX_DELETING, MOVE_BY_CLIENT, "delete"},
    {SANDBOX_PAUSED, SANDBOX_WAKING, MOVE_BY_CLIENT, "wake, or rolled back"},
    {SANDBOX_PAUSED, SANDBOX_SUSPENDING, MOVE_BY_CLIENT, "suspend"},
    {SANDBOX_PAUSED, SANDBOX_FAILED, MOVE_BY_NODE, "the VM ended"},
    {SANDBOX_PAUSED, SANDBOX_DELETING, MOVE_BY_CLIENT, "delete"},
    {SANDBOX_SUSPENDING, SANDBOX_SUSPENDED, MOVE_BY_NODE, "the snapshot is durable"},
    {SANDBOX_SUSPENDING, SANDBOX_RUNNING, MOVE_BY_NODE, "suspending failed and it runs again"},
    {SANDBOX_SUSPENDING, SANDBOX_PAUSED, MOVE_BY_NODE, "suspending failed and it stands still again"},
    {SANDBOX_SUSPENDING, SANDBOX_FAILED, MOVE_BY_NODE, "the VM was lost on the way"},
    {SANDBOX_SUSPENDING, SANDBOX_DELETING, MOVE_BY_CLIENT, "delete"},
    {SANDBOX_SUSPENDED, SANDBOX_WAKING, MOVE_BY_CLIENT, "wake, or rolled back"},
    {SANDBOX_SUSPENDED, SANDBOX_DELETING, MOVE_BY_CLIENT, "delete"},
    {SANDBOX_WAKING, SANDBOX_RUNNING, MOVE_BY_NODE, "it runs again"},
    {SANDBOX_WAKING, SANDBOX_PAUSED, MOVE_BY_NODE, "waking failed and it stands still again"},
    {SANDBOX_WAKING, SANDBOX_SUSPENDED, MOVE_BY_NODE, "waking failed and the snapshot is kept"},
    {SANDBOX_WAKING, SANDBOX_FAILED, MOVE_BY_NODE, "the VM was lost on the way"},
    {SANDBOX_WAKING, SANDBOX_DELETING, MOVE_BY_CLIENT, "delete"},
    {SANDBOX_DELETING, SANDBOX_DELETED, MOVE_BY_NODE, "its node holds nothing of it any more"},
    {SANDBOX_FAILED, SANDBOX_WAKING, MOVE_BY_CLIENT, "wake from the last good snapshot, or rolled back"},
    {SANDBOX_FAILED, SANDBOX_DELETING, MOVE_BY_CLIENT, "deleted while its node still holds something"},
    {SANDBOX_FAILED, SANDBOX_DELETED, MOVE_BY_CLIENT, "deleted with nothing left on a node"},
};
const size_t sandbox_moves_count = ARRAY_SIZE(sandbox_moves);

static const struct sandbox_state_row state_rows[SANDBOX_STATE_COUNT_] = {
    [SANDBOX_CREATING] = {.holds_vm = true,
                          .has_operation = true,
                          .text = "the request is accepted; a node is awaited or at work"},
    [SANDBOX_RUNNING] = {.holds_vm = true, .may_be_ready = true, .takes_sessions = true, .text = "the VM runs"},
    [SANDBOX_PAUSING] = {.holds_vm = true, .has_operation = true, .text = "on the way to paused"},
    [SANDBOX_PAUSED] = {.holds_vm = true, .text = "the VM is resident and stands still"},
    [SANDBOX_SUSPENDING] = {.holds_vm = true, .has_operation = true, .text = "on the way to suspended"},
    [SANDBOX_SUSPENDED] = {.text = "no VM; a durable snapshot"},
    [SANDBOX_WAKING] = {.holds_vm = true, .has_operation = true, .text = "on the way to running"},
    [SANDBOX_DELETING] = {.holds_vm = true,
                          .has_operation = true,
                          .text = "on the way to deleted; nothing else follows"},
    [SANDBOX_DELETED] = {.is_final = true, .text = "gone; kept to be read for the retention time"},
    [SANDBOX_FAILED] = {.text = "ended by a fault, see `error`; its node keeps nothing of it"},
};

bool sandbox_move_is_allowed(enum sandbox_state from, enum sandbox_state to) {
    if (from == to)
        return true;
    for (size_t i = 0; i < sandbox_moves_count; i++)
        if (sandbox_moves[i].from == from && sandbox_moves[i].to == to)
            return true;
    return false;
}

const struct sandbox_state_row *sandbox_state_row(enum sandbox_state s) {
    assert((unsigned)s < SANDBOX_STATE_COUNT_);
    return &state_rows[s];
}

#define ANY_SETTLED(rule)                                                                                              \
    { [SANDBOX_RUNNING] = (rule), [SANDBOX_PAUSED] = (rule), [SANDBOX_SUSPENDED] = (rule), [SANDBOX_FAILED] = (rule), }
static const enum verb_rule verb_rules[OPERATION_KIND_COUNT_][SANDBOX_STATE_COUNT_] = {
    [OPERATION_PAUSE] = {[SANDBOX_RUNNING] = VERB_GO, [SANDBOX_PAUSED] = VERB_NOOP},
    [OPERATION_SUSPEND] = {[SANDBOX_RUNNING] = VERB_GO, [SANDBOX_PAUSED] = VERB_GO, [SANDBOX_SUSPENDED] = VERB_NOOP},
    [OPERATION_WAKE] = {[SANDBOX_RUNNING] = VERB_NOOP,
                        [SANDBOX_PAUSED] = VERB_GO,
                        [SANDBOX_SUSPENDED] = VERB_GO,
                        [SANDBOX_FAILED] = VERB_GO_FROM_LAST},
    [OPERATION_SNAPSHOT] = {[SANDBOX_RUNNING] = VERB_GO, [SANDBOX_PAUSED] = VERB_GO, [SANDBOX_SUSPENDED] = VERB_GO},
    [OPERATION_FORK] = {[SANDBOX_RUNNING] = VERB_GO,
                        [SANDBOX_PAUSED] = VERB_GO,
                        [SANDBOX_SUSPENDED] = VERB_GO_FROM_LAST,
                        [SANDBOX_FAILED] = VERB_GO_FROM_LAST},
    [OPERATION_ROLLBACK] = ANY_SETTLED(VERB_GO),
    [OPERATION_DELETE] = ANY_SETTLED(VERB_GO),
};

enum verb_rule verb_rule(enum operation_kind kind, enum sandbox_state state) {
    assert((unsigned)kind < OPERATION_KIND_COUNT_ && (unsigned)state < SANDBOX_STATE_COUNT_);
    return verb_rules[kind][state];
}

enum sandbox_state verb_moving_state(enum operation_kind kind, enum sandbox_state from) {
    switch (kind) {
    case OPERATION_CREATE:
        return SANDBOX_CREATING;
    case OPERATION_DELETE:
        return SANDBOX_DELETING;
    case OPERATION_PAUSE:
        return SANDBOX_PAUSING;
    case OPERATION_SUSPEND:
        return SANDBOX_SUSPENDING;
    case OPERATION_WAKE:
    case OPERATION_ROLLBACK:
        return SANDBOX_WAKING;
    case OPERATION_SNAPSHOT:
    case OPERATION_FORK:
    case OPERATION_KIND_COUNT_:
        break;
    }
    return from;
}

static void print_verbs(struct buf *out) {
    static const char *const words[] = {[VERB_WRONG] = "409",
                                        [VERB_NOOP] = "succeeds at once",
                                        [VERB_GO] = "yes",
                                        [VERB_GO_FROM_LAST] = "from the last good snapshot"};
    static const enum sandbox_state settled[] = {SANDBOX_RUNNING, SANDBOX_PAUSED, SANDBOX_SUSPENDED, SANDBOX_FAILED};
    (void)buf_append_str(
        out,
        "\n## Verbs\n\nWhat a call does in a state in which no operation runs. While one runs every call but delete is "
        "refused with\n`operation_in_progress`.\n\n| verb | `running` | `paused` | `suspended` | `failed` "
        "|\n|---|---|---|---|---|\n");
    for (unsigned k = OPERATION_DELETE; k < OPERATION_KIND_COUNT_; k++) {
        (void)buf_printf(out, "| `%s` |", operation_kind_name((enum operation_kind)k));
        for (size_t i = 0; i < ARRAY_SIZE(settled); i++)
            (void)buf_printf(out, " %s |", words[verb_rules[k][settled[i]]]);
        (void)buf_append_str(out, "\n");
    }
}

static const char *yes(bool b) {
    return b ? "yes" : "";
}

int transitions_print_markdown(struct buf *out) {
    static const char *const by[] = {
        [MOVE_BY_CLIENT] = "client", [MOVE_BY_NODE] = "node", [MOVE_BY_PLAN] = "reconciler"};

    (void)buf_append_str(
        out, "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
             "<!-- Printed from src/model/transitions.c by `space-describe states`; a test compares. -->\n"
             "# States of a sandbox\n\n"
             "`ready` (the guest agent answers) is separate from the state and can be true in `running` only.\n\n"
             "| state | holds a VM | may be ready | takes sessions | operation on its way | meaning |\n"
             "|---|---|---|---|---|---|\n");
    for (unsigned s = 0; s < SANDBOX_STATE_COUNT_; s++) {
        const struct sandbox_state_row *row = &state_rows[s];
        (void)buf_printf(out, "| `%s` | %s | %s | %s | %s | %s |\n", sandbox_state_name(s), yes(row->holds_vm),
                         yes(row->may_be_ready), yes(row->takes_sessions), yes(row->has_operation), row->text);
    }
    (void)buf_append_str(
        out, "\n## Allowed moves\n\nEverything that is not in this table is refused, by the code and again by the "
             "database.\n\n| from | to | asked by | when |\n|---|---|---|---|\n");
    for (size_t i = 0; i < sandbox_moves_count; i++)
        (void)buf_printf(out, "| `%s` | `%s` | %s | %s |\n", sandbox_state_name(sandbox_moves[i].from),
                         sandbox_state_name(sandbox_moves[i].to), by[sandbox_moves[i].by], sandbox_moves[i].when);
    print_verbs(out);
    return out->failed ? -1 : 0;
}
