/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of kept answers. The unique index does the waiting: an insert of the same key blocks until the first one ended. */
#include "store/idempotency.h"
#include "base/text.h"
#include "store/pg.h"
#include <string.h>

static void add_key(struct pg_args *a, const struct idempotency_key *k) {
    pg_text(a, k->tenant_id);
    pg_bytes(a, k->key_hash, SHA256_SIZE);
    pg_text(a, k->route);
}

static int replay(struct store *s, const struct idempotency_key *k, enum claim *ret_claim, struct kept_answer *ret,
                  struct sp_error *err) {
    _cleanup_result_ struct store_result *res = NULL;
    struct kept_answer kept = {0};
    uint8_t body_hash[SHA256_SIZE];
    struct pg_args a = {0};
    add_key(&a, k);
    int r = pg_run(s,
                   "SELECT status, answer, sealed, operation_id, body_hash FROM idempotency "
                   "WHERE tenant_id = $1 AND key_hash = $2 AND route = $3",
                   &a, &res, err);
    if (r < 0)
        return r;
    if (pg_rows(res) == 0 || !pg_get(res, 0, 0)) /* removed by retention between the two statements */
        return sp_error_set(err, SP_E_UNAVAILABLE, "the kept answer is just going; try again");
    if (!pg_get_bytes(res, 0, 4, body_hash, sizeof(body_hash)))
        return pg_corrupt(err, "kept answer");
    if (memcmp(body_hash, k->body_hash, sizeof(body_hash)) != 0) {
        *ret_claim = CLAIM_OTHER_BODY;
        return 0;
    }
    kept.status = (int)pg_get_int(res, 0, 0);
    kept.is_sealed = pg_get_bool(res, 0, 2);
    (void)text_copy(kept.operation_id, sizeof(kept.operation_id), pg_get_text(res, 0, 3));
    kept.body = pg_get_blob(res, 0, 1, &kept.body_len);
    *ret = kept;
    *ret_claim = CLAIM_REPLAY;
    return 0;
}

int idempotency_claim(struct store *s, const struct idempotency_key *k, enum claim *ret_claim, struct kept_answer *ret,
                      struct sp_error *err) {
    struct pg_args a = {0};
    uint64_t n = 0;
    add_key(&a, k);
    pg_bytes(&a, k->body_hash, SHA256_SIZE);
    int r = pg_count(s,
                     "INSERT INTO idempotency (tenant_id, key_hash, route, body_hash) VALUES ($1, $2, $3, $4) "
                     "ON CONFLICT (tenant_id, key_hash, route) DO NOTHING",
                     &a, &n, err);
    if (r < 0)
        return r;
    if (n == 0)
        return replay(s, k, ret_claim, ret, err);
    *ret_claim = CLAIM_NEW;
    return 0;
}

int idempotency_keep(struct store *s, const struct idempotency_key *k, const struct kept_answer *answer,
                     struct sp_error *err) {
    struct pg_args a = {0};
    add_key(&a, k);
    pg_int(&a, answer->status);
    pg_bytes(&a, answer->body, answer->body_len);
    pg_bool(&a, answer->is_sealed);
    pg_text_or_null(&a, answer->operation_id);
    return pg_queue(s,
                    "UPDATE idempotency SET status = $4, answer = $5, sealed = $6, operation_id = $7 "
                    "WHERE tenant_id = $1 AND key_hash = $2 AND route = $3",
                    &a, err);
}
