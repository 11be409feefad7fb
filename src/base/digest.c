/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 through OpenSSL's EVP. The algorithm is fetched once a process and lives until its end. */
#include "base/digest.h"
#include "base/text.h"
#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define FILE_CHUNK 65536u

static EVP_MD *sha256;
static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;

static void sha256_fetch(void) {
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!sha256)
        abort();
}

static const EVP_MD *sha256_get(void) {
    (void)pthread_once(&sha256_once, sha256_fetch);
    return sha256;
}

void sha256_memory(const void *data, size_t len, uint8_t dst[SHA256_SIZE]) {
    if (EVP_Digest(data, len, dst, NULL, sha256_get(), NULL) != 1)
        abort();
}

void sha256_memory_hex(const void *data, size_t len, char dst[SHA256_HEX_SIZE]) {
    uint8_t raw[SHA256_SIZE];
    sha256_memory(data, len, raw);
    text_hex(dst, raw, sizeof(raw));
}

static void md_ctx_freep(EVP_MD_CTX **ctx) {
    EVP_MD_CTX_free(*ctx);
}

int sha256_fd_hex(int fd, char dst[SHA256_HEX_SIZE], struct sp_error *err) {
    __attribute__((cleanup(md_ctx_freep))) EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    uint8_t chunk[FILE_CHUNK], raw[SHA256_SIZE];
    off_t offset = 0;

    if (!ctx || EVP_DigestInit_ex2(ctx, sha256_get(), NULL) != 1)
        return sp_error_set(err, SP_E_INTERNAL, "cannot start SHA-256");
    for (;;) {
        ssize_t n = pread(fd, chunk, sizeof(chunk), offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return sp_error_errno(err, errno, "pread", "cannot read file to hash");
        if (n == 0)
            break;
        if (EVP_DigestUpdate(ctx, chunk, (size_t)n) != 1)
            return sp_error_set(err, SP_E_INTERNAL, "SHA-256 failed");
        offset += n;
    }
    if (EVP_DigestFinal_ex(ctx, raw, NULL) != 1)
        return sp_error_set(err, SP_E_INTERNAL, "SHA-256 failed");
    text_hex(dst, raw, sizeof(raw));
    return 0;
}
