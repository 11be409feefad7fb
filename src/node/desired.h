/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What control wants on this node: the answer of GET …/desired, parsed and checked. Pure. Control is trusted, but a list
 * that is not understood as a whole is not acted on: a sandbox missing from it would be stopped.
 */
#pragma once
#include "base/digest.h"
#include "base/json.h"
#include "base/random.h"

#define DESIRED_SANDBOXES_MAX 4096
#define DESIRED_REVISION_MAX 64
#define DESIRED_GONE_MAX 4096
#define DESIRED_POOLS_MAX 64
#define DESIRED_POOL_SIZE_MAX 256
#define DESIRED_POOL_ID_MAX 64

enum desired_want { WANT_RUNNING, WANT_PAUSED, WANT_SUSPENDED, WANT_DELETED };

struct desired {
    char id[ID_SIZE];
    uint64_t generation;
    enum desired_want want;
    char observed[16];          /* what control has recorded: "creating", "running", "failed", … */
    char operation_id[ID_SIZE]; /* on its way; "" none */
    char operation_kind[16];
    char start_snapshot[ID_SIZE]; /* a VM that is to be started starts from it; "": from the template's */
    bool start_boots;             /* … by booting: it holds the disk alone */
    char snapshot_id[ID_SIZE];    /* to be made; "" none */
    char snapshot_kind[16];
    bool snapshot_is_disk; /* it is to hold the disk alone */
    uint64_t deadline_ns;  /* real time; 0: none */
    char template_digest[SHA256_HEX_SIZE];
    unsigned vcpus, memory_mib;
    char hostname[65];
    char machine_id[33];
    const json_t *manifest; /* of the template; NULL: none. Borrowed from the list */
    const json_t *env;      /* object; NULL: none. Borrowed from the list */
    char problem[128];      /* not "": this one is malformed (its id and want are good); it can only fail */
};

struct desired_pool {
    char id[DESIRED_POOL_ID_MAX + 1];
    char template_digest[SHA256_HEX_SIZE];
    const json_t *manifest; /* NULL: none. Borrowed from the list */
    unsigned vcpus, memory_mib, size;
};

struct desired_list {
    char revision[DESIRED_REVISION_MAX + 1]; /* opaque */
    struct desired *items;                   /* sorted by id */
    size_t n;
    char (*gone)[ID_SIZE]; /* snapshots to remove */
    size_t n_gone;
    struct desired_pool *pools; /* those that are well-formed */
    size_t n_pools;
    json_t *root;
};

/* On failure *ret is zeroed. */
int desired_parse(const json_t *answer, struct desired_list *ret, struct sp_error *err);
void desired_list_done(struct desired_list *list); /* safe on a zeroed struct */
/* NULL when it is not in the list. */
const struct desired *desired_find(const struct desired_list *list, const char *id);
/* "2026-01-31T12:00:00.123Z" (or with another number of digits, or +00:00) → ns since 1970; false when it is none. */
bool desired_time_parse(const char *text, uint64_t *ret_ns);
