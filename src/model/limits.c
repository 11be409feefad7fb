/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the table of limits and its Markdown form. */
#include "model/limits.h"
#include "base/text.h"
#include <assert.h>
#include <inttypes.h>

static const struct limit_row rows[LIMIT_COUNT_] = {
#define X(name, value, unit, code, text) {#name, (value), unit, code, text},
    LIMITS(X)
#undef X
};

const struct limit_row *limit_row(enum limit l) {
    assert((unsigned)l < LIMIT_COUNT_);
    return &rows[l];
}

int limits_print_markdown(struct buf *out) {
    (void)buf_append_str(
        out,
        "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
        "<!-- Printed from src/model/limits.h by `space-describe limits`; a test compares. -->\n"
        "# Limits\n\n"
        "Every limit of the management API and the control plane, with the problem `code` of going over it (see\n"
        "[errors](errors.md)). Lengths are bytes of UTF-8. Tests in `tests/control` hit each one that has a code.\n\n"
        "| limit | value | unit | error | of what |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < LIMIT_COUNT_; i++) {
        const struct limit_row *row = &rows[i];
        (void)buf_printf(out, "| `%s` | %" PRIu64 " | %s | %s%s%s | %s |\n", row->name, row->value, row->unit,
                         *row->code ? "`" : "", row->code, *row->code ? "`" : "", row->text);
    }
    return out->failed ? -1 : 0;
}
