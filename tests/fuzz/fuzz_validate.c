/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests: JSON against every table of the management API, and the pieces of text that have forms of their own.
 * Whatever passes keeps the promises handlers rely on. */
#include "base/json.h"
#include "fuzz.h"
#include "model/ids.h"
#include "model/policy.h"
#include "model/requests.h"
#include "model/scopes.h"
#include <string.h>

/* What is kept of a lifecycle says the same when it is read again. */
static void check_lifecycle(const json_t *fields) {
    struct lifecycle_policy p = lifecycle_policy_default(), again = {0};
    struct policy_view view = {.state = SANDBOX_RUNNING, .now_ms = 1ll << 42, .born_ms = 1, .active_ms = 1};
    if (request_check_lifecycle(fields, NULL) < 0)
        return;
    lifecycle_policy_merge(&p, fields);
    json_t *printed = lifecycle_policy_print(&p);
    lifecycle_policy_merge(&again, printed);
    if (!p.checkpoint_s) /* its tiers are not kept then */
        p.keep_last = again.keep_last, p.keep_hourly = again.keep_hourly, p.keep_daily = again.keep_daily;
    FUZZ_CHECK(memcmp(&p, &again, sizeof(p)) == 0);
    FUZZ_CHECK(policy_decide(&p, &view).acts == (lifecycle_policy_idle_s(&p) || p.max_life_s || p.checkpoint_s));
    json_decref(printed);
}

static void check_create(const json_t *body) {
    struct template_ref ref;
    const char *template = json_string_value(json_object_get(body, "template"));
    if (validate_body(&request_sandbox_create, body, NULL) < 0)
        return;
    FUZZ_CHECK(!template || template_ref_parse(template, &ref));
    check_lifecycle(json_object_get(body, "lifecycle"));
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
