/* SPDX-License-Identifier: Apache-2.0 */
/* Forms of strings, one row a pattern, and template references. */
#include "base/text.h"
#include "model/ids.h"
#include "model/limits.h"
#include "model/validate.h"
#include <assert.h>
#include <string.h>

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

static const struct {
    const char *first, *rest; /* allowed bytes; NULL: any */
    size_t min, max;          /* bytes; 0: no bound */
    const char *text;
} patterns[PATTERN_COUNT_] = {
    [PATTERN_ANY] = {NULL, NULL, 0, 0, "may be any text"},
    [PATTERN_NAME] = {LOWER UPPER DIGITS, LOWER UPPER DIGITS "._-", 1, LIMIT_VALUE_name_bytes,
                      "must hold letters, digits, '.', '_' and '-' only, and start with a letter or digit"},
    [PATTERN_TEMPLATE_NAME] =
        {LOWER DIGITS, LOWER DIGITS "._-", 1, LIMIT_VALUE_template_name_bytes,
         "must hold lower-case letters, digits, '.', '_' and '-' only, and start with a letter or "
         "digit"},
    [PATTERN_TEMPLATE_REF] = {NULL, NULL, 1, LIMIT_VALUE_template_reference_bytes,
                              "must be name, name:tag or name@digest"},
    [PATTERN_DIGEST] = {DIGITS "abcdef", DIGITS "abcdef", 64, 64, "must be 64 lower-case hexadecimal digits"},
    [PATTERN_METADATA_KEY] = {LOWER UPPER DIGITS "._/-", LOWER UPPER DIGITS "._/-", 1, LIMIT_VALUE_metadata_key_bytes,
                              "must have 1 to 64 letters, digits, '.', '_', '/' and '-'"},
    [PATTERN_ENV_KEY] = {LOWER UPPER "_", LOWER UPPER DIGITS "_", 1, LIMIT_VALUE_env_key_bytes,
                         "must have 1 to 128 letters, digits and '_', and not start with a digit"},
    [PATTERN_ABSOLUTE_PATH] = {"/", NULL, 1, 0, "must be an absolute path"},
    [PATTERN_USER] = {LOWER UPPER DIGITS "_", LOWER UPPER DIGITS "._-", 1, LIMIT_VALUE_user_bytes,
                      "must be a user's name or number"},
    [PATTERN_TENANT_ID] = {NULL, NULL, 0, 0, "must be the id of a tenant"},
    [PATTERN_SANDBOX_ID] = {NULL, NULL, 0, 0, "must be the id of a sandbox"},
    [PATTERN_SNAPSHOT_ID] = {NULL, NULL, 0, 0, "must be the id of a snapshot"},
    [PATTERN_NODE_ID] = {LOWER UPPER DIGITS, LOWER UPPER DIGITS ".-", 1, 64,
                         "must have 1 to 64 letters, digits, '.' and '-'"},
};

/* By its row alone. */
static bool row_matches(enum pattern p, const char *text) {
    size_t len = strlen(text);
    if (len < patterns[p].min || (patterns[p].max && len > patterns[p].max))
        return false;
    if (patterns[p].first && (len == 0 || !strchr(patterns[p].first, text[0])))
        return false;
    return !patterns[p].rest || len == 0 || strspn(text + 1, patterns[p].rest) == len - 1;
}

bool pattern_matches(enum pattern p, const char *text) {
    struct template_ref ref;
    assert((unsigned)p < PATTERN_COUNT_);
    if (!row_matches(p, text))
        return false;
    switch (p) {
    case PATTERN_TEMPLATE_REF:
        return template_ref_parse(text, &ref);
    case PATTERN_TENANT_ID:
        return id_is(text, ID_TENANT);
    case PATTERN_SANDBOX_ID:
        return id_is(text, ID_SANDBOX);
    case PATTERN_SNAPSHOT_ID:
        return id_is(text, ID_SNAPSHOT);
    default:
        return true;
    }
}

const char *pattern_text(enum pattern p) {
    assert((unsigned)p < PATTERN_COUNT_);
    return patterns[p].text;
}

bool template_ref_parse(const char *text, struct template_ref *ret) {
    struct template_ref ref = {{0}, {0}, {0}};
    size_t n = strcspn(text, ":@");
    if (n >= sizeof(ref.name))
        return false;
    memcpy(ref.name, text, n);
    if (!row_matches(PATTERN_TEMPLATE_NAME, ref.name))
        return false;
    if (text[n] == ':' && !(text_copy(ref.tag, sizeof(ref.tag), text + n + 1) && row_matches(PATTERN_NAME, ref.tag)))
        return false;
    if (text[n] == '@' &&
        !(text_copy(ref.digest, sizeof(ref.digest), text + n + 1) && row_matches(PATTERN_DIGEST, ref.digest)))
        return false;
    if (!text[n])
        (void)text_copy(ref.tag, sizeof(ref.tag), "latest");
    *ret = ref;
    return true;
}
