/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests: JSON against every table of the management API, and the pieces of text that have forms of their own.
 * Whatever passes keeps the promises handlers rely on. */
#include "base/json.h"
#include "fuzz.h"
#include "model/ids.h"
#include "model/requests.h"
#include "model/scopes.h"
#include <string.h>

static void check_create(const json_t *body) {
    struct template_ref ref;
    if (validate_body(&request_sandbox_create, body, NULL) == 0)
        FUZZ_CHECK(template_ref_parse(json_string_value(json_object_get(body, "template")), &ref));
}

static void check_scopes(const json_t *body) {
    uint32_t set;
    if (validate_body(&request_token_create, body, NULL) == 0 &&
        scopes_from_json(json_object_get(body, "scopes"), "scopes", &set, NULL) == 0)
        FUZZ_CHECK(set != 0 && (set & ~(uint32_t)SCOPE_ALL) == 0);
}

static void check_manifest(const json_t *body) {
    if (validate_body(&request_template_register, body, NULL) == 0)
        (void)request_check_manifest(json_object_get(body, "manifest"), NULL);
}

static void check_text(const uint8_t *data, size_t size) {
    struct template_ref ref;
    char text[300];
    size_t n = size < sizeof(text) - 1 ? size : sizeof(text) - 1;
    memcpy(text, data, n);
    text[n] = '\0';
    for (unsigned p = 0; p < PATTERN_COUNT_; p++)
        (void)pattern_matches((enum pattern)p, text);
    if (template_ref_parse(text, &ref))
        FUZZ_CHECK(!ref.tag[0] != !ref.digest[0]);
    if (token_kind_of(text) != TOKEN_NONE)
        FUZZ_CHECK(strlen(text) == TOKEN_SIZE - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sp_error err = {0};
    json_t *body = NULL;
    check_text(data, size);
    if (json_parse((const char *)data, size, 1 << 18, &body, NULL) < 0)
        return 0;
    for (size_t i = 0; i < request_tables_count; i++) {
        memset(&err, 0, sizeof(err));
        if (validate_body(request_tables[i], body, &err) < 0)
            FUZZ_CHECK(err.code == SP_E_INVALID && err.text[0]);
    }
    check_create(body);
    check_scopes(body);
    check_manifest(body);
    json_decref(body);
    return 0;
}
