/* SPDX-License-Identifier: Apache-2.0 */
/* What every call that changes the life of a sandbox shares: quotas, names, and the answer with its operation. */
#pragma once
#include "control/request.h"
#include "model/transitions.h"
#include "store/lifecycle.h"

#define NO_ROOM_RETRY_S 5

/* The first answer of an accepted call, read back: {operation_id, operation, sandbox} and, by the kind of the operation,
 * `snapshot` or `children`. From here on the operation may be waited for. */
int accepted_begin(struct request *rq, const char *operation_id);

/* Nothing runs on the sandbox and the table allows the verb. *ret_rule: how. */
int accepted_check_verb(struct request *rq, const struct sandbox *b, enum operation_kind kind,
                        enum verb_rule *ret_rule);
/* Locks the tenant; `count` more sandboxes of this size (0: of one that counts as a sandbox already) must fit. */
int accepted_check_quota(struct request *rq, uint64_t count, uint64_t vcpus, uint64_t memory_mib);
/* Locks the node; `count` more must fit. */
int accepted_check_room(struct request *rq, const char *node_id, uint64_t count, uint64_t vcpus, uint64_t memory_mib);

/* The ids and the identity of a new sandbox. */
struct new_identity {
    char id[ID_SIZE], operation_id[ID_SIZE], hostname[64], machine_id[33];
};
void accepted_identity(struct new_identity *ret, const char *name);
/* What the body asks for, else the template's manifest, else the defaults. */
void accepted_resources(const json_t *body, const json_t *manifest, uint64_t *ret_vcpus, uint64_t *ret_memory_mib);
/* A member of the body as JSON text (heap), {} when it is not there. */
char *accepted_member(const json_t *body, const char *name);

/* RFC 7396, one level deep: null removes. */
json_t *accepted_merge(const char *old_text, json_t *patch);
/* Merged metadata must keep the rules that a new object's keep. */
int accepted_check_metadata(struct request *rq, json_t *metadata);

/* Text of the effective lifecycle (heap) and the seconds that go with it: `fields` over `base_text` (NULL: the defaults). */
int accepted_lifecycle(struct request *rq, const char *base_text, const json_t *fields, struct sandbox_description *ret,
                       char **ret_text);

/* A session wakes the sandbox, which is locked, settled and has no VM that runs: records the operation. */
int lifecycle_wake_for_traffic(struct request *rq, const struct sandbox *b);
