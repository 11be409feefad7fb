/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel randomness, hashes and comparisons of secrets. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void random_bytes(void *dst, size_t len); /* getrandom; aborts when the kernel cannot give any */
/* "<prefix>_" + 26 characters of lowercase Crockford base32 over 128 random bits. Size includes the NUL. */
#define ID_SIZE 32
void id_generate(char dst[ID_SIZE], const char *prefix /* ≤ 4 characters, e.g. "sbx" */);
bool id_is_valid(const char *id, const char *prefix);
bool secret_equal(const void *a, const void *b, size_t len); /* constant time */
