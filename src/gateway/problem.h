/* SPDX-License-Identifier: Apache-2.0 */
/* A refusal of the data plane before a stream begins: what the problem document will say. */
#pragma once
#include "base/error.h"
#include "io/http_server.h"

struct problem {
    int status;
    char code[48]; /* stable word of spec/openapi.yaml */
    char field[64];
    char detail[256];
};

void problem_set(struct problem *p, int status, const char *code, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* A fault of ours, with its own code. */
void problem_from_error(struct problem *p, const struct sp_error *err);
/* Answers x; with WWW-Authenticate on a 401 and Retry-After where trying again makes sense. */
void problem_answer(struct exchange *x, const struct problem *p);
