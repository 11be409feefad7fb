/* SPDX-License-Identifier: Apache-2.0 */
/* URL parsing over any text: results stay in their buffers, clean paths decode to what they say, encoding round-trips.
 * */
#include "base/cleanup.h"
#include "fuzz.h"
#include "wire/url.h"
#include <string.h>

static void check_path(const char *s) {
    struct url_target target;
    struct url_params params;
    char decoded[512];
    size_t len;
    if (!url_target_split(s, &target))
        return;
    FUZZ_CHECK(target.path_len <= strlen(s) && !memchr(target.path, '?', target.path_len));
    bool clean = url_path_is_clean(target.path, target.path_len);
    if (clean && target.path_len < sizeof(decoded)) {
        FUZZ_CHECK(url_decode(decoded, sizeof(decoded), target.path, target.path_len, false, &len));
        FUZZ_CHECK(strlen(decoded) == len && !strstr(decoded, "/../") && !strstr(decoded, "//") &&
                   !strchr(decoded, '\\'));
    }
    static const char *const patterns[] = {"/",           "/{a}",          "/v1/{a}/x",
                                           "/v1/{a}/{b}", "/v1/{a}/{...}", "/{a}/{b}/{c}/{d}"};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        if (!url_match(patterns[i], target.path, target.path_len, &params))
            continue;
        FUZZ_CHECK(params.n <= URL_PARAMS_MAX);
        for (unsigned k = 0; k < params.n; k++) {
            FUZZ_CHECK(params.item[k].value[0] && strlen(params.item[k].value) <= URL_PARAM_MAX);
            FUZZ_CHECK(!clean || params.tail || !strchr(params.item[k].value, '/'));
        }
        if (params.tail)
            FUZZ_CHECK(params.tail >= target.path && params.tail + params.tail_len == target.path + target.path_len);
    }
}

static void check_query(const char *s) {
    char key[32], value[64], again[64];
    size_t pos = 0, before = 0, len = strlen(s);
    int r;
    while ((r = url_query_next(s, len, &pos, key, sizeof(key), value, sizeof(value))) != 0) {
        FUZZ_CHECK(pos > before && pos <= len);
        before = pos;
        if (r > 0)
            FUZZ_CHECK(url_query_get(s, len, key, again, sizeof(again)) != 0);
    }
}

static void check_encoding(const char *s) {
    struct buf b;
    size_t len = strlen(s);
    buf_init(&b, 8 * len + 64);
    FUZZ_CHECK(buf_append_str(&b, "/") == 0 && url_put_path(&b, s) == 0 && url_put_query(&b, "k", s) == 0);
    char *back = malloc(len + 1);
    FUZZ_CHECK(back);
    const char *query = strchr(b.data, '?') + 1;
    FUZZ_CHECK(url_query_get(query, strlen(query), "k", back, len + 1) == 1 && strcmp(back, s) == 0);
    free(back);
    buf_done(&b);
}

static void check_absolute(const char *s) {
    struct url u;
    char host[URL_HOST_MAX + 1];
    uint16_t port;
    if (url_parse(s, &u, NULL) == 0) {
        FUZZ_CHECK(u.host[0] && strlen(u.host) <= URL_HOST_MAX && u.target[0] == '/');
        FUZZ_CHECK((u.port == 0) == (u.scheme == URL_UNIX));
    }
    if (url_parse_authority(s, 80, host, &port))
        FUZZ_CHECK(host[0] && port > 0 && !strpbrk(host, "/@ \\"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *s = malloc(size + 1);
    FUZZ_CHECK(s);
    memcpy(s, data, size);
    s[size] = '\0';
    check_path(s);
    check_query(s);
    check_encoding(s);
    check_absolute(s);
    free(s);
    return 0;
}
