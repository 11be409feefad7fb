/* SPDX-License-Identifier: Apache-2.0 */
/* The promise: paths, queries and URLs are decoded strictly and never past a buffer, and a pattern matches only clean
 * paths of its shape. */
#include "unit.h"
#include "wire/url.h"

static void test_decode(void **state) {
    char dst[8];
    size_t len;
    (void)state;
    assert_true(url_decode(dst, sizeof(dst), "a%41+%2f", 8, false, &len));
    assert_string_equal(dst, "aA+/");
    assert_int_equal(len, 4);
    assert_true(url_decode(dst, sizeof(dst), "a+b", 3, true, NULL));
    assert_string_equal(dst, "a b");
    assert_true(url_decode(dst, sizeof(dst), "1234567", 7, false, NULL));
    assert_false(url_decode(dst, sizeof(dst), "12345678", 8, false, NULL));
    static const char *const bad[] = {"%", "%4", "%4g", "%g4", "%00", "a%0", "%%41", "% 1", "%+1"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_false(url_decode(dst, sizeof(dst), bad[i], strlen(bad[i]), false, NULL));
    assert_false(url_decode(dst, sizeof(dst), "a\0b", 3, false, NULL));
    assert_false(url_decode(dst, 0, "", 0, false, NULL));
}

static void test_clean_paths(void **state) {
    static const char *const clean[] = {"/", "/a", "/a/", "/a/b.c", "/a/...", "/a/.b", "/%41", "/a%20b", "/a/b..c"};
    static const char *const dirty[] = {"",          "a",       "//",     "/a//b",  "/.",    "/..", "/a/../b", "/a/%2e",
                                        "/%2E%2e/x", "/a/.%2e", "/a%2fb", "/a%5cb", "/a\\b", "/%",  "/%00",    "/a/."};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(clean); i++)
        if (!url_path_is_clean(clean[i], strlen(clean[i])))
            fail_msg("%s", clean[i]);
    for (size_t i = 0; i < ARRAY_SIZE(dirty); i++)
        if (url_path_is_clean(dirty[i], strlen(dirty[i])))
            fail_msg("%s", dirty[i]);
}

static void test_target(void **state) {
    struct url_target t;
    (void)state;
    assert_true(url_target_split("/a/b?c=d?e", &t));
    assert_int_equal(t.path_len, 4);
    assert_string_equal(t.query, "c=d?e");
    assert_true(url_target_split("/a", &t));
    assert_string_equal(t.query, "");
    assert_true(url_target_split("/?", &t) && t.query_len == 0 && t.path_len == 1);
    assert_false(url_target_split("a", &t));
    assert_false(url_target_split("", &t));
}

static bool match(const char *pattern, const char *path, struct url_params *p) {
    return url_match(pattern, path, strlen(path), p);
}

static void test_match(void **state) {
    struct url_params p;
    char longest[URL_PARAM_MAX + 2], path[URL_PARAM_MAX + 16];
    (void)state;
    assert_true(match("/v1/sandboxes/{id}/pause", "/v1/sandboxes/sbx_1/pause", &p));
    assert_string_equal(url_param(&p, "id"), "sbx_1");
    assert_null(url_param(&p, "i"));
    assert_true(match("/v1/t/{name}/tags/{tag}", "/v1/t/a%20b/tags/c", &p));
    assert_string_equal(url_param(&p, "name"), "a b");
    assert_string_equal(url_param(&p, "tag"), "c");
    assert_true(match("/", "/", &p));
    static const char *const none[] = {"/v1/sandboxes",
                                       "/v1/sandboxes/",
                                       "/v1/sandboxes/x",
                                       "/v1/sandboxes//pause",
                                       "/v1/sandboxes/x/pause/",
                                       "/v1/sandboxes/x/pausee",
                                       "/v1/sandboxes/x/paus",
                                       "/v1/sandboxes/%/pause",
                                       "/v1/sandboxes/x/y/pause",
                                       "",
                                       "x",
                                       "/V1/sandboxes/x/pause"};
    for (size_t i = 0; i < ARRAY_SIZE(none); i++)
        if (match("/v1/sandboxes/{id}/pause", none[i], &p))
            fail_msg("%s", none[i]);
    assert_true(match("/s/{id}/ports/{port}/{...}", "/s/x/ports/80/a//../b", &p));
    assert_string_equal(url_param(&p, "port"), "80");
    assert_string_equal(p.tail, "/a//../b");
    assert_true(match("/s/{id}/{...}", "/s/x", &p));
    assert_true(p.tail && p.tail_len == 0);
    assert_true(match("/{...}", "/", &p) && p.tail_len == 1);
    assert_false(match("/s/{...}", "/sx", &p));
    memset(longest, 'a', sizeof(longest));
    longest[URL_PARAM_MAX + 1] = '\0';
    (void)snprintf(path, sizeof(path), "/%s", longest);
    assert_false(match("/{id}", path, &p));
    longest[URL_PARAM_MAX] = '\0';
    (void)snprintf(path, sizeof(path), "/%s", longest);
    assert_true(match("/{id}", path, &p));
}

