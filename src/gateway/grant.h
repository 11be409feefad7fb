/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What control answers to an attach question: which process of which sandbox a token may reach, and how to start it.
 * Counted; immutable. And the bounded cache of such answers: one slot a hash, so that it can neither grow nor be walked.
 */
#pragma once
#include "base/digest.h"
#include "base/json.h"
#include "base/random.h"
#include "gateway/cursor.h"
#include "model/settings.h"

struct grant {
    unsigned references; /* private */
    char session_id[ID_SIZE], sandbox_id[ID_SIZE], process_id[ID_SIZE];
    char node_id[sizeof(((struct settings *)0)->node_id)];
    bool may_start;
    bool pty, has_stdin;
    json_t *spec; /* the whole answer: command, args, env, … for ATTACH; NULL in one that came out of the cache */
};

/* Checks ids and types of what is used at once; the rest is checked by grant_put_attach(). */
int grant_parse(const json_t *answer, const char *session_id, struct grant **ret, struct sp_error *err);
struct grant *grant_ref(struct grant *g);
struct grant *grant_unref(struct grant *g); /* NULL is fine; returns NULL */
/* The ATTACH record for it, output wanted from `from` on. SP_E_TOO_LARGE when command and environment do not fit into a
 * record; out is as it was then. Only with a spec. */
int grant_put_attach(const struct grant *g, const struct cursor *from, struct buf *out, struct sp_error *err);

struct grant_key {
    char session_id[ID_SIZE];
    uint8_t token[SHA256_SIZE];
};
struct grant_cache;
struct grant_cache *grant_cache_new(void); /* aborts when out of memory */
struct grant_cache *grant_cache_free(struct grant_cache *c);
/* A new reference, or NULL when there is none younger than GRANT_CACHE_TTL_MS. */
#define GRANT_CACHE_TTL_MS 10000u
struct grant *grant_cache_get(struct grant_cache *c, const struct grant_key *key, uint64_t now_ms);
/* Keeps a copy without the spec. */
void grant_cache_put(struct grant_cache *c, const struct grant_key *key, const struct grant *g, uint64_t now_ms);
