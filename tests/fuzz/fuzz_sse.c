/* SPDX-License-Identifier: Apache-2.0 */
/* The event-stream decoder over any bytes: same events whatever the segmentation, bounds hold, and an event that was
 * decoded is decoded again from its own encoding. The first byte chooses the segmentation. */
#include "fuzz.h"
#include "wire/sse.h"
#include <string.h>

#define DATA_MAX 512u

struct result {
    unsigned events, comments;
    bool error;
    uint64_t sum;
};

static void add(uint64_t *sum, const char *s) {
    for (; *s; s++)
        *sum = *sum * 31 + (uint8_t)*s;
    *sum = *sum * 31 + 1;
}

static void check_again(const struct sse_decoder *d) {
    struct sse_decoder other;
    struct buf b;
    size_t used;
    buf_init(&b, 16 * DATA_MAX);
    FUZZ_CHECK(sse_put_event(&b, d->event, d->id, d->data.data, d->data.len) == 0);
    sse_decoder_init(&other, DATA_MAX);
    FUZZ_CHECK(sse_decoder_feed(&other, b.data, b.len, &used) == SSE_EVENT && used == b.len);
    FUZZ_CHECK(strcmp(other.event, d->event) == 0 && strcmp(other.id, d->id) == 0);
    FUZZ_CHECK(other.data.len == d->data.len && memcmp(other.data.data, d->data.data, d->data.len) == 0);
    sse_decoder_done(&other);
    buf_done(&b);
}

static struct result run(const char *data, size_t size, size_t step, bool again) {
    struct sse_decoder d;
    struct result r = {0};
    size_t at = 0;
    sse_decoder_init(&d, DATA_MAX);
    while (at < size && !r.error) {
        size_t used, piece = size - at < step ? size - at : step;
        switch (sse_decoder_feed(&d, data + at, piece, &used)) {
        case SSE_EVENT:
            r.events++;
            FUZZ_CHECK(d.data.len <= DATA_MAX && strlen(d.data.data) == d.data.len);
            add(&r.sum, d.event);
            add(&r.sum, d.id);
            add(&r.sum, d.data.data);
            if (again)
                check_again(&d);
            break;
        case SSE_COMMENT:
            r.comments++;
            break;
        case SSE_ERROR:
            r.error = true;
            break;
        case SSE_MORE:
            FUZZ_CHECK(used == piece);
            break;
        }
        FUZZ_CHECK(used <= piece);
        at += used;
    }
    sse_decoder_done(&d);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    struct result whole = run((const char *)data + 1, size - 1, SIZE_MAX, true);
    struct result pieces = run((const char *)data + 1, size - 1, 1 + data[0] % 16, false);
    FUZZ_CHECK(whole.events == pieces.events && whole.comments == pieces.comments && whole.sum == pieces.sum);
    FUZZ_CHECK(whole.error == pieces.error);
    return 0;
}
