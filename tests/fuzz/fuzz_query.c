/* SPDX-License-Identifier: Apache-2.0 */
/* Query strings against every query table, and the Prefer header: any bytes; what passes is in bounds. */
#include "base/json.h"
#include "control/query.h"
#include "fuzz.h"
#include "model/limits.h"
#include "model/requests.h"
#include "store/store.h"
#include <string.h>

static void check_query(const struct field_table *table, const char *text) {
    _cleanup_json_ json_t *q = NULL;
    struct sp_error err = {0};
    if (query_parse(table, text, &q, &err) < 0) {
        FUZZ_CHECK(err.code == SP_E_INVALID && err.text[0]);
        return;
    }
    FUZZ_CHECK(json_is_object(q));
    const json_t *limit = json_object_get(q, "limit"), *cursor = json_object_get(q, "cursor");
    if (limit)
        FUZZ_CHECK(json_integer_value(limit) >= 1 && json_integer_value(limit) <= (json_int_t)LIMIT_VALUE(page_max));
    if (cursor)
        (void)store_cursor_is_valid(json_string_value(cursor));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct field_table *const tables[] = {&query_sandboxes, &query_operations, &query_operation,
                                                       &query_templates, &query_page};
    char text[4096];
    unsigned wait = 0;
    size_t n = size < sizeof(text) - 1 ? size : sizeof(text) - 1;
    memcpy(text, data, n);
    text[n] = '\0';
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        check_query(tables[i], text);
    if (query_parse_prefer(text, &wait, NULL) == 0)
        FUZZ_CHECK(wait <= LIMIT_VALUE(wait_seconds));
    (void)store_cursor_is_valid(text);
    return 0;
}
