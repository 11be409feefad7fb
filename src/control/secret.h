/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The platform secret outside the database: the internal token's file. It authenticates nodes and gateways, and the key
 * that seals kept answers which hold a secret is derived from it, so that a copy of the database gives away no token.
 */
#pragma once
#include "base/digest.h"
#include "base/error.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct secrets {
    char file[256];
    uint8_t seal_key[SHA256_SIZE]; /* fixed at start */
    pthread_mutex_t lock;          /* of what follows */
    uint8_t internal_hash[SHA256_SIZE];
    uint64_t read_at_ns;
};

int secrets_load(struct secrets *s, const char *file, struct sp_error *err);
void secrets_done(struct secrets *s);
/* True when the token is the internal one. Looks into the file again, at most once a second, before it says no. */
bool secrets_is_internal(struct secrets *s, const char *token);

/* What an answer is kept for: each has a key of its own. `key` is the client's Idempotency-Key, of which the database holds
 * only a hash. */
struct seal_for {
    const char *tenant_id, *route, *key;
};
/* AES-256-GCM; *ret is heap, nonce and tag included. */
int secrets_seal(const struct secrets *s, const struct seal_for *what, const void *data, size_t len,
                 unsigned char **ret, size_t *ret_len);
/* SP_E_CORRUPT: not sealed under this secret. *ret is NUL-ended. */
int secrets_unseal(const struct secrets *s, const struct seal_for *what, const void *data, size_t len,
                   unsigned char **ret, size_t *ret_len);
