/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of a connection and a result, for store.c, pg.c and listen.c alone. */
#pragma once
#include "store/store.h"
#include <libpq-fe.h>

#define STATEMENTS_MAX 256
#define NOTES_MAX 16

struct store {
    char *url;
    uint64_t timeout_ms;
    PGconn *conn;
    bool in_transaction;
    unsigned queued;                       /* statements sent whose results have not been gathered */
    bool should_retry, outcome_is_unknown; /* of the last failure */
    uint64_t connects;
    uint64_t failed_at_ns;                /* of the last try to connect; 0: it worked */
    const char *prepared[STATEMENTS_MAX]; /* by address; the index is the statement's name */
    unsigned n_prepared;
    struct store_note notes[NOTES_MAX];
    unsigned n_notes, n_notes_out; /* all, those at the front whose transaction was committed */
};

struct store_result {
    PGresult *pg;
};
