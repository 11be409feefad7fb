/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of space-control that need neither loop nor database: queries, Prefer, sealing, rates, metrics, cursors. */
#include "base/clock.h"
#include "base/json.h"
#include "control/metrics.h"
#include "control/query.h"
#include "control/rate.h"
#include "control/routes.h"
#include "control/secret.h"
#include "model/requests.h"
#include "unit.h"

static void refused(const char *query, const char *field) {
    json_t *q = NULL;
    assert_fails(query_parse(&query_sandboxes, query, &q, &unit_error), SP_E_INVALID);
    assert_string_equal(unit_error.field, field);
    assert_null(q);
}

static void test_queries(void **state) {
    json_t *q = NULL;
    (void)state;
    assert_ok(query_parse(&query_sandboxes, "limit=7&state=running&metadata.a=1&metadata.b%2Fc=x%20y&name=n", &q,
                          &unit_error));
    assert_int_equal(json_integer_value(json_object_get(q, "limit")), 7);
    json_t *metadata = json_object_get(q, "metadata");
    assert_string_equal(json_string_value(json_object_get(metadata, "a")), "1");
    assert_string_equal(json_string_value(json_object_get(metadata, "b/c")), "x y");
    json_decref(q);
    q = NULL;
    assert_ok(query_parse(&query_sandboxes, "", &q, &unit_error));
    assert_int_equal(json_object_size(q), 0);
    json_decref(q);
    refused("limit=0", "limit");
    refused("limit=07x", "limit");
    refused("limit=99999999999999999999", "limit");
    refused("limit=1&limit=1", "limit");
    refused("Limit=1", "Limit");
    refused("metadata=x", "metadata");
    refused("metadata.a=1&metadata.a=1", "metadata.a");
    refused("name=%C3%28", "name");
    refused("%", "");
}

static void test_prefer(void **state) {
    unsigned wait = 9;
    (void)state;
    assert_ok(query_parse_prefer(NULL, &wait, &unit_error));
    assert_ok(query_parse_prefer("respond-async", &wait, &unit_error));
    assert_int_equal(wait, 9);
    assert_ok(query_parse_prefer("respond-async , wait=12 ;x=y, handling=strict", &wait, &unit_error));
    assert_int_equal(wait, 12);
    assert_ok(query_parse_prefer("WAIT=0", &wait, &unit_error));
    assert_int_equal(wait, 0);
    assert_fails(query_parse_prefer("wait=61", &wait, &unit_error), SP_E_INVALID);
    assert_fails(query_parse_prefer("wait=", &wait, &unit_error), SP_E_INVALID);
    assert_fails(query_parse_prefer("wait=1 2", &wait, &unit_error), SP_E_INVALID);
}

static void test_sealing(void **state) {
    struct secrets s = {0}, other = {0};
    const struct seal_for a = {"ten_a", "POST /x", "key"}, b = {"ten_b", "POST /x", "key"},
                          c = {"ten_a", "POST /x", "kez"};
    unsigned char *sealed = NULL, *plain = NULL;
    size_t sealed_len, len;
    (void)state;
    assert_ok(file_replace(AT_FDCWD, unit_path("token"), "spi_0123456789012345678\n", 24, 0600, &unit_error));
    assert_ok(file_replace(AT_FDCWD, unit_path("other"), "spi_9876543210987654321\n", 24, 0600, &unit_error));
    assert_ok(secrets_load(&s, unit_path("token"), &unit_error));
    assert_ok(secrets_load(&other, unit_path("other"), &unit_error));
    assert_ok(secrets_seal(&s, &a, "hello", 5, &sealed, &sealed_len));
    assert_ok(secrets_unseal(&s, &a, sealed, sealed_len, &plain, &len));
    assert_int_equal(len, 5);
    assert_string_equal((char *)plain, "hello");
    assert_null(memmem(sealed, sealed_len, "hello", 5));
    unsigned char *nothing = NULL;
    assert_int_equal(secrets_unseal(&s, &b, sealed, sealed_len, &nothing, &len), -SP_E_CORRUPT);
    assert_int_equal(secrets_unseal(&s, &c, sealed, sealed_len, &nothing, &len), -SP_E_CORRUPT);
    assert_int_equal(secrets_unseal(&other, &a, sealed, sealed_len, &nothing, &len), -SP_E_CORRUPT);
    for (size_t i = 0; i < sealed_len; i++) { /* every byte counts */
        sealed[i] ^= 1;
        assert_int_equal(secrets_unseal(&s, &a, sealed, sealed_len, &nothing, &len), -SP_E_CORRUPT);
        sealed[i] ^= 1;
        assert_int_equal(secrets_unseal(&s, &a, sealed, i, &nothing, &len), -SP_E_CORRUPT);
    }
    assert_null(nothing);
    free(sealed);
    free(plain);
    secrets_done(&s);
    secrets_done(&other);
}

