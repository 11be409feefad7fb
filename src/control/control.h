/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space-control as a whole: what main.c builds and every other file is handed. The loop's thread owns the servers, the
 * parking place and the life of requests; workers run handlers; the listener and the keeper are threads of their own.
 */
#pragma once
#include "control/metrics.h"
#include "control/rate.h"
#include "control/secret.h"
#include "io/http_server.h"
#include "io/loop.h"
#include "io/worker_pool.h"
#include "model/settings.h"
#include <stdatomic.h>

#define CONTROL_WORKERS 8
#define CONTROL_STATEMENT_MS 10000

struct listener;
struct keeper;

/* Requests that wait for something to happen; loop thread only. See parking.h. */
#define PARKING_NEWS 256
struct parking {
    struct request *first;
    struct loop_timer *timer;
    unsigned n;
    /* The latest news, so that what came while a request was being looked at the first time is not missed by it, and so
     * that news of our own are not taken twice when the database tells them to us. */
    uint64_t news_seq; /* of the next */
    struct parking_news {
        char kind;
        bool is_told, is_heard; /* by ourselves, by the database: the other copy is still to come */
        int pid;
        char key[72];
    } news[PARKING_NEWS];
};

struct control {
    struct settings settings;
    char database_url[1024];
    char bootstrap_token[64]; /* "" when none was given */
    struct secrets secrets;
    struct loop *loop;
    struct worker_pool *pool;
    struct http_server *public_server, *internal_server;
    struct parking parking;
    struct listener *listener;
    struct keeper *keeper;
    struct rate rate;
    struct metrics metrics;
    _Atomic bool is_ready; /* the schema is there and this version's; the bootstrap token is in */
    bool has_test_clock;   /* SPACE_TEST_CLOCK=1: the clock of the policies may be moved */
    bool is_stopping;      /* loop thread */
    unsigned servers_left; /* while stopping */
};
