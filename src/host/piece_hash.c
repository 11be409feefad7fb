/* SPDX-License-Identifier: Apache-2.0 */
/* Piece-wise SHA-256 of sparse files; SEEK_DATA says which pieces need no reading. */
#include "host/piece_hash.h"
#include "base/cleanup.h"
#include "base/text.h"
#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>
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

static int hash_pieces(struct piece_reader *rd, EVP_MD_CTX *total, struct sp_error *err) {
    for (off_t at = 0; at < rd->size; at += PIECE_HASH_PIECE) {
        uint8_t digest[SHA256_SIZE];
        int r = piece_digest(rd, at, digest, err);
        if (r < 0)
            return r;
        if (EVP_DigestUpdate(total, digest, sizeof(digest)) != 1)
            return sp_error_set(err, SP_E_INTERNAL, "SHA-256 failed");
    }
    return 0;
}

int piece_hash_fd(int fd, char dst[SHA256_HEX_SIZE], struct sp_error *err) {
    struct piece_reader rd = {.fd = fd, .data_at = -1};
    _cleanup_free_ unsigned char *piece = malloc(PIECE_HASH_PIECE);
    EVP_MD_CTX *total = EVP_MD_CTX_new();
    struct stat st;
    uint8_t digest[SHA256_SIZE];
    int r = 0;

    if (!piece || !total || EVP_DigestInit_ex(total, EVP_sha256(), NULL) != 1)
        r = sp_error_set(err, SP_E_INTERNAL, "cannot set up SHA-256");
    else if (fstat(fd, &st) < 0)
        r = sp_error_errno(err, errno, "fstat", "hashing");
    if (r == 0) {
        rd.size = st.st_size;
        rd.piece = piece;
        r = hash_pieces(&rd, total, err);
    }
    if (r == 0 && EVP_DigestFinal_ex(total, digest, NULL) != 1)
        r = sp_error_set(err, SP_E_INTERNAL, "SHA-256 failed");
    EVP_MD_CTX_free(total);
    if (r == 0)
        text_hex(dst, digest, sizeof(digest));
    return r;
}
