/* SPDX-License-Identifier: Apache-2.0 */
/* Problem documents of the data plane. */
#include "gateway/problem.h"
#include "base/text.h"
#include <stdio.h>

void problem_set(struct problem *p, int status, const char *code, const char *field, const char *fmt, ...) {
    va_list ap;
    p->status = status;
    (void)text_copy(p->code, sizeof(p->code), code);
    (void)text_copy(p->field, sizeof(p->field), field);
    va_start(ap, fmt);
    (void)vsnprintf(p->detail, sizeof(p->detail), fmt, ap);
    va_end(ap);
}

void problem_from_error(struct problem *p, const struct sp_error *err) {
    problem_set(p, sp_code_http_status(err->code), sp_code_name(err->code), err->field, "%s", err->text);
}

void problem_answer(struct exchange *x, const struct problem *p) {
    if (p->status == 401)
        (void)exchange_add_header(x, "WWW-Authenticate", "Bearer");
    if (p->status == 429 || p->status == 503)
        (void)exchange_add_header(x, "Retry-After", "1");
    (void)exchange_problem(x, p->status, p->code, p->field, p->detail);
}
