/* SPDX-License-Identifier: Apache-2.0 */
/* The internal token and what is derived from it. */
#include "control/secret.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fdio.h"
#include "base/random.h"
#include "base/text.h"
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#define TOKEN_FILE_MAX 4096
#define NONCE_SIZE 12
#define TAG_SIZE 16
#define REREAD_NS NSEC_PER_SEC

static int read_token(const char *file, char **ret, struct sp_error *err) {
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r = file_read(AT_FDCWD, file, TOKEN_FILE_MAX, &text, &len, err);
    if (r < 0)
        return r;
    text[strcspn(text, "\r\n")] = '\0';
    if (strlen(text) < 16)
        return sp_error_set(err, SP_E_INVALID, "%s: holds no token", file);
    *ret = TAKE_PTR(text);
    return 0;
}

static void derive(uint8_t dst[SHA256_SIZE], const void *key, size_t key_len, const char *label) {
    unsigned len = SHA256_SIZE;
    if (!HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)label, strlen(label), dst, &len))
        abort();
}

int secrets_load(struct secrets *s, const char *file, struct sp_error *err) {
    _cleanup_free_ char *token = NULL;
    int r;
    if (!text_copy(s->file, sizeof(s->file), file))
        return sp_error_field(err, SP_E_INVALID, "internal_token_file", "the path is too long");
    r = read_token(file, &token, err);
    if (r < 0)
        return r;
    (void)pthread_mutex_init(&s->lock, NULL);
    sha256_memory(token, strlen(token), s->internal_hash);
    derive(s->seal_key, token, strlen(token), "space: kept answers, version 1");
    s->read_at_ns = clock_monotonic_ns();
    text_wipe(token, strlen(token));
    return 0;
}

void secrets_done(struct secrets *s) {
    text_wipe(s->seal_key, sizeof(s->seal_key));
    text_wipe(s->internal_hash, sizeof(s->internal_hash));
}

/* With the lock held. */
static void read_again(struct secrets *s) {
    char *token = NULL;
    if (clock_monotonic_ns() - s->read_at_ns < REREAD_NS)
        return;
    s->read_at_ns = clock_monotonic_ns();
    if (read_token(s->file, &token, NULL) < 0)
        return;
    sha256_memory(token, strlen(token), s->internal_hash);
    text_wipe(token, strlen(token));
    free(token);
}

bool secrets_is_internal(struct secrets *s, const char *token) {
    uint8_t hash[SHA256_SIZE];
    bool same;
    sha256_memory(token, strlen(token), hash);
    (void)pthread_mutex_lock(&s->lock);
    same = secret_equal(hash, s->internal_hash, sizeof(hash));
    if (!same) {
        read_again(s);
        same = secret_equal(hash, s->internal_hash, sizeof(hash));
    }
    (void)pthread_mutex_unlock(&s->lock);
    return same;
}

/* ---- sealing ---- */

static void answer_key(const struct secrets *s, const struct seal_for *what, uint8_t dst[SHA256_SIZE]) {
    char label[1024];
    uint8_t step[SHA256_SIZE];
    (void)snprintf(label, sizeof(label), "%s\n%s", what->tenant_id, what->route);
    derive(step, s->seal_key, sizeof(s->seal_key), label);
    derive(dst, step, sizeof(step), what->key);
    text_wipe(step, sizeof(step));
}

/* One pass of AES-256-GCM over len bytes; encrypts or checks and decrypts. */
static bool gcm(bool encrypt, const uint8_t key[SHA256_SIZE], const unsigned char *nonce, const unsigned char *in,
                int len, unsigned char *out, unsigned char *tag) {
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    int n = 0, last = 0;
    bool good = ctx && EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, key, nonce, encrypt) == 1;
    if (good && !encrypt)
        good = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, TAG_SIZE, tag) == 1;
    good = good && EVP_CipherUpdate(ctx, out, &n, in, len) == 1 && EVP_CipherFinal_ex(ctx, out + n, &last) == 1;
    if (good && encrypt)
        good = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, TAG_SIZE, tag) == 1;
    EVP_CIPHER_CTX_free(ctx);
    return good && n + last == len;
}

int secrets_seal(const struct secrets *s, const struct seal_for *what, const void *data, size_t len,
                 unsigned char **ret, size_t *ret_len) {
    uint8_t k[SHA256_SIZE];
    _cleanup_free_ unsigned char *out = len < INT32_MAX / 2 ? malloc(NONCE_SIZE + len + TAG_SIZE) : NULL;
    if (!out)
        return -SP_E_UNAVAILABLE;
    answer_key(s, what, k);
    random_bytes(out, NONCE_SIZE);
    bool good = gcm(true, k, out, data, (int)len, out + NONCE_SIZE, out + NONCE_SIZE + len);
    text_wipe(k, sizeof(k));
    if (!good)
        return -SP_E_INTERNAL;
    *ret = TAKE_PTR(out);
    *ret_len = NONCE_SIZE + len + TAG_SIZE;
    return 0;
}

int secrets_unseal(const struct secrets *s, const struct seal_for *what, const void *data, size_t len,
                   unsigned char **ret, size_t *ret_len) {
    const unsigned char *in = data;
    unsigned char tag[TAG_SIZE];
    uint8_t k[SHA256_SIZE];
    if (len < NONCE_SIZE + TAG_SIZE || len >= INT32_MAX)
        return -SP_E_CORRUPT;
    size_t plain = len - NONCE_SIZE - TAG_SIZE;
    _cleanup_free_ unsigned char *out = malloc(plain + 1);
    if (!out)
        return -SP_E_UNAVAILABLE;
    answer_key(s, what, k);
    memcpy(tag, in + NONCE_SIZE + plain, TAG_SIZE);
    bool good = gcm(false, k, in, in + NONCE_SIZE, (int)plain, out, tag);
    text_wipe(k, sizeof(k));
    if (!good)
        return -SP_E_CORRUPT;
    out[plain] = '\0';
    *ret = TAKE_PTR(out);
    *ret_len = plain;
    return 0;
}
