/* SPDX-License-Identifier: Apache-2.0 */
/* Text helpers over any bytes: escapes are printable and fit, hex round-trips, UTF-8 agrees with jansson's own check. */
#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "fuzz.h"
#include <jansson.h>
#include <string.h>

#define PART 64u

static void check_escape(const uint8_t *data, size_t size) {
    char out[PART];
    size_t room = size ? 1 + data[0] % (sizeof(out) - 1) : 1;
    (void)text_escape(out, room, data, size);
    FUZZ_CHECK(strlen(out) < room);
    FUZZ_CHECK(text_is_utf8(out, strlen(out)));
    for (const char *p = out; *p; p++)
        FUZZ_CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void check_hex(const uint8_t *data, size_t size) {
    char hex[2 * PART + 1];
    uint8_t back[PART];
    size_t len = size < PART ? size : PART;
    text_hex(hex, data, len);
    FUZZ_CHECK(strlen(hex) == 2 * len && text_unhex(back, len, hex));
    FUZZ_CHECK(memcmp(back, data, len) == 0 || len == 0);
}

static void check_utf8(const uint8_t *data, size_t size) {
    json_t *j = json_stringn((const char *)data, size);
    FUZZ_CHECK((j != NULL) == text_is_utf8((const char *)data, size));
    json_decref(j);
}

static void check_strings(const uint8_t *data, size_t size) {
    _cleanup_free_ char *s = malloc(size + 1);
    struct sp_error err;
    uint64_t n;
    if (!s)
        abort();
    if (size)
        memcpy(s, data, size);
    s[size] = '\0';
    if (text_to_u64(s, 0, UINT64_MAX, &n))
        FUZZ_CHECK(strspn(s, "0123456789") == strlen(s));
    FUZZ_CHECK(text_distance(s, s) == 0 || strlen(s) > 64);
    (void)sp_error_field(&err, SP_E_INVALID, s, "%s", s);
    (void)sp_error_wrap(&err, "%s", s);
    FUZZ_CHECK(text_is_utf8(err.text, strlen(err.text)) && !strpbrk(err.text, "\r\n"));
    FUZZ_CHECK(text_is_utf8(err.field, strlen(err.field)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    _cleanup_free_ char *base64 = NULL, *back = NULL;
    size_t len;
    check_escape(data, size);
    check_hex(data, size);
    check_utf8(data, size);
    check_strings(data, size);
    base64 = malloc(text_base64_len(size) + 1);
    if (!base64)
        abort();
    FUZZ_CHECK(text_base64(base64, data, size) == text_base64_len(size));
    FUZZ_CHECK(strlen(base64) == text_base64_len(size));
    back = malloc(size + 1);
    FUZZ_CHECK(back && text_unbase64(back, size, base64, strlen(base64), &len) && len == size);
    FUZZ_CHECK(size == 0 || memcmp(back, data, size) == 0);
    if (text_unbase64(back, size, (const char *)data, size, &len)) /* the bytes themselves as base64 */
        FUZZ_CHECK(len <= size / 4 * 3);
    return 0;
}
