/* SPDX-License-Identifier: Apache-2.0 */
/* JSON from outside: what parses prints to something that parses to the same value; getters survive any value. */
#include "base/json.h"
#include "fuzz.h"
#include <string.h>

#define MAX 65536u

static void try_getters(const json_t *j) {
    static const char *const names[] = {"name", "resources", "count", NULL};
    struct sp_error err = {0};
    const char *s = "";
    uint64_t n = 0;
    bool b = false;
    json_t *v = NULL;

    if (json_get_string(j, "body", "name", 1, 64, &s, &err) == 0)
        FUZZ_CHECK(strlen(s) >= 1 && strlen(s) <= 64);
    if (json_get_opt_u64(j, "", "count", 1, 9, 5, &n, &err) == 0)
        FUZZ_CHECK(n >= 1 && n <= 9);
    (void)json_get_opt_bool(j, "", "flag", true, &b, &err);
    if (json_get_opt_object(j, "", "resources", &v, &err) == 0 && v)
        (void)json_check_keys(v, "resources", names, &err);
    (void)json_get_opt_array(j, "", "list", 4, &v, &err);
    (void)json_check_keys(j, "", names, &err);
    (void)sp_error_decode(j, &err, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    _cleanup_json_ json_t *j = NULL, *again = NULL;
    _cleanup_free_ char *text = NULL;
    struct sp_error err = {0};

    if (json_parse((const char *)data, size, MAX, &j, &err) < 0) {
        FUZZ_CHECK(err.code == SP_E_INVALID || err.code == SP_E_TOO_LARGE);
        FUZZ_CHECK(err.text[0]);
        return 0;
    }
    text = json_print(j);
    FUZZ_CHECK(json_parse(text, strlen(text), (size_t)-1, &again, &err) == 0);
    FUZZ_CHECK(json_equal(j, again));
    try_getters(j);
    return 0;
}
