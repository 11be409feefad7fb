/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of moves a sandbox's state may make, and what each state may hold. spec/states.md is printed from it and
 * the database's own copy (sandbox_moves in the first migration) is compared with it by a test.
 */
#pragma once
#include "base/buf.h"
#include "model/states.h"
#include <stdbool.h>
#include <stddef.h>

enum move_by {
    MOVE_BY_CLIENT, /* a management call */
    MOVE_BY_NODE,   /* an observation of the node */
    MOVE_BY_PLAN,   /* the reconciler */
};

struct sandbox_move {
    enum sandbox_state from, to;
    enum move_by by;
    const char *when; /* half a sentence for the docs */
};
extern const struct sandbox_move sandbox_moves[];
extern const size_t sandbox_moves_count;

/* Staying in a state is no move and always allowed. */
bool sandbox_move_is_allowed(enum sandbox_state from, enum sandbox_state to);

/* What a sandbox in this state may have. */
struct sandbox_state_row {
    bool holds_vm;     /* a virtual machine on its node */
    bool may_be_ready; /* the guest agent may be answering */
    bool takes_sessions;
    bool has_operation; /* a lifecycle operation is on its way */
    bool is_final;
    const char *text;
};
const struct sandbox_state_row *sandbox_state_row(enum sandbox_state s);

/* What a lifecycle verb means in a state in which no operation runs. */
enum verb_rule {
    VERB_WRONG, /* 409 */
    VERB_NOOP,  /* it is so already: the operation succeeds at once */
    VERB_GO,
    VERB_GO_FROM_LAST, /* from the last good snapshot, when there is one */
};
enum verb_rule verb_rule(enum operation_kind kind, enum sandbox_state state);
/* The state it is in while the operation runs. */
enum sandbox_state verb_moving_state(enum operation_kind kind, enum sandbox_state from);

/* The whole of spec/states.md. */
int transitions_print_markdown(struct buf *out);
