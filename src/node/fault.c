/* SPDX-License-Identifier: Apache-2.0 */
/* Faults out of errors. */
#include "node/fault.h"
#include "base/text.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void fault_set(struct fault *f, enum failure code, const char *fmt, ...) {
    va_list ap;
    f->code = code;
    va_start(ap, fmt);
    (void)vsnprintf(f->message, sizeof(f->message), fmt, ap);
    va_end(ap);
}

static const struct {
    enum sp_code error;
    enum failure code;
} rows[] = {
    {SP_E_CORRUPT, FAILURE_SNAPSHOT_BROKEN}, {SP_E_NO_SPACE, FAILURE_HOST_DISK_FULL},
    {SP_E_NO_CAPACITY, FAILURE_NO_CAPACITY}, {SP_E_TIMEOUT, FAILURE_DEADLINE_EXCEEDED},
    {SP_E_VMM, FAILURE_VMM_FAILED},          {SP_E_IO, FAILURE_IO},
};

static enum failure code_of(const struct sp_error *err) {
    enum failure code;
    if (err->code == SP_E_NOT_FOUND && strcmp(err->field, "template") == 0)
        return FAILURE_TEMPLATE_MISSING;
    if (err->code == SP_E_NOT_FOUND && strcmp(err->field, "snapshot") == 0)
        return FAILURE_SNAPSHOT_MISSING;
    if (err->field[0] && failure_parse(err->field, &code))
        return code;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (rows[i].error == err->code)
            return rows[i].code;
    return FAILURE_INTERNAL;
}

void fault_from_error(struct fault *f, const struct sp_error *err) {
    char text[sizeof(f->message)];
    f->code = code_of(err);
    (void)text_printf(f->message, sizeof(f->message), "%s",
                      text_escape(text, sizeof(text), err->text, strlen(err->text)));
}
