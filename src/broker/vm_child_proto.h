/* SPDX-License-Identifier: Apache-2.0 */
/* Between vm_child.c (the job's side) and vm_child_jail.c (the children's); nobody else includes it. */
#pragma once
#include "broker/vm_child.h"

enum vm_child_message_kind { CHILD_STUB_READY = 1, CHILD_VM_READY, CHILD_FAILED };
/* Between processes of one program: the struct travels as it is. */
struct vm_child_message {
    uint32_t kind;
    struct sp_error error;
};

/* J's whole life; never returns. */
_Noreturn void vm_child_main(const struct vm_child_plan *plan, int sync);
