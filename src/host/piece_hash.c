/* SPDX-License-Identifier: Apache-2.0 */
/* Piece-wise SHA-256 of sparse files; SEEK_DATA says which pieces need no reading. */
#include "host/piece_hash.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

struct reader {
    int fd;
    uint64_t size;
    unsigned char *piece;
    struct piece_digests digests;
    size_t hashed;
};

static int append(struct piece_digests *digests, const struct piece *piece, struct sp_error *err) {
    if (digests->n == digests->room) {
        size_t room = digests->room ? digests->room * 2 : 1024;
        struct piece *rows = realloc(digests->rows, room * sizeof(*rows));
        if (!rows)
            return sp_error_set(err, SP_E_INTERNAL, "out of memory");
        digests->rows = rows;
        digests->room = room;
    }
    digests->rows[digests->n++] = *piece;
    return 0;
}

static int read_piece(struct reader *rd, off_t at, size_t len, struct sp_error *err) {
    for (size_t have = 0; have < len;) {
        ssize_t n = pread(rd->fd, rd->piece + have, len - have, at + (off_t)have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return sp_error_errno(err, errno, "pread", "hashing");
        if (n == 0)
            return sp_error_set(err, SP_E_CORRUPT, "the file shrank while it was hashed");
        have += (size_t)n;
    }
    return 0;
}

static bool is_zeros(const unsigned char *data, size_t len) {
    return len == 0 || (data[0] == 0 && memcmp(data, data + 1, len - 1) == 0);
}

static int hash_piece(struct reader *rd, uint64_t number, struct sp_error *err) {
    uint64_t at = number * PIECE_HASH_PIECE, left = rd->size - at;
    size_t len = left < PIECE_HASH_PIECE ? (size_t)left : PIECE_HASH_PIECE;
    struct piece piece = {.number = htole64(number)};
    int r = read_piece(rd, (off_t)at, len, err);

    if (r < 0)
        return r;
    rd->hashed++;
    if (is_zeros(rd->piece, len))
        return 0;
    sha256_memory(rd->piece, len, piece.digest);
    return append(&rd->digests, &piece, err);
}

/* Those of [from, to) that are not holes; numbers of pieces. */
static int hash_range(struct reader *rd, uint64_t from, uint64_t to, struct sp_error *err) {
    while (from < to) {
        off_t at = (off_t)(from * PIECE_HASH_PIECE), data = lseek(rd->fd, at, SEEK_DATA);
        int r;
        if (data < 0 && errno == ENXIO)
            return 0; /* holes up to the end */
        if (data > at)
            from = (uint64_t)data / PIECE_HASH_PIECE;
        if (from >= to)
            return 0;
        r = hash_piece(rd, from++, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static uint64_t pieces_of(uint64_t size) {
    return (size + PIECE_HASH_PIECE - 1) / PIECE_HASH_PIECE;
}

static int reader_open(struct reader *rd, int fd, struct sp_error *err) {
    struct stat st;
    if (fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "fstat", "hashing");
    *rd = (struct reader){.fd = fd, .size = (uint64_t)st.st_size, .piece = malloc(PIECE_HASH_PIECE)};
    return rd->piece ? 0 : sp_error_set(err, SP_E_INTERNAL, "out of memory");
}

static int reader_close(struct reader *rd, int r, struct piece_digests *ret) {
    free(rd->piece);
    if (r < 0)
        piece_digests_done(&rd->digests);
    else
        *ret = rd->digests;
    return r;
}

int piece_digests_fd(int fd, struct piece_digests *ret, struct sp_error *err) {
    struct reader rd;
    int r = reader_open(&rd, fd, err);
    return r < 0 ? r : reader_close(&rd, hash_range(&rd, 0, pieces_of(rd.size), err), ret);
}

/* All reads are on their way before the first is waited for: what changed lies scattered. */
static void read_ahead(const struct reader *rd, struct extents_walk walk) {
    uint64_t from = 0, to = 0;
    while (extents_next_change(&walk, to, rd->size, &from, &to)) {
        from -= from % PIECE_HASH_PIECE;
        to = pieces_of(to) * PIECE_HASH_PIECE;
        (void)posix_fadvise(rd->fd, (off_t)from, (off_t)(to - from), POSIX_FADV_WILLNEED);
    }
}

/* Takes the base's digests of pieces below `until` over. */
static int take_over(struct reader *rd, const struct piece_digests *base, size_t *at, uint64_t until,
                     struct sp_error *err) {
    int r = 0;
    for (; r == 0 && *at < base->n && le64toh(base->rows[*at].number) < until; (*at)++)
        r = append(&rd->digests, &base->rows[*at], err);
    return r;
}

static void skip(const struct piece_digests *base, size_t *at, uint64_t until) {
    while (*at < base->n && le64toh(base->rows[*at].number) < until)
        (*at)++;
}

static int hash_changes(struct reader *rd, const struct piece_base *base, struct extents_walk walk,
                        struct sp_error *err) {
    uint64_t from = 0, to = 0;
    size_t at = 0;
    int r = 0;

    while (r == 0 && extents_next_change(&walk, to, rd->size, &from, &to)) {
        uint64_t first = from / PIECE_HASH_PIECE, end = pieces_of(to);
        r = take_over(rd, base->digests, &at, first, err);
        if (r == 0)
            r = hash_range(rd, first, end, err);
        skip(base->digests, &at, end);
        to = end * PIECE_HASH_PIECE;
    }
    return r < 0 ? r : take_over(rd, base->digests, &at, UINT64_MAX, err);
}

int piece_digests_since(int fd, const struct piece_base *base, const struct extents *extents, struct piece_digests *ret,
                        size_t *ret_hashed, struct sp_error *err) {
    const struct extents_walk walk = {.a = base->extents, .b = extents};
    struct reader rd;
    int r = reader_open(&rd, fd, err);

    if (r < 0)
        return r;
    if (base->size != rd.size) {
        r = hash_range(&rd, 0, pieces_of(rd.size), err);
    } else {
        read_ahead(&rd, walk);
        r = hash_changes(&rd, base, walk, err);
    }
    *ret_hashed = rd.hashed;
    return reader_close(&rd, r, ret);
}

int piece_hash_fd(int fd, char dst[SHA256_HEX_SIZE], struct sp_error *err) {
    _cleanup_piece_digests_ struct piece_digests digests = {0};
    int r = piece_digests_fd(fd, &digests, err);
    if (r == 0)
        piece_digests_hex(&digests, dst);
    return r;
}

void piece_digests_done(struct piece_digests *digests) {
    free(digests->rows);
    *digests = (struct piece_digests){0};
}

void piece_digests_hex(const struct piece_digests *digests, char dst[SHA256_HEX_SIZE]) {
    sha256_memory_hex(digests->rows, digests->n * sizeof(*digests->rows), dst);
}
