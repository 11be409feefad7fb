/* SPDX-License-Identifier: Apache-2.0 */
/* Promise: ranges are called the same only when they are on the same blocks, or holes, in both; what is unclear is not. */
#include "base/cleanup.h"
#include "host/extents.h"
#include "host/piece_hash.h"
#include "unit.h"
#include <linux/fiemap.h>

#define K 1024u
#define SAME(walk, from, to) same(&(walk), (uint64_t)(from)*K, (uint64_t)(to)*K)

static bool same(struct extents_walk *walk, uint64_t from, uint64_t to) {
    uint64_t first, end;
    if (!extents_next_change(walk, from, to, &first, &end))
        return true;
    assert_true(from <= first && first < end && end <= to);
    return false;
}

static void test_same(void **state) {
    struct extent a[] = {{0, 1000 * K, 64 * K, 0}, {128 * K, 2000 * K, 128 * K, 0}};
    struct extent b[] = {{0, 1000 * K, 32 * K, FIEMAP_EXTENT_SHARED}, /* one extent in two halves: no difference */
                         {32 * K, 1032 * K, 32 * K, 0},
                         {128 * K, 2000 * K, 64 * K, 0},
                         {192 * K, 5000 * K, 4 * K, 0}, /* written since */
                         {196 * K, 2068 * K, 60 * K, 0},
                         {512 * K, 9000 * K, 4 * K, 0}};
    const struct extents ea = {a, ARRAY_SIZE(a)}, eb = {b, ARRAY_SIZE(b)};
    struct extents_walk walk = {.a = &ea, .b = &eb};
    (void)state;
    assert_true(SAME(walk, 0, 64));
    assert_true(SAME(walk, 64, 128)); /* a hole in both */
    assert_true(SAME(walk, 128, 192));
    assert_false(SAME(walk, 192, 256));
    assert_true(SAME(walk, 256, 320));
    assert_true(SAME(walk, 448, 512));
    assert_false(SAME(walk, 512, 576)); /* a hole in one */
    assert_true(SAME(walk, 576, 640));
    walk = (struct extents_walk){.a = &ea, .b = &eb};
    assert_true(SAME(walk, 32, 160)); /* over borders and a hole */
    assert_false(SAME(walk, 160, 256));
}

static void test_unclear_is_not_the_same(void **state) {
    static const uint32_t flags[] = {FIEMAP_EXTENT_UNKNOWN,        FIEMAP_EXTENT_DELALLOC,
                                     FIEMAP_EXTENT_ENCODED,        FIEMAP_EXTENT_DATA_INLINE,
                                     FIEMAP_EXTENT_DATA_ENCRYPTED, FIEMAP_EXTENT_NOT_ALIGNED};
    struct extent a = {0, 1000 * K, 64 * K, 0};
    const struct extents ea = {&a, 1};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
        struct extents_walk walk = {.a = &ea, .b = &ea};
        a.flags = flags[i];
        assert_false(SAME(walk, 0, 64));
    }
    struct extent unwritten = {0, 1000 * K, 64 * K, FIEMAP_EXTENT_UNWRITTEN};
    const struct extents eb = {&unwritten, 1};
    struct extents_walk walk = {.a = &ea, .b = &eb};
    a.flags = 0;
    assert_false(SAME(walk, 0, 64)); /* zeros in one, bytes in the other, at one place */
}

/* Random maps against a comparison block by block. */
static void test_against_the_plain_way(void **state) {
    (void)state;
    srandom(1);
    for (unsigned round = 0; round < 500; round++) {
        uint64_t plain[2][64];
        struct extent rows[2][64];
        struct extents maps[2] = {{rows[0], 0}, {rows[1], 0}};
        for (size_t m = 0; m < 2; m++)
            for (size_t i = 0; i < 64; i++) {
                plain[m][i] = m && random() % 3 ? plain[0][i] : random() % 2 ? 0 : 1000 + i + (random() % 4 ? 0 : 500);
                if (!plain[m][i])
                    continue;
                struct extent *last = maps[m].n ? &rows[m][maps[m].n - 1] : NULL;
                if (last && random() % 2 && last->logical + last->length == i * K &&
                    last->physical + last->length == plain[m][i] * K)
                    last->length += K;
                else
                    rows[m][maps[m].n++] = (struct extent){i * K, plain[m][i] * K, K, 0};
            }
        struct extents_walk walk = {.a = &maps[0], .b = &maps[1]};
        for (size_t at = 0; at < 64;) {
            size_t end = at + 1 + (size_t)random() % 16;
            bool want = true;
            for (size_t i = at; i < end && i < 64; i++)
                want = want && plain[0][i] == plain[1][i];
            assert_int_equal(SAME(walk, at, end), want);
            at = end;
        }
    }
}

/* Digests taken over from a base are those of the whole file, whatever the file system says of where it is. */
static void test_digests_since(void **state) {
    _cleanup_close_ int base = open(unit_path("base"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    _cleanup_close_ int file = open(unit_path("file"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    _cleanup_extents_ struct extents base_extents = {0}, extents = {0};
    _cleanup_piece_digests_ struct piece_digests digests = {0}, since = {0}, whole = {0};
    const int fds[] = {base, file};
    char piece[PIECE_HASH_PIECE];
    size_t hashed = 0;
    (void)state;
    memset(piece, 'x', sizeof(piece));
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(ftruncate(fds[i], 8 * (off_t)sizeof(piece) + 100), 0);
        assert_int_equal(pwrite(fds[i], piece, sizeof(piece), 2 * (off_t)sizeof(piece)), sizeof(piece));
    }
    assert_int_equal(pwrite(file, "changed", 7, 5 * (off_t)sizeof(piece) + 10), 7);
    if (extents_read(base, true, &base_extents, &unit_error) == -SP_E_UNSUPPORTED)
        skip();
    assert_ok(extents_read(file, true, &extents, &unit_error));
    assert_true(base_extents.n > 0 && extents_bytes(&extents) >= sizeof(piece));
    assert_ok(piece_digests_fd(base, &digests, &unit_error));
    assert_ok(piece_digests_fd(file, &whole, &unit_error));
    const struct piece_base from = {.size = 8 * sizeof(piece) + 100, .digests = &digests, .extents = &base_extents};
    assert_ok(piece_digests_since(file, &from, &extents, &since, &hashed, &unit_error));
    assert_true(hashed >= 1 && hashed <= 2 && since.n == 2 &&
                whole.n == 2); /* the piece that changed, and the one on other blocks */
    assert_memory_equal(since.rows, whole.rows, whole.n * sizeof(*whole.rows));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_unclear_is_not_the_same),
        cmocka_unit_test(test_against_the_plain_way),
        cmocka_unit_test(test_digests_since),
    };
    return cmocka_run_group_tests(tests, unit_temp_dir, unit_temp_dir_remove);
}
