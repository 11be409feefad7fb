/* SPDX-License-Identifier: Apache-2.0 */
/* Piece-wise SHA-256 of sparse files; SEEK_DATA says which pieces need no reading. */
#include "host/piece_hash.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

struct piece_reader {
    int fd;
    off_t size;
    off_t data_at; /* no data between the current offset and here */
    unsigned char *piece;
    bool have_zero_digest;
    uint8_t zero_digest[SHA256_SIZE]; /* of a whole piece of zeros, once one was met */
};

static int read_piece(struct piece_reader *rd, off_t at, size_t len, struct sp_error *err) {
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

static void zero_piece_digest(struct piece_reader *rd, uint8_t dst[SHA256_SIZE]) {
    if (!rd->have_zero_digest) {
        memset(rd->piece, 0, PIECE_HASH_PIECE);
        sha256_memory(rd->piece, PIECE_HASH_PIECE, rd->zero_digest);
        rd->have_zero_digest = true;
    }
    memcpy(dst, rd->zero_digest, SHA256_SIZE);
}

static int piece_digest(struct piece_reader *rd, off_t at, uint8_t dst[SHA256_SIZE], struct sp_error *err) {
    off_t left = rd->size - at;
    size_t len = left < (off_t)PIECE_HASH_PIECE ? (size_t)left : PIECE_HASH_PIECE;
    int r;

    if (rd->data_at < at) {
        off_t next = lseek(rd->fd, at, SEEK_DATA);
        if (next < 0)
            next = errno == ENXIO ? rd->size : at; /* no SEEK_DATA here: everything counts as data */
        rd->data_at = next;
    }
    if (len == PIECE_HASH_PIECE && rd->data_at >= at + (off_t)PIECE_HASH_PIECE) {
        zero_piece_digest(rd, dst);
        return 0;
    }
    r = read_piece(rd, at, len, err);
    if (r < 0)
        return r;
    sha256_memory(rd->piece, len, dst);
    if (rd->data_at < at + (off_t)len)
        rd->data_at = at; /* look for the next data anew */
    return 0;
}

/* Which pieces have to be hashed, as one byte each; 0: the base's digest holds. */
static int choose(const struct piece_base *base, const struct extents *extents, const struct piece_reader *rd,
                  struct piece_digests *digests, unsigned char *todo) {
    struct extents_walk walk = {.a = base->extents, .b = extents};
    int n = 0;

    for (size_t i = 0; i < digests->n; i++) {
        uint64_t from = (uint64_t)i * PIECE_HASH_PIECE, to = from + PIECE_HASH_PIECE;
        todo[i] = !extents_same(&walk, from, to < (uint64_t)rd->size ? to : (uint64_t)rd->size);
        if (!todo[i])
            memcpy(digests->rows[i], base->digests->rows[i], SHA256_SIZE);
        n += todo[i];
    }
    return n;
}

/* All reads are on their way before the first is waited for: pieces that changed lie scattered. */
static void read_ahead(int fd, const unsigned char *todo, size_t n) {
    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && todo[end];)
            end++;
        if (end > i)
            (void)posix_fadvise(fd, (off_t)(i * PIECE_HASH_PIECE), (off_t)((end - i) * PIECE_HASH_PIECE),
                                POSIX_FADV_WILLNEED);
    }
}

static int hash_chosen(struct piece_reader *rd, const unsigned char *todo, struct piece_digests *digests,
                       struct sp_error *err) {
    int r = 0;
    for (size_t i = 0; i < digests->n && r == 0; i++)
        if (!todo || todo[i])
            r = piece_digest(rd, (off_t)(i * PIECE_HASH_PIECE), digests->rows[i], err);
    return r;
}

static int hash(int fd, const struct piece_base *base, const struct extents *extents, struct piece_digests *ret,
                size_t *ret_hashed, struct sp_error *err) {
    struct piece_reader rd = {.fd = fd, .data_at = -1};
    _cleanup_free_ unsigned char *piece = malloc(PIECE_HASH_PIECE), *todo = NULL;
    _cleanup_piece_digests_ struct piece_digests digests = {0};
    struct stat st;
    int r;

    if (fstat(fd, &st) < 0)
        return sp_error_errno(err, errno, "fstat", "hashing");
    rd.size = st.st_size;
    rd.piece = piece;
    digests.n = piece_hash_pieces((uint64_t)st.st_size);
    digests.rows = calloc(digests.n + 1, sizeof(*digests.rows));
    if (base && base->digests->n == digests.n)
        todo = malloc(digests.n + 1);
    if (!piece || !digests.rows)
        return sp_error_set(err, SP_E_INTERNAL, "out of memory");
    *ret_hashed = todo ? (size_t)choose(base, extents, &rd, &digests, todo) : digests.n;
    if (todo)
        read_ahead(fd, todo, digests.n);
    r = hash_chosen(&rd, todo, &digests, err);
    if (r == 0) {
        *ret = digests;
        digests = (struct piece_digests){0};
    }
    return r;
}

int piece_digests_fd(int fd, struct piece_digests *ret, struct sp_error *err) {
    size_t hashed;
    return hash(fd, NULL, NULL, ret, &hashed, err);
}

int piece_hash_fd(int fd, char dst[SHA256_HEX_SIZE], struct sp_error *err) {
    _cleanup_piece_digests_ struct piece_digests digests = {0};
    int r = piece_digests_fd(fd, &digests, err);
    if (r == 0)
        piece_digests_hex(&digests, dst);
    return r;
}

int piece_digests_since(int fd, const struct piece_base *base, const struct extents *extents, struct piece_digests *ret,
                        size_t *ret_hashed, struct sp_error *err) {
    return hash(fd, base, extents, ret, ret_hashed, err);
}

void piece_digests_done(struct piece_digests *digests) {
    free(digests->rows);
    *digests = (struct piece_digests){0};
}

void piece_digests_hex(const struct piece_digests *digests, char dst[SHA256_HEX_SIZE]) {
    sha256_memory_hex(digests->rows, digests->n * SHA256_SIZE, dst);
}
