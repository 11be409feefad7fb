/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel randomness, object ids made from it, and comparison of secrets. Keeps no state: safe after fork and restore. */
#include "base/random.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define ID_PREFIX_MAX 4
#define ID_DIGITS 26 /* of 5 bits; the first one holds 3 */

static const char crockford[] = "0123456789abcdefghjkmnpqrstvwxyz";

void random_bytes(void *dst, size_t len) {
    unsigned char *p = dst;
    while (len) {
        ssize_t n = getrandom(p, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            abort();
        p += n;
        len -= (size_t)n;
    }
}

void id_generate(char dst[ID_SIZE], const char *prefix) {
    unsigned __int128 bits;
    size_t used = strlen(prefix);

    assert(used >= 1 && used <= ID_PREFIX_MAX);
    random_bytes(&bits, sizeof(bits));
    memcpy(dst, prefix, used);
    dst[used++] = '_';
    for (int shift = 5 * (ID_DIGITS - 1); shift >= 0; shift -= 5)
        dst[used++] = crockford[(unsigned)(bits >> shift) & 31];
    dst[used] = '\0';
}

bool id_is_valid(const char *id, const char *prefix) {
    size_t n = strlen(prefix);
    const char *digits;

    if (strncmp(id, prefix, n) != 0 || id[n] != '_')
        return false;
    digits = id + n + 1;
    if (strnlen(digits, ID_DIGITS + 1) != ID_DIGITS || digits[0] > '7')
        return false;
    return strspn(digits, crockford) == ID_DIGITS;
}

bool secret_equal(const void *a, const void *b, size_t len) {
    const volatile unsigned char *x = a, *y = b;
    unsigned char diff = 0;
    for (size_t i = 0; i < len; i++)
        diff = (unsigned char)(diff | (x[i] ^ y[i]));
    return diff == 0;
}
