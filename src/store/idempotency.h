/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept answers. In the transaction of a mutation: claim() first, then the work, then keep(). The row becomes visible with
 * the commit, whole; whoever comes with the same key meanwhile waits in claim() and then gets the kept answer.
 */
#pragma once
#include "base/digest.h"
#include "store/store.h"

struct idempotency_key {
    const char *tenant_id, *route;
    uint8_t key_hash[SHA256_SIZE], body_hash[SHA256_SIZE];
};
enum claim { CLAIM_NEW, CLAIM_REPLAY, CLAIM_OTHER_BODY };
struct kept_answer {
    int status;
    unsigned char *body; /* heap, NUL follows */
    size_t body_len;
    bool is_sealed;
    char operation_id[32]; /* "" when none */
};
/* CLAIM_REPLAY fills *ret; the caller frees ret->body. */
int idempotency_claim(struct store *s, const struct idempotency_key *k, enum claim *ret_claim, struct kept_answer *ret,
                      struct sp_error *err);
int idempotency_keep(struct store *s, const struct idempotency_key *k, const struct kept_answer *answer,
                     struct sp_error *err);
