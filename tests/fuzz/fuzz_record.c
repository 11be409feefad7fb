/* SPDX-License-Identifier: Apache-2.0 */
/* Agent records from any bytes: the same records whatever the cuts, nothing outside the input is read, getters agree. */
#include "fuzz.h"
#include "wire/record.h"
#include <errno.h>
#include <string.h>

#define MAX_RECORDS 64

struct seen {
    uint32_t sums[MAX_RECORDS];
    int n, end; /* end: the last result */
};

static uint32_t sum(uint32_t h, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 16777619u;
    return h;
}

static uint32_t look(const struct record *rec) {
    struct view cursor = rec->payload, bytes;
    struct record_field f;
    char text[64];
    uint64_t v;
    size_t total = 0, n = 0;
    uint32_t h = sum(rec->type, rec->payload.p, rec->payload.len);

    while (record_field_next(&cursor, &f)) {
        total += RECORD_FIELD_SIZE + f.value.len;
        n++;
        FUZZ_CHECK(record_get_bytes(rec, (enum record_tag)f.tag, &bytes));
        FUZZ_CHECK(record_count(rec, (enum record_tag)f.tag) >= 1);
    }
    FUZZ_CHECK(total == rec->payload.len && rec->payload.len <= RECORD_MAX_PAYLOAD);
    if (record_get_bytes(rec, TAG_PID, &bytes))
        FUZZ_CHECK(record_get_u64(rec, TAG_PID, &v));
    if (record_get_string(rec, TAG_PROCESS_ID, text, sizeof(text)) == 1)
        h = sum(h, (const uint8_t *)text, strlen(text));
    (void)record_missing(rec);
    return h + (uint32_t)n;
}

static void read_all(const uint8_t *data, size_t size, size_t cut, struct seen *seen) {
    struct record_reader reader = {0};
    struct record rec;

    memset(seen, 0, sizeof(*seen));
    while (size > 0 && seen->end >= 0) {
        struct view in = {data, cut < size ? cut : size};
        data += in.len;
        size -= in.len;
        while (seen->n < MAX_RECORDS && (seen->end = record_next(&reader, &in, &rec)) > 0)
            seen->sums[seen->n++] = look(&rec);
        if (seen->n == MAX_RECORDS) {
            seen->end = 0;
            break;
        }
        FUZZ_CHECK(seen->end == -EPROTO || in.len == 0);
    }
    record_reader_done(&reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct seen whole, cut;

    read_all(data, size, SIZE_MAX, &whole);
    read_all(data, size, 1 + (size ? data[0] % 40 : 0), &cut);
    FUZZ_CHECK(whole.n == cut.n && whole.end == cut.end);
    FUZZ_CHECK(memcmp(whole.sums, cut.sums, sizeof(whole.sums)) == 0);
    return 0;
}
