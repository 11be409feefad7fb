/* SPDX-License-Identifier: Apache-2.0 */
/* Ids and tokens: prefixes, forms, that each kind is told from the others. */
#include "model/ids.h"
#include "unit.h"

static void test_ids(void **state) {
    char id[ID_SIZE], other[ID_SIZE];
    (void)state;
    for (unsigned k = 0; k < ID_KIND_COUNT_; k++) {
        id_new(id, (enum id_kind)k);
        id_new(other, (enum id_kind)k);
        assert_string_not_equal(id, other);
        for (unsigned j = 0; j < ID_KIND_COUNT_; j++)
            assert_int_equal(id_is(id, (enum id_kind)j), j == k);
    }
    assert_false(id_is("", ID_SANDBOX));
    assert_false(id_is("sbx_", ID_SANDBOX));
    assert_false(id_is("sbx_00000000000000000000000000x", ID_SANDBOX));
    assert_false(id_is("sbx_0000000000000000000000000u", ID_SANDBOX)); /* no such digit */
    assert_string_equal(id_kind_noun(ID_OPERATION), "operation");
}

static void test_tokens(void **state) {
    static const char *const prefixes[] = {
        [TOKEN_MANAGEMENT] = "spm_", [TOKEN_ATTACHMENT] = "spa_", [TOKEN_INTERNAL] = "spi_"};
    char token[TOKEN_SIZE], other[TOKEN_SIZE];
    (void)state;
    for (enum token_kind k = TOKEN_MANAGEMENT; k <= TOKEN_INTERNAL; k++) {
        token_new(token, k);
        token_new(other, k);
        assert_int_equal(strlen(token), 47);
        assert_true(text_starts_with(token, prefixes[k]));
        assert_int_equal(token_kind_of(token), k);
        assert_string_not_equal(token, other);
        assert_null(strpbrk(token, "+/="));
    }
}

static void test_token_forms(void **state) {
    (void)state;
    assert_int_equal(token_kind_of(""), TOKEN_NONE);
    assert_int_equal(token_kind_of("spm_"), TOKEN_NONE);
    assert_int_equal(token_kind_of("spx_0123456789012345678901234567890123456789012"), TOKEN_NONE);
    assert_int_equal(token_kind_of("spm_0123456789012345678901234567890123456789012"), TOKEN_MANAGEMENT);
    assert_int_equal(token_kind_of("spm_01234567890123456789012345678901234567890123"), TOKEN_NONE); /* one too many */
    assert_int_equal(token_kind_of("spm_01234567890123456789012345678901234567890+2"), TOKEN_NONE);
    assert_int_equal(token_kind_of(" spm_0123456789012345678901234567890123456789012"), TOKEN_NONE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ids), cmocka_unit_test(test_tokens),
                                       cmocka_unit_test(test_token_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
