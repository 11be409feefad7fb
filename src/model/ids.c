/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes of ids and tokens, one row a kind. Keeps no state. */
#include "model/ids.h"
#include "base/text.h"
#include <assert.h>
#include <string.h>

#define TOKEN_BYTES 32
#define TOKEN_DIGITS 43

static const struct {
    const char *prefix, *noun;
} id_rows[ID_KIND_COUNT_] = {
    [ID_SANDBOX] = {"sbx", "sandbox"}, [ID_OPERATION] = {"op", "operation"}, [ID_SESSION] = {"ses", "session"},
    [ID_PROCESS] = {"prc", "process"}, [ID_TEMPLATE] = {"tpl", "template"},  [ID_TENANT] = {"ten", "tenant"},
    [ID_TOKEN] = {"tok", "token"},     [ID_SNAPSHOT] = {"snp", "snapshot"},  [ID_POOL] = {"pol", "pool"},
};

static const struct {
    enum token_kind kind;
    const char *prefix;
} token_rows[] = {{TOKEN_MANAGEMENT, "spm_"}, {TOKEN_ATTACHMENT, "spa_"}, {TOKEN_INTERNAL, "spi_"}};

const char *id_kind_prefix(enum id_kind kind) {
    assert((unsigned)kind < ID_KIND_COUNT_);
    return id_rows[kind].prefix;
}

const char *id_kind_noun(enum id_kind kind) {
    assert((unsigned)kind < ID_KIND_COUNT_);
    return id_rows[kind].noun;
}

void id_new(char dst[ID_SIZE], enum id_kind kind) {
    id_generate(dst, id_kind_prefix(kind));
}

bool id_is(const char *text, enum id_kind kind) {
    return id_is_valid(text, id_kind_prefix(kind));
}

enum token_kind token_kind_of(const char *token) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (size_t i = 0; i < ARRAY_SIZE(token_rows); i++)
        if (text_starts_with(token, token_rows[i].prefix)) {
            const char *rest = token + strlen(token_rows[i].prefix);
            bool whole = strnlen(rest, TOKEN_DIGITS + 1) == TOKEN_DIGITS && strspn(rest, digits) == TOKEN_DIGITS;
            return whole ? token_rows[i].kind : TOKEN_NONE;
        }
    return TOKEN_NONE;
}

void token_new(char dst[TOKEN_SIZE], enum token_kind kind) {
    unsigned char bytes[TOKEN_BYTES];
    char base64[64];

    assert(kind >= TOKEN_MANAGEMENT && kind <= TOKEN_INTERNAL);
    random_bytes(bytes, sizeof(bytes));
    (void)text_base64(base64, bytes, sizeof(bytes));
    for (char *c = base64; *c; c++)
        *c = *c == '+' ? '-' : *c == '/' ? '_' : *c;
    base64[TOKEN_DIGITS] = '\0'; /* without the padding */
    (void)text_printf(dst, TOKEN_SIZE, "%s%s", token_rows[kind - 1].prefix, base64);
    text_wipe(bytes, sizeof(bytes));
    text_wipe(base64, sizeof(base64));
}
