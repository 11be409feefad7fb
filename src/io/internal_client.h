/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client of control's internal API (spec/internal-api.md), for node and gateway: JSON calls on a loop, over kept
 * connections. Any replica may answer any call and every call may be repeated, so a call walks the addresses until one
 * answers, beginning with the one that answered last; a 5xx of one replica sends it to the next. The bearer token comes
 * from a file, which is read again when a replica refuses the token: a rotated one is taken up without a restart.
 */
#pragma once
#include "base/json.h"
#include "io/loop.h"

#define INTERNAL_CODE_MAX 48
#define INTERNAL_URLS_MAX 8

struct internal_client;
struct internal_call;

/* urls: "http://host:port,http://…" (or unix:/path), 1..INTERNAL_URLS_MAX. The file holds one line. */
int internal_client_new(struct loop *l, const char *urls, const char *token_file, struct internal_client **ret,
                        struct sp_error *err);
/* Cancels running calls. NULL is fine; returns NULL. */
struct internal_client *internal_client_free(struct internal_client *c);

struct internal_request {
    const char *method;  /* "GET", "POST" */
    const char *target;  /* "/internal/v1/…" */
    const json_t *body;  /* NULL: none. Printed before the call returns */
    uint64_t timeout_ms; /* of one attempt; 0: 10 s */
};

struct internal_answer {
    int status;         /* HTTP status of the last attempt; 0: nobody answered */
    const json_t *body; /* 2xx: the object; else NULL. Borrowed until the callback returns */
    /* Otherwise why not: the problem's code word and text, or what became of the connection. error.code is SP_OK for 2xx;
     * for a problem it is the code of that status, its field and detail included. */
    char code[INTERNAL_CODE_MAX];
    struct sp_error error;
};

/* done runs exactly once, from the loop, unless cancelled; the call is freed afterwards. *ret is for cancelling only. */
int internal_call_start(struct internal_client *c, const struct internal_request *req,
                        void (*done)(void *ctx, const struct internal_answer *a), void *ctx, struct internal_call **ret,
                        struct sp_error *err);
/* NULL is fine; returns NULL. */
struct internal_call *internal_call_cancel(struct internal_call *call);

/* Pure: what an HTTP status and a problem document (or whatever came) mean. For tests and fuzzing. */
void internal_answer_parse(int status, const char *body, size_t len, json_t **ret_body, struct internal_answer *ret);