static int query(const char *q, const char *key, char *value, size_t size) {
    return url_query_get(q, strlen(q), key, value, size);
}

static void test_query(void **state) {
    char value[8], key[8];
    size_t pos = 0;
    static const char walk[] = "&a=1&&b&c=%20+x&=v";
    (void)state;
    assert_int_equal(query("a=1&b=2", "b", value, sizeof(value)), 1);
    assert_string_equal(value, "2");
    assert_int_equal(query("a=1&%62=2", "b", value, sizeof(value)), 1);
    assert_int_equal(query("a=1&bb=2", "b", value, sizeof(value)), 0);
    assert_int_equal(query("", "b", value, sizeof(value)), 0);
    assert_int_equal(query("b", "b", value, sizeof(value)), 1);
    assert_string_equal(value, "");
    assert_int_equal(query("b=1&b=1", "b", value, sizeof(value)), -SP_E_INVALID);
    assert_int_equal(query("b=%4", "b", value, sizeof(value)), -SP_E_INVALID);
    assert_int_equal(query("b=12345678", "b", value, sizeof(value)), -SP_E_INVALID);
    assert_int_equal(query("a=%4&b=1", "b", value, sizeof(value)), 1);
    static const char *const pairs[][2] = {{"a", "1"}, {"b", ""}, {"c", "  x"}, {"", "v"}};
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
        assert_int_equal(url_query_next(walk, strlen(walk), &pos, key, sizeof(key), value, sizeof(value)), 1);
        assert_string_equal(key, pairs[i][0]);
        assert_string_equal(value, pairs[i][1]);
    }
    assert_int_equal(url_query_next(walk, strlen(walk), &pos, key, sizeof(key), value, sizeof(value)), 0);
    pos = 0;
    assert_int_equal(url_query_next("longkey12=1", 11, &pos, key, sizeof(key), value, sizeof(value)), -SP_E_INVALID);
}

static void test_build(void **state) {
    _cleanup_buf_ struct buf b = {0};
    char value[32];
    (void)state;
    buf_init(&b, 256);
    assert_int_equal(buf_append_str(&b, "/v1/files/"), 0);
    assert_int_equal(url_put_path(&b, "a b/\xc3\xa4"), 0);
    assert_int_equal(url_put_query(&b, "path", "/x y&z=1?+"), 0);
    assert_int_equal(url_put_query(&b, "k", "v"), 0);
    assert_string_equal(b.data, "/v1/files/a%20b/%C3%A4?path=%2Fx%20y%26z%3D1%3F%2B&k=v");
    const char *q = strchr(b.data, '?') + 1;
    assert_int_equal(query(q, "path", value, sizeof(value)), 1);
    assert_string_equal(value, "/x y&z=1?+");
}

static void test_absolute(void **state) {
    struct url u;
    (void)state;
    assert_ok(url_parse("http://LocalHost:7070/v1?x", &u, &unit_error));
    assert_string_equal(u.host, "localhost");
    assert_int_equal(u.port, 7070);
    assert_string_equal(u.target, "/v1?x");
    assert_ok(url_parse("https://a.example", &u, &unit_error));
    assert_true(u.scheme == URL_HTTPS && u.port == 443);
    assert_string_equal(u.target, "/");
    assert_ok(url_parse("http://[::1]:80", &u, &unit_error));
    assert_string_equal(u.host, "::1");
    assert_ok(url_parse("unix:/run/x.sock", &u, &unit_error));
    assert_true(u.scheme == URL_UNIX);
    assert_string_equal(u.host, "/run/x.sock");
    static const char *const bad[] = {
        "",           "http://",     "http:///x",   "ftp://a",     "http://a:0/",  "http://a:65536", "http://a:x",
        "http://a:",  "http://u@a/", "http://a/#f", "http://a/ b", "http://a b",   "http://[::1",    "http://[]",
        "http://[a]", "http://a?x",  "http://a\\b", "unix:x",      "http://a/\x80"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_fails(url_parse(bad[i], &u, &unit_error), SP_E_INVALID);
}

static void test_authority(void **state) {
    char host[URL_HOST_MAX + 1];
    uint16_t port;
    (void)state;
    assert_true(url_parse_authority("8080-sbx_1.Example.com", 80, host, &port));
    assert_string_equal(host, "8080-sbx_1.example.com");
    assert_int_equal(port, 80);
    assert_true(url_parse_authority("[fe80::1]:99", 80, host, &port) && port == 99);
    assert_false(url_parse_authority("[fe80::1]x", 80, host, &port));
    assert_false(url_parse_authority("", 80, host, &port));
    assert_false(url_parse_authority("a:1:2", 80, host, &port));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),   cmocka_unit_test(test_clean_paths), cmocka_unit_test(test_target),
        cmocka_unit_test(test_match),    cmocka_unit_test(test_query),       cmocka_unit_test(test_build),
        cmocka_unit_test(test_absolute), cmocka_unit_test(test_authority),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