static void test_internal_token(void **state) {
    struct secrets s = {0};
    (void)state;
    assert_ok(file_replace(AT_FDCWD, unit_path("internal"), "spi_0123456789012345678\r\n", 25, 0600, &unit_error));
    assert_ok(secrets_load(&s, unit_path("internal"), &unit_error));
    assert_true(secrets_is_internal(&s, "spi_0123456789012345678"));
    assert_false(secrets_is_internal(&s, "spi_0123456789012345679"));
    assert_false(secrets_is_internal(&s, ""));
    /* A rotated file is taken up, a second after the last look. */
    assert_ok(file_replace(AT_FDCWD, unit_path("internal"), "spi_another0123456789", 21, 0600, &unit_error));
    s.read_at_ns -= 2 * NSEC_PER_SEC;
    assert_true(secrets_is_internal(&s, "spi_another0123456789"));
    assert_false(secrets_is_internal(&s, "spi_0123456789012345678"));
    assert_ok(file_replace(AT_FDCWD, unit_path("short"), "x\n", 2, 0600, &unit_error));
    struct secrets t = {0};
    assert_fails(secrets_load(&t, unit_path("short"), &unit_error), SP_E_INVALID);
}

static void test_rate(void **state) {
    static struct rate r;
    uint64_t now = 1000 * NSEC_PER_SEC;
    unsigned taken = 0, retry = 0;
    (void)state;
    rate_init(&r);
    for (int i = 0; i < 100; i++)
        taken += rate_take(&r, "ten_a", 10, now, &retry);
    assert_int_equal(taken, 20); /* the burst */
    assert_int_equal(retry, 1);
    assert_true(rate_take(&r, "ten_b", 10, now, &retry));
    taken = 0;
    for (int i = 0; i < 100; i++)
        taken += rate_take(&r, "ten_a", 10, now + NSEC_PER_SEC / 2, &retry);
    assert_int_equal(taken, 5);
    /* A clock that stands still or steps back gives nothing and breaks nothing. */
    assert_false(rate_take(&r, "ten_a", 10, now, &retry));
    for (int i = 0; i < 5000; i++) { /* more tenants than buckets */
        char id[32];
        assert_true(text_printf(id, sizeof(id), "ten_%d", i));
        assert_true(rate_take(&r, id, 1, now + (uint64_t)i, &retry));
    }
}

static void test_metrics(void **state) {
    static struct metrics m;
    struct store_sums sums = {.sandboxes[SANDBOX_RUNNING] = 3};
    _cleanup_buf_ struct buf out = {0};
    size_t n;
    (void)state;
    buf_init(&out, 1 << 20);
    (void)routes_public(&n);
    metrics_request(&m, 0, 202, 3 * NSEC_PER_MSEC);
    metrics_request(&m, 0, 202, 100 * NSEC_PER_SEC);
    metrics_request(&m, 12345, 404, 0);
    metrics_print(&m, &sums, routes_metric_name, &out);
    assert_non_null(strstr(out.data, "space_sandboxes{state=\"running\"} 3\n"));
    assert_non_null(strstr(out.data, "space_http_requests_total{route=\"createSandbox\",class=\"2xx\"} 2\n"));
    assert_non_null(strstr(out.data, "_bucket{route=\"createSandbox\",le=\"0.005\"} 1\n"));
    assert_non_null(strstr(out.data, "_bucket{route=\"createSandbox\",le=\"+Inf\"} 2\n"));
    assert_non_null(strstr(out.data, "space_http_requests_total{route=\"none\",class=\"4xx\"} 1\n"));
}

static void test_cursors(void **state) {
    char text[STORE_CURSOR_SIZE];
    (void)state;
    assert_true(store_cursor_is_valid(store_cursor_format(text, 1732900000123456, "sbx_00000000000000000000000000")));
    static const char *const wrong[] = {"", ".", "1.", ".a", "x.a", "1.A", "-1.a", "99999999999999999.a", "1.a'b", "1"};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        assert_false(store_cursor_is_valid(wrong[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queries),
        cmocka_unit_test(test_prefer),
        cmocka_unit_test_setup_teardown(test_sealing, unit_temp_dir, unit_temp_dir_remove),
        cmocka_unit_test_setup_teardown(test_internal_token, unit_temp_dir, unit_temp_dir_remove),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_cursors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
