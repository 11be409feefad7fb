/* SPDX-License-Identifier: Apache-2.0 */
/* The text form of a reader's position. */
#include "gateway/cursor.h"
#include "base/text.h"
#include <inttypes.h>
#include <string.h>

const char *cursor_format(char dst[CURSOR_TEXT_SIZE], const struct cursor *c) {
    (void)text_printf(dst, CURSOR_TEXT_SIZE, "o=%" PRIu64 ",e=%" PRIu64 ",p=%" PRIu64, c->next[0], c->next[1],
                      c->next[2]);
    return dst;
}

bool cursor_parse(const char *text, struct cursor *ret) {
    static const char names[CURSOR_STREAMS] = {'o', 'e', 'p'};
    struct cursor c;

    for (unsigned i = 0; i < CURSOR_STREAMS; i++) {
        char digits[24];
        size_t len;
        if (text[0] != names[i] || text[1] != '=')
            return false;
        text += 2;
        len = strspn(text, "0123456789");
        if (len == 0 || len >= sizeof(digits) || (text[0] == '0' && len > 1))
            return false;
        memcpy(digits, text, len);
        digits[len] = '\0';
        if (!text_to_u64(digits, 0, CURSOR_OFFSET_MAX, &c.next[i]))
            return false;
        text += len;
        if (*text != (i + 1 < CURSOR_STREAMS ? ',' : '\0'))
            return false;
        text += i + 1 < CURSOR_STREAMS;
    }
    *ret = c;
    return true;
}
